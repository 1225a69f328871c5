# SPDX-License-Identifier: Apache-2.0
"""replay.py BUILD TRACE [--room SHARE,...] [--nvme SHARE] [--segment-blocks N] [--work DIR] [--hints none,exact,...]
- hit rates of the real kvtierd on a trace, whose lines have "hash_ids", "timestamp" in ms, and "session" and "keep" if
it is one of sessions (`kvtierctl replay` reads the same).

    python3 tests/bench/replay.py build agent_sessions.jsonl
    python3 tests/bench/replay.py build agent_sessions.jsonl --room 0.01 --nvme 0.1 --hints none

Each request looks its blocks up, loads those that are promised, and stores the rest, in a daemon whose host memory has
room for so large a share of the different blocks, and whose NVMe store, in DIR, for so many, in segments of N blocks
(64). With NVMe the next request waits until all that was stored is written. With
hints, each of its ops says when the session's next request comes (expected_back_s): exactly, off by a factor of e (a
normal deviate of 1), or in four classes (10 s, 1 min, 10 min, never). Other hints are "ended", of a session behind its
last request, and with it "retain", a priority of 50 where a session is back within 120 s, or "lower", one of -50 where
it is away for more than 30 s. Requests follow each other at once, and the
clock of this process and of the daemon is set to the time of each one: a library in front of libc adds what is missing
to CLOCK_MONOTONIC. One JSON object a line: promised is what lookups said, hit_rate what loads brought. Hints are in
whole seconds.
"""
import argparse
import json
import math
import mmap
import os
import random
import select
import struct
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "client" / "python"), str(TREE / "client" / "examples")]
NEVER = 2 ** 32 - 1
DATA = 65536  # bytes in front of the segments

