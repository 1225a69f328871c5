# SPDX-License-Identifier: Apache-2.0
"""The cases of sys_python_engines.sh."""
import ctypes as C
import errno
import os
import random
import re
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "client" / "examples"), str(TREE / "client" / "python")]

from kvtier import Client, Codec, Dtype, Error, Kind, Tier  # noqa: E402
from kvtier.block_cache import BlockCache, named  # noqa: E402
from kvtier.transformers import Layout, fingerprint, why_not  # noqa: E402
from kvtier.vllm_core import (LayoutError, Scheduler, Tensor, Worker, files_of, geometry_of,  # noqa: E402
                               layout_of, root_of)
from llama_demo import Daemon  # noqa: E402

BUILD = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else TREE / "build"
CONFIG = "[host]\nbytes = 64M\nslab_bytes = 4M\nhuge_pages = no\n[nvme]\nbytes = 0\n"
PATIENT_S = 60


class Engine:
    """Its KV of a token depends on all tokens up to it, as a real engine's does."""

    def __init__(self, client, pages: int = 3, **options) -> None:
        self.layout = Layout(Dtype.FP16, 2, 2, 16, 16, 8)
        self.cache = BlockCache(client, self.layout.geometry("engine@1", "", Codec.RAW), self.layout.segments(),
                                self.layout.page_bytes, self.layout.stride, pages, timeout_ms=2000, prefetch_ms=0,
                                **options)
        self.tokens, self.blocks = [], []

    def computed(self, position: int) -> bytes:
        seed = hash(tuple(self.tokens[:position + self.layout.tokens]))
        return random.Random(seed).randbytes(self.layout.page_bytes)

    def answer(self, tokens):
        """As a real one: fetch, compute the rest, store. The blocks that it continued from, and what was said."""
        self.tokens, self.blocks = list(tokens), []
        got = self.cache.fetch(tokens, lambda page, _: self.blocks.append(bytes(page)), len(tokens) - 1)
        for i, block in enumerate(self.blocks):
            assert block == self.computed(i * self.layout.tokens), f"block {i} is not what was computed for it"
        assert got.tokens == len(self.blocks) * self.layout.tokens
        stored = self.cache.store(tokens, lambda page, at: page.__setitem__(slice(None), self.computed(at)), got.tokens)
        return got, stored


class Contract(unittest.TestCase):
    def setUp(self) -> None:
        work = tempfile.TemporaryDirectory(prefix="kvtier-test-")
        self.addCleanup(work.cleanup)
        self.daemon = Daemon(BUILD, Path(work.name), CONFIG)
        self.addCleanup(self.daemon.close)
        self.tokens = list(range(83))       # ten full blocks

    def engine(self, pages: int = 3) -> Engine:
        engine = Engine(lambda: Client(self.daemon.socket, name="contract", timeout_ms=2000), pages)
        self.addCleanup(engine.cache.close)
        return engine

    def until(self, holds) -> None:
        end = time.monotonic() + PATIENT_S
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_another_engine_continues_where_one_stopped(self):
        got, stored = self.engine().answer(self.tokens)
        self.assertEqual((got.tokens, stored.blocks, stored.kept, stored.error), (0, 10, 10, None))
        got, stored = self.engine(pages=4).answer(self.tokens + [5] * 8)
        self.assertEqual((got.tokens, got.tiers, stored.blocks), (80, Tier.HOST, 1))

    def test_a_token_is_left_to_compute(self):
        engine = self.engine()
        engine.answer(self.tokens[:80])
        self.assertEqual(engine.answer(self.tokens[:80])[0].tokens, 72)

    def test_an_engine_that_gives_no_block_stores_nothing_under_its_key(self):
        engine = self.engine()
        wrong = Error(errno.EBADMSG, "the engine does not hold it")

        def give(page, at):
            if at == 16:
                raise wrong
            page[:] = engine.computed(at)

        engine.tokens = self.tokens
        self.assertIs(engine.cache.store(self.tokens, give).error, wrong)
        self.assertLessEqual(engine.answer(self.tokens)[0].tokens, 16)

    def test_an_engine_starts_before_the_daemon(self):
        self.daemon.kill()
        engine = self.engine()
        got, stored = engine.answer(self.tokens)
        self.assertEqual((got.tokens, stored.kept), (0, 0))
        self.assertIsInstance(got.error, Error)
        self.daemon.start()
        self.until(lambda: engine.answer(self.tokens)[0].tokens == 80)

    def test_a_daemon_is_killed_under_the_engine(self):
        engine = self.engine()
        engine.answer(self.tokens)
        self.daemon.kill()
        self.assertEqual(engine.answer(self.tokens)[0].tokens, 0)
        self.daemon.start()
        self.until(lambda: engine.answer(self.tokens)[0].tokens == 80)

    def test_a_daemon_stands_still_under_the_engine(self):
        engine = self.engine()
        engine.answer(self.tokens)
        self.daemon.process.send_signal(signal.SIGSTOP)
        for _ in range(2):
            engine.answer(self.tokens)      # its bytes are checked there
        self.daemon.process.send_signal(signal.SIGCONT)
        self.until(lambda: engine.answer(self.tokens)[0].tokens == 80)

    def test_a_daemon_that_stood_still_is_replaced(self):
        engine = self.engine()
        engine.answer(self.tokens)
        self.daemon.process.send_signal(signal.SIGSTOP)
        engine.answer(self.tokens)      # its pages are lent from now on
        self.daemon.kill()              # a watchdog would
        self.daemon.start()
        self.until(lambda: engine.answer(self.tokens)[0].tokens == 80)


