# SPDX-License-Identifier: Apache-2.0
"""turns.py - what operators' commands cost the core thread, with 1,000 spaces, 16 tenants and a million blocks: the CPU
that it takes for each, and the longest iteration meanwhile. `python3 tests/bench/turns.py [build]`, as root: the core
thread is given a real-time priority, so that an iteration on a busy machine lasts as long as it works, or as long as a
thread that has a lock does not run: openings right after the start, while memory is touched, and stores."""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "client" / "examples"), str(TREE / "client" / "python")]

import kvtier  # noqa: E402
from kvtier import Codec, Dtype, Geometry, Kind, Segment, SharedMemory  # noqa: E402
from llama_demo import Daemon  # noqa: E402

SPACES, TENANTS, TIMES, TOKENS, BATCH = 1000, 15, 20, 16, 1024
BLOCKS = int(os.environ.get("BLOCKS", 1000000))
ROW = 8 * 2
PLANE = TOKENS * ROW


def config(run: Path) -> str:
    """Room for the blocks, and as many sockets of tenants as there may be."""
    sockets = "".join(f"[socket t{i}]\npath = {run}/t{i}.sock\nshare = 2\npriority = {i}\n" for i in range(TENANTS))
    return (f"[host]\nbytes = {BLOCKS * 2 >> 10}M\nslab_bytes = 4M\nhuge_pages = no\n[nvme]\nbytes = 0\n"
            f"[index]\nmax_blocks = {BLOCKS * 2}\n{sockets}")


class Engine:
    def __init__(self, path: str) -> None:
        self.client = kvtier.Client(path, name="turns")
        self.memory = SharedMemory(BATCH * 2 * PLANE)
        self.segments = [Segment(kind, i * PLANE, 2 * PLANE, layer=0, head_stride=ROW, token_stride=ROW)
                         for i, kind in enumerate((Kind.K, Kind.V))]

    def open(self, i: int):
        geometry = Geometry(f"model-{i}", "bench", Dtype.FP16, 1, 1, 8, 8, TOKENS)._replace(codec=Codec.RAW)
        return self.client.open_space(geometry, [self.memory.region()], self.segments)

    def open_all(self) -> None:
        for i in range(SPACES):
            self.open(i).close()

    def fill(self) -> None:
        with self.open(0) as space:
            for first in range(0, BLOCKS, BATCH):
                keys = space.keys([first + i // TOKENS for i in range(BATCH * TOKENS)])
                self.client.wait(space.store(keys, range(BATCH)))


def longest(before: list, after: list) -> str:
    """Of two states of a histogram: the length of the longest iteration between them."""
    had = dict(map(tuple, before["buckets"]))
    new = [ns for ns, count in after["buckets"] if count > had.get(ns, 0)]
    return f"{max(new, default=0) / 1e6:.2f} ms"


def cpu_ms(thread: int) -> float:
    return int(Path(f"/proc/{thread}/schedstat").read_text().split()[0]) / 1e6


class Core:
    def __init__(self, daemon: Daemon) -> None:
        self.daemon, self.thread = daemon, daemon.process.pid

    def does(self, name: str, act, times: int = 1) -> None:
        """Figures of an act. What the core thread takes by itself meanwhile, its heartbeat, is among them."""
        before, cpu = self.daemon.stats()["core"]["iteration_ns"], cpu_ms(self.thread)
        for _ in range(times):
            act()
        cpu = (cpu_ms(self.thread) - cpu) / times
        time.sleep(.2)
        print(f"{name:28} {cpu:9.3f} ms of core CPU, longest iteration "
              f"{longest(before, self.daemon.stats()['core']['iteration_ns'])}", flush=True)


def stopped(daemon: Daemon) -> None:
    """status and stats read a page in memory: they need no daemon that answers."""
    os.kill(daemon.process.pid, signal.SIGSTOP)
    for command in ("status", "stats"):
        before = os.times()
        for _ in range(TIMES):
            subprocess.run([str(daemon.build / "kvtierctl"), "--socket", daemon.socket, command],
                           stdout=subprocess.DEVNULL, check=False)
        now = os.times()
        cpu = now.children_user + now.children_system - before.children_user - before.children_system
        print(f"{command + ', daemon stopped':28} {1e3 * cpu / TIMES:9.1f} ms of its own CPU")
    os.kill(daemon.process.pid, signal.SIGCONT)


def scrapes(core: Core, daemon: Daemon) -> None:
    path, times = f"{daemon.run}/export.sock", []
    exporter = subprocess.Popen([str(daemon.build / "kvtierctl"), "--socket", daemon.socket, "export", "--listen",
                                 f"unix:{path}"], stderr=subprocess.DEVNULL)

    def scrape() -> None:
        begun = time.monotonic()
        with socket.socket(socket.AF_UNIX) as made:
            made.connect(path)
            made.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            while made.recv(1 << 20):
                pass
        times.append(time.monotonic() - begun)
        time.sleep(1.1)             # the exporter asks for numbers by model at most once a second

    while not os.path.exists(path):
        time.sleep(.02)
    cpu = cpu_ms(exporter.pid)
    core.does("scrape", scrape, 10)
    print(f"{'':28} {(cpu_ms(exporter.pid) - cpu) / 10:9.1f} ms of the exporter's CPU for a scrape, in "
          f"{1e3 * sorted(times)[5]:.1f} ms; at most {1e3 * max(times):.1f}")
    exporter.terminate()
    exporter.wait()


def main(build: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kvtier-test-") as work:
        daemon = Daemon(build, Path(work), config(Path(work)))
        os.sched_setscheduler(daemon.process.pid, os.SCHED_FIFO, os.sched_param(1))
        try:
            core, engine = Core(daemon), Engine(daemon.socket)
            core.does(f"open {SPACES} spaces, at once", engine.open_all)
            core.does(f"store {BLOCKS} blocks", engine.fill)
            stopped(daemon)
            scrapes(core, daemon)
            for words in ("config reload", "stats", "status", "spaces", "tenants"):
                core.does(words, lambda: daemon.ctl(*words.split()), TIMES)
            core.does("evict --bytes, half of it", lambda: daemon.ctl("evict", "--bytes", f"{BLOCKS >> 11}M"))
            core.does("purge", lambda: daemon.ctl("purge", "--tenant", "default"))
        finally:
            daemon.close()


main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else TREE / "build")