WARP = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *t)
{
	static int (*real)(clockid_t, struct timespec *);
	static volatile uint64_t *more_ns;

	if (!real) {
		const int fd = open(getenv("KVTIER_WARP"), O_RDONLY | O_CLOEXEC);

		more_ns = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
		real = dlsym(RTLD_NEXT, "clock_gettime");
	}
	const int r = real(clock, t);

	if (clock == CLOCK_MONOTONIC) {
		const uint64_t ns = (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec + *more_ns;

		t->tv_sec = (time_t)(ns / 1000000000u);
		t->tv_nsec = (long)(ns % 1000000000u);
	}
	return r;
}
"""


class Request:
    def __init__(self, at_ms, session, ids):
        self.at_ms, self.session, self.ids, self.next_ms = at_ms, session, ids, None


def read(path):
    before, requests = {}, []
    for number, line in enumerate(path.read_text().splitlines()):
        fields = {"session": number, "keep": 0, **json.loads(line)}
        last = before.get(fields["session"])
        ids = (last.ids[:fields["keep"]] if last else []) + fields["hash_ids"]
        request = Request(fields["timestamp"], fields["session"], ids)
        if last:
            last.next_ms = request.at_ms
        before[request.session] = request
        requests.append(request)
    return requests


def hint_of(request, how, chance):
    """The options of its ops."""
    seconds = math.inf if request.next_ms is None else (request.next_ms - request.at_ms) / 1000
    if how in ("none", "ended"):
        return {}
    if how == "retain":
        return {"priority": 50} if seconds <= 120 else {}
    if how == "lower":
        return {"priority": -50} if 30 < seconds < math.inf else {}
    if request.next_ms is None:
        return {"expected_back_s": NEVER}
    if how == "off":
        seconds *= math.exp(chance.gauss(0, 1))
    if how == "classes":
        seconds = 10 if seconds < 10 else 60 if seconds < 60 else 600
    return {"expected_back_s": max(1, min(NEVER - 1, round(seconds)))}


def wait_written(daemon):
    """Until no block waits for NVMe, or is on its way there: then it is leased. daemon.stats() has a timeout, whose
    sleep ends by the clock."""
    while True:
        stats = json.loads(subprocess.check_output([daemon.build / "kvtierctl", "--socket", daemon.socket, "stats",
                                                    "--json"]))
        if stats["tiers"]["nvme"]["queued_blocks"] == 0 and stats["leases"] == 0:
            return
        select.select([], [], [], .005)  # time.sleep() ends by the clock, too


def replay(build, requests, different, share, nvme, segment_blocks, work, how, more_ns):
    import kvtier
    from llama_demo import Daemon

    keys_of, chance, nobody = {}, random.Random(7), kvtier.Keys.of(bytes(32))
    room = round(different * share / 32) * 32  # whole slabs
    full = round(different * nvme / segment_blocks)
    slot = 8192 if segment_blocks >= 8 else 32768  # a segment has at least 64 KiB
    segment = segment_blocks * slot + (1 + -(-(segment_blocks + 1) * 128 // 4096)) * 4096  # its header and footer, too
    settings = f"[host]\nbytes = {room * slot}\nslab_bytes = 256K\nhuge_pages = no\n" \
        f"[index]\nmax_blocks = {2 * different}\n[nvme]\nsegment_bytes = {segment}\nstall_us = 600s\n" \
        f"bytes = {DATA + full * segment if full else 0}\n"
    # one layer of 8 heads of 16 FP16 values: a page and the header of its image, a page of memory, fill a slot
    row = 8 * 16 * 2
    page = slot - 4096
    tokens = page // (2 * row)
    geometry = kvtier.Geometry("replay@1", "replay", kvtier.Dtype.FP16, 1, 8, 16, 16, tokens, codec=kvtier.Codec.RAW)
    segments = [kvtier.Segment(kind, i * tokens * row, page, layer=0, head_stride=32, token_stride=row)
                for i, kind in enumerate((kvtier.Kind.K, kvtier.Kind.V))]
    longest = max(len(request.ids) for request in requests)
    asked = promised = hits = 0
    with tempfile.TemporaryDirectory(prefix="kvtier-replay-", dir=work) as place, \
            kvtier.SharedMemory(longest * page) as memory:
        daemon = Daemon(build, Path(place), settings)
        try:
            with kvtier.Client(daemon.socket, name="replay", timeout_ms=60000) as client, \
                    client.open_space(geometry, [memory.region()], segments) as space:
                for number, request in enumerate(requests):
                    more_ns[0] = int(request.at_ms * 1e6)
                    client.wait(space.hint("release", nobody))  # the daemon sees the time, and its heart beats
                    raw = b"".join(keys_of.setdefault(i, sha256(str(i).encode()).digest()) for i in request.ids)
                    keys, n = kvtier.Keys.of(raw), len(request.ids)
                    hint = hint_of(request, how, chance)
                    if how != "none":
                        hint["session"] = request.session + 1
                    there = space.lookup(keys).blocks
                    asked, promised, loaded = asked + n, promised + there, 0
                    if there:
                        loaded = client.wait(space.load(keys[:there], range(there), **hint)).prefix
                        hits += loaded
                    if loaded < n:
                        client.wait(space.store(keys[loaded:], range(loaded, n), **hint))
                    if full:
                        wait_written(daemon)
                    if how in ("ended", "retain", "lower") and request.next_ms is None:
                        client.wait(space.hint("ended", session=request.session + 1))
                    if number % 500 == 0:
                        print(f"\r{how}: {number} of {len(requests)} requests", end="", file=sys.stderr)
        finally:
            daemon.close()
    print("\r", end="", file=sys.stderr)
    print(json.dumps({"room": share, "blocks": room, "nvme_blocks": full * segment_blocks,
                      "segment_blocks": segment_blocks if full else 0, "hints": how,
                      "promised": round(promised / asked, 4), "hit_rate": round(hits / asked, 4)}), flush=True)


def all_replays(given):
    """Each in a process of its own, whose clock begins with the machine's."""
    with tempfile.TemporaryDirectory(prefix="kvtier-warp-") as work:
        (Path(work) / "warp.c").write_text(WARP)
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", f"{work}/warp.so", f"{work}/warp.c", "-ldl"],
                       check=True)
        environment = {**os.environ, "LD_PRELOAD": f"{work}/warp.so", "KVTIER_WARP": f"{work}/more_ns",
                       "KVTIER_LIBRARY": str(given.build.resolve() / "libkvtier.so.0")}
        for share in given.room.split(","):
            for how in given.hints.split(","):
                (Path(work) / "more_ns").write_bytes(bytes(4096))
                subprocess.run([sys.executable, __file__, str(given.build), str(given.trace), "--room", share,
                                "--nvme", given.nvme, "--segment-blocks", str(given.segment_blocks),
                                "--work", given.work, "--hints", how], env=environment, check=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--room", default="0.03")
    parser.add_argument("--nvme", default="0")
    parser.add_argument("--segment-blocks", type=int, default=64)
    parser.add_argument("--work", default="/dev/shm")
    parser.add_argument("--hints", default="none,exact,off,classes")
    given = parser.parse_args()
    if "KVTIER_WARP" not in os.environ:
        return all_replays(given)
    with open(os.environ["KVTIER_WARP"], "r+b") as file:
        more_ns = memoryview(mmap.mmap(file.fileno(), 4096)).cast("Q")
    requests = read(given.trace)
    different = len({i for request in requests for i in request.ids})
    replay(given.build.resolve(), requests, different, float(given.room), float(given.nvme),
           given.segment_blocks, given.work, given.hints, more_ns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