class Names(unittest.TestCase):
    def test_long_texts_that_differ_are_different_names(self):
        texts = ["a" * 255, "a" * 256, "b" + "a" * 255, "a" * 255 + "b", "\u00e9" * 200]
        names = [named(text) for text in texts]
        self.assertEqual(names[0], texts[0])
        self.assertEqual(len(set(names)), len(texts))
        self.assertLessEqual(max(len(name.encode()) for name in names), 255)

    def test_weights_that_are_replaced_in_their_place_are_others(self):
        with tempfile.TemporaryDirectory() as work:
            file = Path(work) / "model.safetensors"
            file.write_bytes(b"old")
            before = files_of(work)
            self.assertEqual(files_of(work), before)
            file.write_bytes(b"new")
            os.utime(file, ns=(1, 1))
            self.assertNotIn(files_of(work), ("", before))
        self.assertEqual((files_of(work), files_of(None)), ("", ""))


class OfTransformers(unittest.TestCase):
    def test_a_page_holds_each_plane_once(self):
        layout = Layout(Dtype.BF16, 3, 2, 64, 32, 16)
        self.assertEqual(layout.page_bytes, 3 * 2 * 16 * (64 + 32) * 2)
        at = 0
        for segment in layout.segments():
            dim = 64 if segment.kind == Kind.K else 32
            self.assertEqual((segment.offset, segment.token_stride, segment.head_stride), (at, 2 * dim, 16 * 2 * dim))
            at += 2 * segment.head_stride
        self.assertEqual(at, layout.page_bytes)

    def test_calls_that_are_not_served_have_a_reason(self):
        self.assertEqual(why_not(1, True, {"max_new_tokens": 4, "num_beams": 1, "use_cache": True}), "")
        for rows, whole, keywords, reason in (
                (2, True, {}, "batch"), (1, False, {}, "mask"), (1, True, {"inputs_embeds": 1}, "inputs_embeds"),
                (1, True, {"past_key_values": 1}, "past_key_values"), (1, True, {"num_beams": 4}, "num_beams"),
                (1, True, {"num_return_sequences": 2}, "num_return"), (1, True, {"use_cache": False}, "use_cache")):
            self.assertIn(reason, why_not(rows, whole, keywords))

    def test_a_fingerprint_tells_names_shapes_and_values(self):
        weights = [("a", "float32 (2,)", b"12345678"), ("b", "float32 (1,)", b"1234")]
        others = [[("a", "float32 (2,)", b"12345679"), weights[1]], [("a", "float32 (1, 2)", b"12345678"), weights[1]],
                  [("c", "float32 (2,)", b"12345678"), weights[1]], weights[:1],
                  [("a", "float32 (2,)", b"1234567"), ("b", "float32 (1,)", b"81234")]]
        prints = {fingerprint(iter(w)) for w in [weights, *others]}
        self.assertEqual(len(prints), len(others) + 1)


