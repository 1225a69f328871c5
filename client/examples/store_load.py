#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""store_load.py - store_load.c in Python: `store` fills pages and stores them; `load`, another process, gets them back
and compares. Each program finds the other's blocks, too. Both need a running kvtierd.

    python3 store_load.py store && python3 store_load.py load
"""
import array
import sys

import kvtier

LAYERS, HEADS, DIM, TOKENS, BLOCKS = 4, 2, 64, 16, 8
ROW = HEADS * DIM * 2               # bytes of a token: a value is FP16
PLANE = TOKENS * ROW
PAGE = LAYERS * 2 * PLANE


def values() -> bytes:
    """What all pages hold: 1 <= value < 2 in FP16."""
    return array.array("H", (0x3c00 + (b * 37 + i) % 1024 for b in range(BLOCKS) for i in range(PAGE // 2))).tobytes()


def main(storing: bool) -> int:
    # Two engines share blocks when the geometry says the same of both. The segments say where the K and V of a layer
    # lie in a page: here [page][layer][K, V][token][head][dim].
    geometry = kvtier.Geometry("example@1", "example", kvtier.Dtype.FP16, LAYERS, HEADS, DIM, DIM, TOKENS,
                               codec=kvtier.Codec.RAW)
    segments = [kvtier.Segment(kind, (2 * layer + i) * PLANE, PAGE, layer=layer, head_stride=DIM * 2, token_stride=ROW)
                for layer in range(LAYERS) for i, kind in enumerate((kvtier.Kind.K, kvtier.Kind.V))]
    with kvtier.SharedMemory(BLOCKS * PAGE) as memory, kvtier.Client(name="example") as client, \
            client.open_space(geometry, [memory.region()], segments) as space:
        keys = space.keys([i * 7 for i in range(BLOCKS * TOKENS)])
        print(f"{space.lookup(keys).blocks} of {len(keys)} blocks are present")
        if storing:
            memory.view[:BLOCKS * PAGE] = values()
            result = client.wait(space.store(keys, range(BLOCKS)))
        else:
            result = client.wait(space.load(keys, range(BLOCKS)))
        # Only the first result.prefix blocks are in their pages.
        size = result.prefix * PAGE
        wrong = not storing and memory.view[:size] != values()[:size]
        print(f"{'stored' if storing else 'loaded'} {result.ok} of {result.n} blocks, "
              f"{'some' if wrong else 'no'} values wrong")
        return int(wrong or result.ok != result.n)


if __name__ == "__main__":
    if sys.argv[1:] not in (["store"], ["load"]):
        sys.exit("usage: store_load.py store | load")
    sys.exit(main(sys.argv[1] == "store"))
