# SPDX-License-Identifier: Apache-2.0
"""service_load.py BLOCKS DONE - an engine under load, for test-service.sh and test-debs.sh: stores chains and loads
them back, while a thread connects again and again. It prints "stored" when it has BLOCKS blocks stored, goes on until
the file DONE is there and a store has succeeded since, then looks for all that the daemon took, and compares it.

Exit status 1, and a sentence: a call without an answer, a connect that failed, a wrong byte, or a block that is gone.
"""
import errno
import os
import sys
import threading
import time

import kvtier
from kvtier import BLOCK_OK, BLOCK_PRESENT, Codec, Dtype, Geometry, Kind, Segment, SharedMemory

TOKENS, LAYERS, HEADS, DIM, CHAIN = 16, 2, 2, 64, 16
ROW = HEADS * DIM * 2
PLANE = TOKENS * ROW
PAGE = 2 * LAYERS * PLANE
PATIENT_MS = 60000
KEPT = 0.99

connects, failures = 0, []


def connect_again_and_again(end: threading.Event) -> None:
    global connects
    while not end.wait(0.01):
        try:
            kvtier.Client(name="connects", timeout_ms=PATIENT_MS).close()
            connects += 1
        except kvtier.Error as error:
            failures.append(str(error))


class Load:
    def __init__(self) -> None:
        self.client = kvtier.Client(name="load", timeout_ms=PATIENT_MS)
        self.memory = SharedMemory(CHAIN * PAGE)
        segments = [Segment(kind, (2 * layer + i) * PLANE, PAGE, layer=layer, head_stride=2 * DIM, token_stride=ROW)
                    for layer in range(LAYERS) for i, kind in enumerate((Kind.K, Kind.V))]
        geometry = Geometry("load", "test", Dtype.FP16, LAYERS, HEADS, DIM, DIM, TOKENS, codec=Codec.RAW)
        self.space = self.client.open_space(geometry, [self.memory.region()], segments)
        self.chains = []        # numbers of those that the daemon took
        self.lost = 0           # calls that were answered with the loss of the daemon

    def keys(self, chain: int):
        return self.space.keys([chain * CHAIN * TOKENS + i for i in range(CHAIN * TOKENS)])

    def page(self, chain: int, block: int) -> bytes:
        return (b"%08d" % (chain * CHAIN + block)) * (PAGE // 8)

    def ask(self, call, chain: int) -> list:
        """The statuses of a store or load; none where the daemon was lost."""
        try:
            return self.client.wait(call(self.keys(chain), range(CHAIN))).blocks
        except kvtier.Error as error:
            if error.errno not in (errno.ECONNRESET, errno.ENOTCONN):
                raise
            self.lost += 1
            time.sleep(0.01)
            return []

    def store(self, chain: int) -> bool:
        self.memory.view[:] = b"".join(self.page(chain, block) for block in range(CHAIN))
        blocks = self.ask(self.space.store, chain)
        took = len(blocks) == CHAIN and all(status in (BLOCK_OK, BLOCK_PRESENT) for status in blocks)
        if took:
            self.chains.append(chain)
        return took

    def load(self, chain: int) -> int:
        """How many blocks came; a wrong one ends the program."""
        self.memory.view[:] = bytes(CHAIN * PAGE)
        blocks = self.ask(self.space.load, chain)
        for block, status in enumerate(blocks):
            page = self.memory.view[block * PAGE:(block + 1) * PAGE]
            if status == BLOCK_OK and page != self.page(chain, block):
                sys.exit(f"block {block} of chain {chain} is wrong")
        return blocks.count(BLOCK_OK)


def main(wanted: int, done: str) -> None:
    load, end = Load(), threading.Event()
    thread = threading.Thread(target=connect_again_and_again, args=(end,), daemon=True)
    thread.start()
    chain = said = again = 0
    began, lost_at, first_hit = time.monotonic(), None, None
    while not again:
        chain += 1
        there = os.path.exists(done)
        took = load.store(chain)
        if load.lost and lost_at is None:
            lost_at = time.monotonic()
        if len(load.chains) * CHAIN >= wanted and not said:
            print("stored", flush=True)
            said = 1
        time.sleep(0.05 * said)         # or the disk would be full: it has to keep all
        if load.chains and load.load(load.chains[chain % len(load.chains)]) and lost_at and first_hit is None:
            first_hit = time.monotonic() - lost_at
        again = there and took
        if time.monotonic() - began > 5 * PATIENT_MS / 1000:
            sys.exit(f"no store succeeded after {done} was there; {load.client.status}")
    end.set()
    thread.join()
    came, stored = sum(map(load.load, load.chains)), len(load.chains) * CHAIN
    print(f"{connects} connects, {len(failures)} failed {failures[:1]}; {load.lost} calls answered with the loss of the"
          f" daemon; {came} of {stored} blocks there again" +
          (f", the first {first_hit:.1f} s after the loss" if first_hit else ""))
    sys.exit(1 if failures or came < KEPT * stored else 0)


main(int(sys.argv[1]), sys.argv[2])