class PagedEngine:
    """As vLLM drives its connector: a scheduler and a worker with a paged cache of private memory, K and V apart."""
    BLOCKS, TOKENS, VALUES = 40, 8, 128

    def __init__(self, daemon) -> None:
        size = 2 * self.BLOCKS * self.VALUES * 2
        self.memory = [bytearray(size) for _ in range(2)]
        tensors = [Tensor(f"layer.{i}", "float16", (2, self.BLOCKS, self.VALUES), (self.BLOCKS * self.VALUES,
                   self.VALUES, 1), 0, C.addressof(C.c_char.from_buffer(m)), size, False)
                   for i, m in enumerate(self.memory)]
        layout = layout_of(tensors, self.BLOCKS)
        geometry = geometry_of(layout, "paged@1", "", self.TOKENS, 2, 0, 1, Codec.RAW)
        self.clients = []

        def client():
            self.clients.append(Client(daemon.socket, timeout_ms=2000))
            return self.clients[-1]

        def worker():
            own = client()
            return own, own.open_space(geometry, layout.regions, layout.segments)

        self.scheduler = Scheduler(self.TOKENS, lambda: [client().open_space(geometry)])
        self.worker = Worker(worker, 2)
        self.free, self.number = list(range(self.BLOCKS)), 0

    def close(self) -> None:
        self.worker.wait()
        for client in self.clients:
            client.close()

    def computed(self, tokens, block: int) -> list:
        """The bytes of a block in each run of values: they depend on all tokens before its end."""
        random_of = random.Random(hash(tuple(tokens[:(block + 1) * self.TOKENS])))
        return [random_of.randbytes(self.VALUES * 2) for _ in range(4)]

    def _runs(self, page: int):
        for m in self.memory:
            for half in range(2):
                at = (half * self.BLOCKS + page) * self.VALUES * 2
                yield m, slice(at, at + self.VALUES * 2)

    def answer(self, tokens, root=None) -> int:
        """One request from its arrival until its blocks are free again. How many blocks were loaded."""
        self.number += 1
        name, n = f"r{self.number}", len(tokens) // self.TOKENS
        pages, self.free = self.free[:n + 1], self.free[n + 1:]
        self.scheduler.add(name, lambda: tokens, root)
        matched = self.scheduler.matched(name, 0, len(tokens) - 1)
        loaded = matched // self.TOKENS
        if matched:
            self.scheduler.allocated(name, pages, matched)
            self.worker.load(self.scheduler.take_loads())
            self._until(lambda: name in self.worker.finished(set())[1])
            failed = self.worker.failed_blocks()
            bad = [i for i in range(loaded) if pages[i] in failed]
            loaded = bad[0] if bad else loaded
        for i in range(loaded):
            for (m, where), content in zip(self._runs(pages[i]), self.computed(tokens, i)):
                assert m[where] == content, f"block {i} is not what was computed for it"
        for i in range(loaded, n):
            for (m, where), content in zip(self._runs(pages[i]), self.computed(tokens, i)):
                m[where] = content
        saves = []
        self.scheduler.step(name, loaded * self.TOKENS, len(tokens) - loaded * self.TOKENS, pages, True, saves)
        self.worker.save(saves)
        if self.scheduler.finished(name):
            ended = {name}
            self._until(lambda: name in self.worker.finished(ended)[0] or ended.clear())
        for page in pages:      # they are others' now
            for m, where in self._runs(page):
                m[where] = bytes(self.VALUES * 2)
        self.free += pages
        return loaded

    def _until(self, holds) -> None:
        end = time.monotonic() + PATIENT_S
        while not holds():
            assert time.monotonic() < end, "a request waits for ever"
            time.sleep(0.001)


