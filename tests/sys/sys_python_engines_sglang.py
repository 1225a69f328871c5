# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=30
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: what kvtier.sglang does beneath SGLang: pages come back as they were given, whatever the order of their values;
every call is answered, whatever becomes of the daemon, and no page is touched after the answer.
Method: pools of the standard library alone in SGLang's orders, against a kvtierd of its own. The real SGLang: make
test-engines.
"""
import ctypes as C
import itertools
import random
import signal
import struct
import threading
import unittest

from kvtier import Client, Codec, Dtype, Kind
from kvtier.adapters.sglang_core import (KV_AXES, LATENT_AXES, LayoutError, Pool, Store, Tensor, anchor, geometry_of,
                                         page_bytes, planes, runs)
from world import World

TIMEOUT_MS = 2000
TOKENS, PAGES, LAYERS, HEADS, DIM, ROPE = 8, 20, 3, 4, 32, 16


class Memory:
    """A tensor of 16-bit values in private memory."""

    def __init__(self, name: str, shape, axes: str, dtype: str = "bfloat16") -> None:
        self.shape, self.axes, n = tuple(shape), axes, 1
        strides = []
        for size in reversed(self.shape):
            strides.insert(0, n)
            n *= size
        self.bytes = (C.c_uint8 * (2 * n))()
        self.view = memoryview(self.bytes).cast("B").cast("H")
        self.strides = dict(zip(axes, strides))
        self.tensor = Tensor(name, dtype, self.shape, tuple(strides), 0, C.addressof(self.bytes), 2 * n, False)

    def at(self, **where: int) -> int:
        return sum(self.strides[axis] * number for axis, number in where.items() if axis in self.strides)


SIZES = {"p": PAGES, "t": TOKENS, "s": PAGES * TOKENS, "l": LAYERS, "h": HEADS, "g": 1, "c": 2, "d": DIM}


class KvPool:
    """K and V in one of SGLang's orders."""

    def __init__(self, order: str, groups: int = 1) -> None:
        axes = KV_AXES[order]
        sizes = {**SIZES, "g": groups, "h": HEADS // groups}
        shape = [sizes[axis] for axis in axes]
        self.k = Memory("k", shape, axes)
        self.v = self.k if "c" in axes else Memory("v", shape, axes)
        self.groups = groups
        self.layout = planes([self.k.tensor], [self.v.tensor], axes, TOKENS)

    def rows(self, page: int):
        """(memory, first value, values) of a page, in an order that depends on no layout."""
        inside = HEADS // self.groups
        for c, layer, token, head in itertools.product(range(2), range(LAYERS), range(TOKENS), range(HEADS)):
            memory = (self.k, self.v)[c]
            slot = {"s": page * TOKENS + token} if "s" in memory.axes else {"p": page, "t": token}
            heads = {"g": head // inside, "h": head % inside} if "g" in memory.axes else {"h": head}
            yield memory, memory.at(**slot, **heads, l=layer, c=c), DIM

    def fill(self, page: int, name: str) -> None:
        rows = list(self.rows(page))
        data = bytearray(random.Random(name).randbytes(2 * sum(n for _, _, n in rows)))
        data[1::2] = b"\x3f" * (len(data) // 2)     # values from 0.5 to 2
        values, done = memoryview(bytes(data)).cast("H"), 0
        for memory, at, n in rows:
            memory.view[at:at + n] = values[done:done + n]
            done += n

    def content(self, page: int) -> bytes:
        return b"".join(bytes(memory.view[at:at + n]) for memory, at, n in self.rows(page))


class LatentPool(KvPool):
    """Of MLA: a latent and a rotated part in a row of each token."""

    def __init__(self, order: str) -> None:
        axes = LATENT_AXES[order]
        self.k = Memory("kv", [{**SIZES, "h": 1, "d": DIM + ROPE}[axis] for axis in axes], axes)
        self.layout = planes([self.k.tensor], [], axes, TOKENS, ROPE)

    def rows(self, page: int):
        for layer, token in itertools.product(range(LAYERS), range(TOKENS)):
            slot = {"s": page * TOKENS + token} if "s" in self.k.axes else {"p": page, "t": token}
            yield self.k, self.k.at(**slot, l=layer), DIM + ROPE


def names(n: int, prompt: str = "prompt"):
    return [f"{prompt}-{i}" for i in range(n)]


class Stored(World):
    def setUp(self) -> None:
        super().setUp()
        self.said, self.connects = [], 0

    def store(self, engine, codec=Codec.RAW, rank=0, world=1, **extras) -> Store:
        def connect() -> Client:
            self.connects += 1
            return Client(self.daemon.socket, name="contract", timeout_ms=TIMEOUT_MS)

        store = Store(connect, TIMEOUT_MS, 0, self.said.append)
        store.add("kv", Pool(engine.layout, geometry_of(engine.layout, "m", extras, TOKENS, rank, world, codec)))
        self.addCleanup(store.close)
        return store

    def keep(self, pool, store, pages, prefix=()) -> list:
        for i, name in enumerate(pages):
            pool.fill(i, name)
        return store.set("kv", pages, range(len(pages)), prefix)

    def comes(self, pool, store, pages, like) -> None:
        """All of these pages, into other places, as they were in like."""
        places = [PAGES - 1 - i for i in range(len(pages))]
        self.assertEqual(store.get("kv", pages, places), [True] * len(pages), self.said)
        for i, place in enumerate(places):
            self.assertEqual(pool.content(place), like.content(i), f"page {i}")


class Orders(Stored):
    def test_pages_of_every_order_are_the_same_pages(self):
        pools = [KvPool(order) for order in KV_AXES] + [KvPool("page_unified", HEADS)]
        for i, giver in enumerate(pools):
            pages = names(3, f"prompt {i}")
            self.assertEqual(self.keep(giver, self.store(giver), pages), [True] * 3)
            for taker in pools:
                store = self.store(taker)
                self.assertEqual(store.exists("kv", pages), 3)
                self.comes(taker, store, pages, giver)

    def test_latents_of_every_order_are_the_same_and_their_rotated_part_is_kept(self):
        pools = [LatentPool(order) for order in LATENT_AXES]
        for i, giver in enumerate(pools):
            for codec in (Codec.RAW, Codec.FP8, Codec.INT8):
                pages = names(2, f"prompt {i}")
                self.assertEqual(self.keep(giver, self.store(giver, codec), pages), [True] * 2, self.said)
                for taker in pools:
                    store = self.store(taker, codec)
                    if codec == Codec.RAW:
                        self.comes(taker, store, pages, giver)
                        continue
                    self.assertEqual(store.get("kv", pages, [5, 7]), [True, True])
                    for page, place in enumerate((5, 7)):
                        for (m, at, n), (o, there, _) in zip(giver.rows(page), taker.rows(place)):
                            self.assertEqual(m.view[at + DIM:at + n], o.view[there + DIM:there + n])
                            was, now = (list(map(bf16, view)) for view in (m.view[at:at + DIM],
                                                                           o.view[there:there + DIM]))
                            for a, b in zip(was, now):      # values are below 2: int8's step is 2/127 at most
                                self.assertLess(abs(a - b), abs(a) / 16 if codec == Codec.FP8 else 1 / 127)

    def test_bytes_of_an_unknown_order_come_back_as_they_were(self):
        memory = Memory("state", (PAGES, 600), "pd")
        base, parts = memory.tensor.memory, ((0, 400), (800, 400))      # a hole in between stays what it is
        layout = runs(lambda page: [(base + 1200 * page + at, n) for at, n in parts], PAGES, "x")
        self.assertEqual((layout.opaque_bytes, layout.pages), (800, PAGES))
        memory.view[:] = memoryview(random.Random(1).randbytes(2 * len(memory.view))).cast("H")
        store, before = self.store(type("", (), {"layout": layout})), bytes(memory.view)
        self.assertEqual(store.set("kv", names(2), [3, 9]), [True, True], self.said)
        for place in (3, 9):
            memory.view[600 * place:600 * (place + 1)] = memoryview(bytes(1200)).cast("H")
        self.assertEqual(store.get("kv", names(2), [3, 9]), [True, True])
        after = bytes(memory.view)
        for place in (3, 9):
            for at, n in parts:
                at += 1200 * place
                self.assertEqual(after[at:at + n], before[at:at + n])
            self.assertEqual(after[1200 * place + 400:1200 * place + 800], bytes(400))

    def test_a_pool_without_bytes_is_there_or_not(self):
        store = self.store(type("", (), {"layout": anchor()}))
        self.assertEqual(store.set("kv", names(3), [0, 0, 0]), [True] * 3, self.said)
        self.assertEqual((store.exists("kv", names(4)), store.get("kv", names(4), [0] * 4)),
                         (3, [True, True, True, False]))

    def test_layouts_that_are_not_known_are_refused(self):
        good = KvPool("layer_first").k.tensor
        self.assertEqual(page_bytes(planes([good], [good], "lshd", TOKENS), TOKENS),
                         2 * 2 * LAYERS * TOKENS * HEADS * DIM)
        strides = good.strides
        for bad, words in ((good._replace(shape=good.shape[1:]), "4 axes are expected"),
                           (good._replace(strides=(*strides[:3], 2)), "4 bytes apart"),
                           (good._replace(dtype="complex64"), "type complex64"),
                           (good._replace(shape=(LAYERS, 100, HEADS, DIM)), "no whole pages"),
                           (good._replace(shape=(LAYERS + 1, *good.shape[1:])), "V 3, of 1 kinds"),
                           (good._replace(shape=(*good.shape[:2], 2, DIM)), "of 2 kinds")):
            with self.assertRaisesRegex(LayoutError, words):
                planes([bad], [good], "lshd", TOKENS)
        with self.assertRaisesRegex(LayoutError, "more than 64 pieces"):
            planes([good._replace(memory=i << 20) for i in range(1, 70)], [], "lshd", TOKENS)
        with self.assertRaisesRegex(LayoutError, "no common stride"):
            shape, strides = (PAGES, 2, LAYERS, 2, TOKENS, 2, DIM), (9999, 4000, 1024, 512, 64, 32, 1)
            planes([Tensor("kv", "float16", shape, strides, 0, 4096, 1 << 20, False)], [], KV_AXES["page_unified"],
                   TOKENS)
        for at, words in ((lambda page: [], "no bytes"), (lambda page: [(4096 + page * page, 16)], "one stride"),
                          (lambda page: [(4096 + page * 64, 16 + (page == 3))], "one stride"),
                          (lambda page: [(4096 + (i << 20) + page * 64, 16) for i in range(70)], "64 pieces")):
            with self.assertRaisesRegex(LayoutError, words):
                runs(at, 4, "x")


def bf16(bits: int) -> float:
    return struct.unpack("f", struct.pack("I", bits << 16))[0]


class Contract(Stored):
    def setUp(self) -> None:
        super().setUp()
        self.pool = KvPool("page_first")
        self.pages = names(10)

    def test_another_engine_continues_where_one_stopped(self):
        store = self.store(self.pool)
        self.assertEqual(store.exists("kv", self.pages), 0)
        self.assertEqual(self.keep(self.pool, store, self.pages), [True] * 10)
        other, into = self.store(self.pool), KvPool("layer_first")
        self.assertEqual(other.exists("kv", [*self.pages, "more"]), 10)
        self.comes(into, self.store(into), self.pages, self.pool)
        self.assertEqual(other.get("kv", ["none", "nor this"], [0, 1]), [False, False])
        self.assertEqual((other.counts["missed"], other.counts["errors"]), (2, 0))

    def test_ranks_and_pools_keep_pages_of_their_own(self):
        self.keep(self.pool, self.store(self.pool, rank=0, world=2), self.pages)
        found = [self.store(self.pool, rank=rank, world=world, **extras).exists("kv", self.pages)
                 for rank, world, extras in
                 ((0, 2, {}), (1, 2, {}), (0, 1, {}), (0, 2, {"pp": "1/2"}), (0, 2, {"pool": "swa"}))]
        self.assertEqual(found, [10, 0, 0, 0, 0])

    def test_a_chain_goes_on_under_its_prefix_or_without_it(self):
        store = self.store(self.pool)
        self.keep(self.pool, store, self.pages[:4])
        self.assertEqual(self.keep(self.pool, store, self.pages[4:], self.pages[:4]), [True] * 6)
        self.assertEqual(store.exists("kv", self.pages), 10)
        late = names(3, "late")
        self.assertEqual(self.keep(self.pool, store, late, ["was evicted"]), [True] * 3)
        self.assertEqual(store.exists("kv", late, ["was evicted"]), 3)

    def test_pages_in_no_chain_are_there_one_by_one(self):
        store = self.store(self.pool)
        for i in (2, 5):
            self.pool.fill(i, self.pages[i])
        self.assertEqual(store.set("kv", [self.pages[2], self.pages[5]], [2, 5], alone=True), [True, True])
        self.assertEqual(store.present("kv", self.pages), [i in (2, 5) for i in range(10)])
        self.assertEqual(store.get("kv", [self.pages[5]], [0]), [True])
        self.assertEqual(self.pool.content(0), self.pool.content(5))

    def test_threads_use_a_store_beside_each_other(self):
        store, wrong = self.store(self.pool), []

        def work(number: int) -> None:
            for turn in range(20):
                page = f"{number} {turn}"
                self.pool.fill(number, page)
                before = self.pool.content(number)
                ok = store.set("kv", [page], [number]) == [True] and store.get("kv", [page], [10 + number]) == [True]
                if not ok or self.pool.content(10 + number) != before:
                    wrong.append(page)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((wrong, store.counts["errors"]), ([], 0))

    def test_an_engine_starts_before_the_daemon(self):
        self.daemon.kill()
        store = self.store(self.pool)
        self.assertEqual((store.exists("kv", self.pages), self.keep(self.pool, store, self.pages)), (0, [False] * 10))
        self.assertEqual((len(self.said), self.connects), (1, 1))      # not with every call
        self.daemon.start()
        self.until(lambda: all(self.keep(self.pool, store, self.pages)))
        self.assertEqual(store.exists("kv", self.pages), 10)

    def test_a_daemon_is_killed_under_the_engine(self):
        store = self.store(self.pool)
        self.keep(self.pool, store, self.pages)
        self.daemon.kill()
        self.assertEqual((store.exists("kv", self.pages), store.get("kv", self.pages, range(10)),
                          store.set("kv", self.pages, range(10))), (0, [False] * 10, [False] * 10))
        self.daemon.start()
        self.until(lambda: all(self.keep(self.pool, store, self.pages)))
        self.comes(self.pool, store, self.pages, self.pool)

    def test_a_daemon_stands_still_and_touches_no_page_after_the_answer(self):
        for load in (True, False):
            store = self.store(self.pool)
            self.until(lambda: all(self.keep(self.pool, store, self.pages)))
            other = self.store(self.pool)
            self.until(lambda: other.exists("kv", self.pages) == 10)     # its space is open
            self.assertTrue(all(other.get("kv", self.pages[:1], [19])))
            self.daemon.process.send_signal(signal.SIGSTOP)
            connects = self.connects
            ask = (lambda: other.get("kv", self.pages, range(10))) if load else (
                lambda: other.set("kv", names(10, "late"), range(10)))
            self.assertEqual(ask(), [False] * 10)
            self.assertEqual(ask(), [False] * 10)
            self.assertEqual(self.connects, connects)   # at once: it is known to be away
            for i in range(10):
                self.pool.fill(i, f"of another request {i}")
            before = [self.pool.content(i) for i in range(10)]
            self.daemon.process.send_signal(signal.SIGCONT)
            self.until(lambda: other.get("kv", self.pages[:1], [19]) == [True])
            self.assertEqual([self.pool.content(i) for i in range(10)], before)
            self.assertIn("stood still", "".join(self.said))
            store.close()
            self.until(lambda: self.daemon.stats()["clients"] == 1)     # the one that stood still was left
            other.close()

    def test_a_wrong_library_is_a_daemon_that_is_away(self):
        def connect():
            raise OSError("libkvtier cannot be loaded")

        store = Store(connect, TIMEOUT_MS, 0, self.said.append)
        store.add("kv", Pool(self.pool.layout, geometry_of(self.pool.layout, "m", {}, TOKENS, 0, 1, Codec.RAW)))
        self.assertEqual((store.exists("kv", self.pages), store.get("kv", self.pages, range(10))), (0, [False] * 10))
        self.assertIn("libkvtier", self.said[0])


class Spaces(unittest.TestCase):
    def test_known_values_may_be_fp8_others_are_raw(self):
        kv, state = KvPool("page_first").layout, runs(lambda page: [(4096 + 64 * page, 64)], 4, "x")
        self.assertEqual(geometry_of(kv, "m", {}, TOKENS, 0, 1, Codec.DEFAULT).codec, Codec.DEFAULT)
        self.assertEqual(geometry_of(state, "m", {}, TOKENS, 0, 1, Codec.FP8).codec, Codec.RAW)
        self.assertEqual({segment.kind for segment in state.segments}, {Kind.OPAQUE})
        self.assertEqual((kv.dtype, kv.heads, kv.dim_k, kv.dim_v), (Dtype.BF16, HEADS, DIM, DIM))
        other = runs(lambda page: [(4096 + 64 * page, 32), (4128 + 64 * page, 32)], 4, "x")
        self.assertEqual((state.opaque_bytes, state.pages), (other.opaque_bytes, other.pages))
        self.assertNotEqual(geometry_of(state, "m", {}, 8, 0, 1, Codec.RAW).extras,
                            geometry_of(other, "m", {}, 8, 0, 1, Codec.RAW).extras)
