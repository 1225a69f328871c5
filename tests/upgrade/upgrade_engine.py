# SPDX-License-Identifier: Apache-2.0
"""upgrade_engine.py READ WRITE SOCKET PAGES - an engine with the library and the binding of one release.

PYTHONPATH and KVTIER_LIBRARY choose the release, so it uses only what the bindings of all have. It answers
questions (engine_process.py): {"do": "store" | "load" | "lookup" | "serve", "chains": N}. Block i of chain c has bytes
of its own, which fp8 holds exactly.
"""
import collections
import errno
import json
import os
import struct
import sys
import time

import kvtier
from kvtier import Codec, Dtype, Geometry, Kind, Segment, SharedMemory

TOKENS, LAYERS, HEADS, DIM, CHAIN = 16, 2, 2, 32, 64
ROW = HEADS * DIM * 2
PLANE = TOKENS * ROW
PAGE = 2 * LAYERS * PLANE
SERVE_S, OP_S = 90, 2


def content(chain: int, block: int) -> bytes:
    """The name of the block in binary, then a pattern. fp8 holds 8 to 15 whatever else a tile has of these."""
    name = [8.0 + (chain * CHAIN + block >> bit & 1) for bit in range(32)]
    values = name + [8.0 + (i * 5 + block) % 8 for i in range(64)]
    return (struct.pack(f"<{len(values)}e", *values) * (PAGE // len(values) // 2 + 1))[:PAGE]


class Engine:
    def __init__(self, path: str, pages: int) -> None:
        self.memory = SharedMemory(pages * PAGE)
        self.client = kvtier.Client(path, name="upgrade", timeout_ms=OP_S * 1000)
        self.space = self.client.open_space(
            Geometry("upgrade@1", "test", Dtype.FP16, LAYERS, HEADS, DIM, DIM, TOKENS, codec=Codec.FP8),
            [self.memory.region()],
            [Segment(kind, (2 * layer + i) * PLANE, PAGE, layer=layer, head_stride=2 * DIM, token_stride=ROW)
             for layer in range(LAYERS) for i, kind in enumerate((Kind.K, Kind.V))])
        assert pages >= CHAIN

    def page(self, block: int) -> slice:
        return slice(block * PAGE, (block + 1) * PAGE)

    def keys(self, chain: int):
        return self.space.keys([chain] * (CHAIN * TOKENS))

    def store(self, chain: int) -> dict:
        for block in range(CHAIN):
            self.memory.view[self.page(block)] = content(chain, block)
        result = self.client.wait(self.space.store(self.keys(chain), range(CHAIN)))
        return {"ok": result.ok, "wrong": 0}

    def load(self, chain: int) -> dict:
        self.memory.view[:CHAIN * PAGE] = b"\xa5" * (CHAIN * PAGE)
        result = self.client.wait(self.space.load(self.keys(chain), range(CHAIN)))
        there = [block for block, status in enumerate(result.blocks) if status >= 0]
        wrong = sum(self.memory.view[self.page(block)] != content(chain, block) for block in there)
        return {"ok": len(there), "wrong": wrong, "status": result.status}

    def lookup(self, chain: int) -> dict:
        return {"ok": self.space.lookup(self.keys(chain)).blocks, "wrong": 0}

    def serve(self, chains: int) -> dict:
        """Loads until a load has failed and a later one was whole again, as an engine does whose daemon is exchanged:
        how each ended, and how long the longest took."""
        ended, longest, end = collections.Counter(), 0.0, time.monotonic() + SERVE_S
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                answer = self.load(ended.total() % chains)
                outcome = "hit" if answer["ok"] == CHAIN else errno.errorcode.get(-answer["status"], "miss")
                ended["wrong"] += answer["wrong"]
            except OSError as error:
                outcome = errno.errorcode[error.errno]
            ended[outcome] += 1
            longest = max(longest, time.monotonic() - began)
            if outcome == "hit" and ended.total() > ended["hit"] + ended["wrong"]:
                return {**ended, "longest_s": longest, "back": True}
            time.sleep(0.01)
        return {**ended, "longest_s": longest, "back": False}

    def answer(self, question: dict) -> dict:
        if question["do"] == "serve":
            return self.serve(question["chains"])
        total = collections.Counter(ok=0, wrong=0)
        for chain in range(question["chains"]):
            total.update(getattr(self, question["do"])(chain))
        return {"ok": total["ok"], "wrong": total["wrong"]}


def main() -> None:
    questions, answers = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
    engine = Engine(sys.argv[3], CHAIN)
    print(json.dumps({"version": kvtier.version()}), file=answers, flush=True)
    for line in questions:
        print(json.dumps(engine.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
