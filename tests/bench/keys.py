# SPDX-License-Identifier: Apache-2.0
"""keys.py - what Space.keys() of 131,072 tokens in blocks of 16 costs in Python, by the kind of its tokens: the
fastest and the median of 40 calls. `python3 tests/bench/keys.py [build]`; kvtier-bench keys is the same in C."""
import array
import statistics
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "client" / "examples"), str(TREE / "client" / "python")]

import kvtier  # noqa: E402
from llama_demo import Daemon  # noqa: E402

TOKENS, CALLS = 131072, 40


def milliseconds(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def main(build):
    tokens = [i * 40503 % 151936 for i in range(TOKENS)]
    kinds = {"list": tokens, "array I (32 bits)": array.array("I", tokens),
             "array q (64 bits)": array.array("q", tokens)}
    geometry = kvtier.Geometry("bench", "bench", kvtier.Dtype.BF16, 2, 2, 32, 32, 16)
    with tempfile.TemporaryDirectory(prefix="kvtier-test-") as work:
        daemon = Daemon(build, Path(work), "[host]\nbytes = 64M\n[nvme]\nbytes = 0\n")
        try:
            with kvtier.Client(daemon.socket) as client, client.open_space(geometry) as space:
                for name, given in kinds.items():
                    times = [milliseconds(lambda: space.keys(given)) for _ in range(CALLS)]
                    print(f"{name:20} {min(times):7.2f} ms  median {statistics.median(times):7.2f} ms")
        finally:
            daemon.close()


main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else TREE / "build")