class OfVllm(unittest.TestCase):
    def setUp(self) -> None:
        work = tempfile.TemporaryDirectory(prefix="kvtier-test-")
        self.addCleanup(work.cleanup)
        self.daemon = Daemon(BUILD, Path(work.name), CONFIG)
        self.addCleanup(self.daemon.close)
        self.tokens = list(range(83))       # ten full blocks

    def engine(self) -> PagedEngine:
        engine = PagedEngine(self.daemon)
        self.addCleanup(engine.close)
        return engine

    def until_loaded(self, engine, n: int) -> None:
        end = time.monotonic() + PATIENT_S
        while engine.answer(self.tokens) < n:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_another_engine_continues_where_one_stopped(self):
        self.assertEqual(self.engine().answer(self.tokens), 0)
        other = self.engine()
        self.assertEqual([other.answer(self.tokens + [7] * 9), other.answer(self.tokens + [7] * 9)], [10, 11])

    def test_another_root_is_another_prompt(self):
        engine, lora = self.engine(), root_of({"lora": ("a", "/a"), "salt": None})
        engine.answer(self.tokens)
        self.assertEqual([engine.answer(self.tokens, lora), engine.answer(self.tokens, lora)], [0, 10])

    def test_a_daemon_is_killed_and_comes_back(self):
        engine = self.engine()
        engine.answer(self.tokens)
        self.daemon.kill()
        self.assertEqual(engine.answer(self.tokens), 0)
        self.daemon.start()
        self.until_loaded(engine, 10)

    def test_a_daemon_stands_still(self):
        engine = self.engine()
        engine.answer(self.tokens)
        self.daemon.process.send_signal(signal.SIGSTOP)
        for _ in range(2):
            engine.answer(self.tokens)
        self.daemon.process.send_signal(signal.SIGCONT)
        self.until_loaded(engine, 10)

    def test_an_engine_starts_before_the_daemon(self):
        self.daemon.kill()
        engine = self.engine()
        self.assertEqual(engine.answer(self.tokens), 0)
        self.daemon.start()
        self.until_loaded(engine, 10)

    def test_tokens_that_are_only_guessed_fill_no_block(self):
        engine, tokens, saves = self.engine(), self.tokens[:20], []
        engine.scheduler.add("r", lambda: tokens, None)
        engine.scheduler.matched("r", 0, 19)
        engine.scheduler.step("r", 0, 30, range(4), True, saves)
        self.assertEqual([t.pages for t in saves], [[0, 1]])
        tokens = self.tokens[:26]
        engine.scheduler.step("r", 25, 3, [], False, saves)
        self.assertEqual([t.pages for t in saves], [[0, 1], [2]])

    def test_blocks_that_did_not_come_are_saved_when_they_are_computed(self):
        engine, saves = self.engine(), []
        engine.answer(self.tokens)
        engine.scheduler.add("r", lambda: self.tokens, None)
        self.assertEqual(engine.scheduler.matched("r", 16, 82), 64)
        engine.scheduler.allocated("r", range(11), 64)
        self.assertEqual([t.pages for t in engine.scheduler.take_loads()], [list(range(2, 10))])
        engine.scheduler.step("r", 40, 43, range(11), True, saves)      # five of them came
        self.assertEqual([t.pages for t in saves], [list(range(5, 10))])

    def test_layouts_that_are_not_known_are_refused(self):
        good = Tensor("l", "bfloat16", (9, 4, 8, 16), (512, 128, 16, 1), 0, 4096, 9216, False)
        self.assertEqual(layout_of([good], 9)[2:], (Dtype.BF16, 1, 512))
        permuted = good._replace(strides=(512, 16, 64, 1))
        self.assertEqual(layout_of([permuted], 9).values, 512)
        for bad, words in ((good._replace(strides=(1024, 128, 16, 2)), "holes"), (good._replace(shape=(8, 4, 8, 16)),
                           "begins neither"), (good._replace(dtype="complex64"), "type complex64")):
            with self.assertRaisesRegex(LayoutError, words):
                layout_of([bad], 9)
        with self.assertRaisesRegex(LayoutError, "one size"):
            layout_of([good, good._replace(shape=(9, 4, 8, 8), strides=(256, 64, 8, 1), memory=1 << 20)], 9)


class Package(unittest.TestCase):
    def test_its_version_is_the_projects(self):
        project = re.search(r'^version = "(.*)"$', (TREE / "client/python/pyproject.toml").read_text(), re.M)[1]
        self.assertEqual(project, re.search(r"^VERSION := (.*)$", (TREE / "Makefile").read_text(), re.M)[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
