# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=15
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: the adapters keep their contract with an engine: it gets the bytes that it gave, or fewer, and never an exception,
whatever becomes of the daemon; and what an adapter cannot serve is computed without kvtier.
Method: engines of the standard library alone, against a kvtierd of their own. The real engines: make test-engines.
"""
import ctypes as C
import errno
import functools
import os
import random
import re
import signal
import struct
import tempfile
import threading
import time
import unittest
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from kvtier import Client, Codec, Dtype, Error, Kind, SharedMemory, Space, Tier
from kvtier.block_cache import BlockCache, named
from kvtier.adapters.transformers_calls import why_not
from kvtier.adapters.transformers_model import Layout
from kvtier.adapters import vllm_core
from kvtier.adapters.vllm_core import Limits, Scheduler, Worker, is_named, root_of
from kvtier.adapters.vllm_events import Events
from kvtier.adapters.vllm_layout import (LayoutError, Tensor, geometry_of, layout_of, overrides_of,
                                         why_no_group, why_no_states)
from world import PATIENT_S, TREE, World


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


class Contract(World):
    tokens = list(range(83))        # ten full blocks

    def engine(self, pages: int = 3) -> Engine:
        engine = Engine(lambda: Client(self.daemon.socket, name="contract", timeout_ms=2000), pages)
        self.addCleanup(engine.cache.close)
        return engine

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
        def why(*levels, rows=1):
            return why_not((rows, 3), [5, 6, 7], {"num_beams", "use_mtp"}, *levels)

        self.assertEqual(why({"max_new_tokens": 4, "num_beams": 1, "use_cache": True, "token_healing": False}), "")
        for levels, reason in (
                ([{"inputs_embeds": 1}], "inputs_embeds"),
                ([{"pixel_values": [1]}], "pixel_values is given, which may"),
                ([{"past_key_values": 1}], "past_key_values is"),
                ([{"num_beams": 4}], "num_beams is 4"), ([{"num_return_sequences": 2}], "num_return"),
                ([{"use_cache": False}], "use_cache is False"), ([{"custom_generate": len}], "custom_generate is"),
                ([{}, {"num_beams": 4}], "num_beams"), ([{}, {}, {"use_mtp": True}], "use_mtp"),
                ([{"num_beams": None}, {"num_beams": 4}], "num_beams"), ([{"pad_token_id": 6}], "padding"),
                ([{}, {"eos_token_id": 8}, {"pad_token_id": 6}], "padding")):
            self.assertIn(reason, why(*levels))
        self.assertIn("batch", why({}, rows=2))
        for levels in ([{"num_beams": 1}, {"num_beams": 4}], [{}, {"a_hubs_own": 3}], [{"pad_token_id": 9}],
                       [{}, {"eos_token_id": [6]}, {"pad_token_id": 6}]):
            self.assertEqual(why(*levels), "")


class PagedEngine:
    """As vLLM drives its connector: a scheduler, and a worker of each rank with a paged cache, K and V apart, of each
    group. window: of all groups but the first one, in blocks; 0: none. states: groups that have a page at the end of
    what was loaded, and at that of what was computed. shared: the cache lies in memory that the daemon maps, else it is
    private. patient: its start waits for the daemon."""
    BLOCKS, TOKENS, VALUES = 80, 8, 128

    def __init__(self, daemon, groups: int = 1, ranks: int = 1, window: int = 0, shared: bool = False,
                 timeout_s: int = 1, patient: bool = True, states: tuple = ()) -> None:
        size = 2 * self.BLOCKS * self.VALUES * 2
        self.groups, self.ranks, self.window, self.states = groups, ranks, window, states
        # a block number belongs to one group at a time, so groups may lie over each other
        self.memory = [[bytearray(size) for _ in range(2)] for _ in range(ranks)]
        shared_memory = [SharedMemory(size) for _ in range(2)] if shared else []
        if shared:
            self.memory = [[(C.c_char * size).from_address(memory.address) for memory in shared_memory]]
        self.planned = []
        layouts = []
        for memory in self.memory:
            tensors = [Tensor(f"layer.{i}", "float16", (2, self.BLOCKS, self.VALUES), (self.BLOCKS * self.VALUES,
                       self.VALUES, 1), 0, C.addressof(C.c_char.from_buffer(m)), size, False)
                       for i, m in enumerate(memory)]
            layouts.append(layout_of(tensors, self.BLOCKS))
        geometries = [[geometry_of(layout, "paged@1", f"group={group}", self.TOKENS, 2, rank, ranks, Codec.RAW)
                       for group in range(groups)] for rank, layout in enumerate(layouts)]

        def client():
            return Client(daemon.socket, timeout_ms=1000 * timeout_s)

        def worker(rank: int):
            own, layout = client(), layouts[rank]
            regions = [memory.region() for memory in shared_memory] or layout.regions
            return own, [own.open_space(g, regions, layout.segments) for g in geometries[rank]]

        def scheduler():
            own = client()
            return own, [[own.open_space(g) for g in rank] for rank in geometries]

        self.free, self.number = list(range(1, self.BLOCKS)), 0
        self.held, self.wanted = Counter(), set()       # pages that kvtier holds, and those of them that are free else
        self.scheduler = Scheduler(self.TOKENS, scheduler, self.held.update, self._free_held, groups=groups,
                                   workers=ranks, planned=lambda *what: self.planned.append(what), timeout_s=timeout_s,
                                   states=states)
        self.workers = [Worker(lambda rank=rank: worker(rank), timeout_s, rank=rank, whole=groups > 1)
                        for rank in range(ranks)]
        end = time.monotonic() + PATIENT_S
        for line in (self.scheduler._line, *(worker._line for worker in self.workers)):
            while patient and not line.get() and not line.why and time.monotonic() < end:
                time.sleep(0.001)

    def close(self) -> None:
        for part in (*self.workers, self.scheduler):
            part.close()

    def computed(self, tokens, block: int, group: int, rank: int) -> list:
        """The bytes of a block in each run of values: they depend on all tokens before its end."""
        random_of = random.Random(hash((group, rank, *tokens[:(block + 1) * self.TOKENS])))
        return [random_of.randbytes(self.VALUES * 2) for _ in range(4)]

    def _runs(self, page: int, rank: int):
        for m in self.memory[rank]:
            for half in range(2):
                at = (half * self.BLOCKS + page) * self.VALUES * 2
                yield m, slice(at, at + self.VALUES * 2)

    def _put(self, tokens, block: int, group: int, page: int) -> None:
        for rank in range(self.ranks):
            for (m, where), content in zip(self._runs(page, rank), self.computed(tokens, block, group, rank)):
                m[where] = content

    def _check(self, tokens, block: int, group: int, page: int) -> None:
        for rank in range(self.ranks):
            for (m, where), content in zip(self._runs(page, rank), self.computed(tokens, block, group, rank)):
                assert m[where] == content, f"block {block} of group {group}, rank {rank} is not what was computed"

    def _pages(self, n: int, loaded: int) -> list:
        """Of each group: a page of each block, but none for the first ones of a group with a window."""
        ret = []
        for group in range(self.groups):
            if group in self.states:
                ret.append([self.free.pop(0) if i in (loaded - 1, n - 2) else 0 for i in range(n)])
                continue
            none = max(0, loaded - self.window) if group and self.window else 0
            own, self.free = self.free[:n - none], self.free[n - none:]
            ret.append([0] * none + own)
        return ret

    def _give_back(self, pages) -> None:
        """They are others' now, but for those that kvtier holds."""
        for page in (page for own in pages for page in own if page):
            if self.held[page]:
                self.wanted.add(page)
                continue
            for rank in range(self.ranks):
                for m, where in self._runs(page, rank):
                    m[where] = bytes(self.VALUES * 2)
            self.free.append(page)

    def _free_held(self, pages) -> None:
        self.held.subtract(pages)
        again = {page for page in self.wanted if not self.held[page]}
        self.wanted -= again
        self._give_back([again])

    def hear(self) -> None:
        """What the engine does after each step."""
        for worker in self.workers:
            worker.poll()
            self.scheduler.over(Counter(worker.over()))

    def answer(self, tokens, root=None, hints=()) -> int:
        """One request from its arrival until its blocks are free again. How many blocks were loaded."""
        self.number += 1
        name, n = f"r{self.number}", len(tokens) // self.TOKENS
        self.scheduler.add(name, lambda: tokens, root, hints)
        matched = self.scheduler.matched(name, 0, len(tokens) - 1)
        loaded = matched // self.TOKENS
        pages = self._pages(n + 1, loaded)
        if matched:
            self.scheduler.allocated(name, pages, matched)
            loaded = self._load(name, pages, loaded)
            if not loaded and self.groups > 1:      # computed from the beginning, with blocks of its own
                self._give_back(pages)
                pages = self._pages(n + 1, 0)
                assert self.scheduler.matched(name, 0, len(tokens) - 1) == 0, "what was not there is promised again"
        for group, own in enumerate(pages):
            for i in range(loaded):
                if own[i]:
                    self._check(tokens, i, group, own[i])
            for i in range(loaded, n):
                if own[i]:
                    self._put(tokens, i, group, own[i])
        saves = []
        self.scheduler.step(name, loaded * self.TOKENS, len(tokens) - loaded * self.TOKENS, pages, True, saves)
        self.scheduler.offered(name, [(group, pages[group][n - 1], n * self.TOKENS) for group in self.states], saves)
        for worker in self.workers:
            worker.save(saves)
        self.scheduler.finished(name)
        self._give_back(pages)
        self._until(lambda: self.hear() or not self.scheduler.busy)
        return loaded

    def _load(self, name: str, pages, loaded: int) -> int:
        loads, failed, requests = self.scheduler.take_loads(), set(), set()
        for worker in self.workers:
            worker.load(loads)
        for worker in self.workers:
            self._until(lambda: name in worker.received())
            failed |= worker.failed_blocks()
            requests |= worker.failed_requests({name})
        self.scheduler.loaded({name}, failed, requests)
        bad = [i for i in range(loaded) if pages[0][i] in failed]
        return 0 if requests else bad[0] if bad else loaded

    def _until(self, holds) -> None:
        end = time.monotonic() + PATIENT_S
        while not holds():
            assert time.monotonic() < end, "a request waits for ever"
            time.sleep(0.001)


class OfVllm(World):
    tokens = list(range(83))        # ten full blocks

    def setUp(self) -> None:
        super().setUp()
        often = mock.patch.object(vllm_core, "AGAIN_S", 0.2)
        often.start()
        self.addCleanup(often.stop)

    def engine(self, **how) -> PagedEngine:
        engine = PagedEngine(self.daemon, **how)
        self.addCleanup(engine.close)
        return engine

    def until_loaded(self, engine, n: int) -> None:
        self.until(lambda: engine.answer(self.tokens) >= n)

    def test_another_engine_continues_where_one_stopped(self):
        self.assertEqual(self.engine().answer(self.tokens), 0)
        other = self.engine()
        self.assertEqual([other.answer(self.tokens + [7] * 9), other.answer(self.tokens + [7] * 9)], [10, 11])

    def test_a_prompt_with_embeddings_is_not_named_by_its_tokens(self):
        self.assertTrue(is_named(SimpleNamespace(prompt_token_ids=[1, 2])))         # an older vLLM
        self.assertTrue(is_named(SimpleNamespace(prompt_token_ids=[1, 2], prompt_embeds=None)))
        self.assertFalse(is_named(SimpleNamespace(prompt_token_ids=[1, 0], prompt_embeds=object())))
        self.assertFalse(is_named(SimpleNamespace(prompt_token_ids=None, prompt_embeds=object())))

    def test_what_a_user_overrides_is_in_the_name_of_a_space(self):
        self.assertEqual([overrides_of(none) for none in (None, {})], ["", ""])
        self.assertEqual(overrides_of({"a": 1, "rope": {"b": 2, "c": 3}}),
                         overrides_of({"rope": {"c": 3, "b": 2}, "a": 1}))
        self.assertNotEqual(overrides_of({"rope_theta": 1}), overrides_of({"rope_theta": 2}))
        self.assertNotEqual(overrides_of(lambda config: config), "")

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
        for shared in (False, True):        # pages that the daemon maps are taken back
            engine = self.engine(shared=shared)
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
        engine.scheduler.step("r", 0, 30, [range(1, 5)], True, saves)
        self.assertEqual([t.pages for t in saves], [[1, 2]])
        tokens = self.tokens[:26]
        engine.scheduler.step("r", 25, 3, None, False, saves)
        self.assertEqual([t.pages for t in saves], [[1, 2], [3]])

    def test_blocks_that_did_not_come_are_saved_when_they_are_computed(self):
        engine, saves = self.engine(), []
        engine.answer(self.tokens)
        engine.scheduler.add("r", lambda: self.tokens, None)
        self.assertEqual(engine.scheduler.matched("r", 16, 82), 64)
        engine.scheduler.allocated("r", [range(1, 12)], 64)
        self.assertEqual([t.pages for t in engine.scheduler.take_loads()], [list(range(3, 11))])
        self.daemon.ctl("purge", "--tenant", "default")
        engine.scheduler.step("r", 40, 43, [range(1, 12)], True, saves)     # five of them came
        self.assertEqual([t.pages for t in saves], [list(range(6, 11))])

    def test_every_rank_has_its_part(self):
        self.engine(ranks=2).answer(self.tokens)
        self.assertEqual(self.engine(ranks=2).answer(self.tokens), 10)

    def test_every_group_has_its_part(self):
        self.engine(groups=3).answer(self.tokens)
        other = self.engine(groups=3)
        self.assertEqual([other.answer(self.tokens + [7] * 9), other.answer(self.tokens + [7] * 9)], [10, 11])

    def test_a_window_needs_the_blocks_in_it_alone(self):
        self.engine(groups=2, window=3, ranks=2).answer(self.tokens)
        other = self.engine(groups=2, window=3, ranks=2)
        self.assertEqual([other.answer(self.tokens + [7] * 9), other.answer(self.tokens + [7] * 9)], [10, 11])

    def test_a_prompt_continues_from_the_last_block_that_has_states(self):
        how = dict(groups=3, ranks=2, states=(0, 2))
        self.engine(**how).answer(self.tokens)
        other = self.engine(**how)
        self.assertEqual([other.answer(self.tokens + [7] * 9), other.answer(self.tokens + [7] * 9)], [10, 11])
        branch = self.tokens[:60] + [9] * 23        # it leaves in front of the first state
        self.assertEqual([other.answer(branch), other.answer(branch)], [0, 10])
        shorter = self.tokens[:-9]                  # and this one ends there
        self.assertEqual([other.answer(shorter), other.answer(shorter)], [0, 9])

    def test_states_that_nobody_may_continue_from_are_not_kept(self):
        engine, saves = self.engine(groups=2, states=(0,)), []
        engine.scheduler.add("r", lambda: self.tokens, None, limits=Limits(save=64))
        engine.scheduler.step("r", 0, 83, [[0] * 10 + [1], list(range(2, 13))], True, [])
        for state in ((1, 5, 64), (0, 0, 64), (0, 5, 60), (0, 5, 0), (0, 5, 72), (0, 5, 88)):
            engine.scheduler.offered("r", [state], saves)
        self.assertEqual(saves, [])
        engine.scheduler.offered("r", [(0, 5, 64)], saves)
        self.assertEqual([(t.group, t.pages, t.parents) for t in saves], [(0, [5], [None])])
        engine.scheduler.reset()
        engine.scheduler.offered("r", [(0, 6, 56)], saves)
        self.assertEqual(len(saves), 1)

    def test_a_block_without_every_group_is_a_miss(self):
        self.engine().answer(self.tokens)       # its blocks are the first of two groups
        engine = self.engine(groups=2)
        self.assertEqual((engine.answer(self.tokens), engine.workers[0].counts["loads"]), (0, 0))
        self.assertEqual(engine.answer(self.tokens), 10)

    def test_a_load_of_groups_is_whole_or_its_request_is_computed(self):
        engine = self.engine(groups=2)
        engine.answer(self.tokens)
        line = engine.workers[0]._line.get()
        spaces = line[1]
        spaces[1], broken = spaces[0], spaces[1]    # the second group's blocks are not there under these keys
        self.assertEqual(engine.answer(self.tokens), 0)
        spaces[1] = broken
        self.assertEqual(engine.answer(self.tokens), 10)

    def test_what_a_daemon_promised_and_did_not_give_is_asked_once(self):
        engine = self.engine()
        engine.answer(self.tokens)
        worker = engine.workers[0]
        with mock.patch.object(worker._line, "get", lambda: None):
            self.assertEqual(engine.answer(self.tokens), 0)
            engine.scheduler.add("r", lambda: self.tokens, None)
            self.assertEqual(engine.scheduler.matched("r", 0, 82), 80)
            engine.scheduler.allocated("r", [range(1, 12)], 80)
            worker.load(engine.scheduler.take_loads())
            received = worker.received()
            engine.scheduler.loaded(received, worker.failed_blocks(), ())
        self.assertEqual((received, engine.scheduler.matched("r", 0, 82)), ({"r"}, 0))

    def test_blocks_that_are_kept_are_not_copied_again(self):
        engine, saves = self.engine(), []
        engine.answer(self.tokens)
        engine.scheduler.add("r", lambda: self.tokens, None)
        engine.scheduler.step("r", 40, 43, [range(1, 12)], True, saves)     # the engine had five of them
        self.assertEqual([t.pages for t in saves], [[10]])      # the last one: so the chain is in use

    def test_blocks_are_held_until_every_worker_has_read_them(self):
        engine, saves = self.engine(ranks=2), []
        engine.scheduler.add("r", lambda: self.tokens, None)
        engine.scheduler.step("r", 0, 83, [range(1, 12)], True, saves)
        engine.scheduler.preempted({"r"})
        engine.scheduler.finished("r")
        for worker in engine.workers:
            self.assertEqual((sum(engine.held.values()), engine.scheduler.busy), (10, True))
            worker.save(saves)
            worker.end()
            engine.scheduler.over(Counter(worker.over()))
        self.assertEqual((sum(engine.held.values()), engine.scheduler.busy), (0, False))

    @staticmethod
    def running(worker) -> list:
        """The ops of a worker, when all of its transfers are ops."""
        worker._submitting.exception()
        return [running.op.id for running in worker._running.values()]

    def test_pages_of_a_daemon_that_stands_still_are_held_and_their_request_is_computed(self):
        engine = self.engine(shared=True)
        engine.answer(self.tokens)
        engine.scheduler.add("r", lambda: self.tokens, None)
        engine.scheduler.allocated("r", [range(1, 12)], engine.scheduler.matched("r", 0, 82))
        self.daemon.process.send_signal(signal.SIGSTOP)
        worker = engine.workers[0]
        worker.load(engine.scheduler.take_loads())
        still = self.running(worker)        # as if the daemon had just begun it
        with mock.patch.object(vllm_core, "lent", lambda: [SimpleNamespace(op=op) for op in still]), \
                mock.patch.object(vllm_core, "LENT_LOOK_S", 0):
            engine._until(lambda: "r" in worker.received())
            self.assertEqual((worker.failed_requests({"r"}), worker.failed_blocks()), ({"r"}, set()))
            engine.hear()
            self.assertEqual(sum(engine.held.values()), 10)
            engine.scheduler._busy_until = 0.0
            self.assertFalse(engine.scheduler.busy)         # no step makes a daemon go on
            still.clear()
            engine.hear()
            self.assertEqual(sum(engine.held.values()), 0)
        self.daemon.process.send_signal(signal.SIGCONT)

    def test_no_call_waits_for_a_daemon_that_stands_still(self):
        """A call that did would wait for an hour."""
        engine, saves = self.engine(shared=True, timeout_s=3600), []
        engine.answer(self.tokens)
        for name in ("before", "while"):
            engine.scheduler.add(name, lambda: self.tokens, None)
            self.assertEqual(engine.scheduler.matched(name, 0, 82), 80)
        self.daemon.process.send_signal(signal.SIGSTOP)
        worker = engine.workers[0]
        engine.scheduler.allocated("while", [range(1, 12)], 80)
        worker.load(engine.scheduler.take_loads())
        engine.scheduler.step("before", 0, 83, [range(12, 23)], True, saves)
        worker.save(saves)
        self.running(worker)
        for running in worker._running.values():
            running.until = 0.0
        received = set()
        self.until(lambda: received.update(worker.received()) or not worker._running)
        self.assertEqual(received, {"while"})               # given up
        worker._line._again = 0.0
        self.assertIsNone(worker._line.get())               # a thread connects
        other = self.engine(shared=True, timeout_s=3600, patient=False)
        self.assertEqual(other.answer(self.tokens), 0)
        self.daemon.process.send_signal(signal.SIGCONT)
        self.until_loaded(other, 10)
        self.until(lambda: worker._line.get())

    def test_pages_are_touched_beside_the_steps_and_a_chain_in_its_order(self):
        """libkvtier touches pages in the call that submits them."""
        engine, step, begun, order = self.engine(shared=True), threading.get_ident(), threading.Event(), []
        inner, saves = {name: getattr(Space, name) for name in ("store", "load")}, [[], []]

        def touching(name, space, keys, pages, **how):
            if threading.get_ident() != step and (len(pages) > 3 or begun.wait(PATIENT_S)):
                order.append((name, len(pages)))
            return inner[name](space, keys, pages, **how)

        engine.answer(self.tokens)
        engine.scheduler.add("load", lambda: self.tokens, None)
        engine.scheduler.allocated("load", [range(12, 23)], engine.scheduler.matched("load", 0, 82))
        engine.scheduler.add("save", lambda: [9] * 83, None)
        engine.scheduler.step("save", 0, 24, [range(1, 12)], True, saves[0])
        engine.scheduler.step("save", 24, 59, None, False, saves[1])
        worker = engine.workers[0]
        with mock.patch.object(Space, "store", functools.partialmethod(functools.partial(touching, "store"))), \
                mock.patch.object(Space, "load", functools.partialmethod(functools.partial(touching, "load"))):
            for part in saves:
                worker.save(part)
            worker.load(engine.scheduler.take_loads())
            time.sleep(0.05)        # for the first part to be last, if it can be
            begun.set()
            worker.end()
        self.assertEqual(order, [("store", 3), ("store", 7), ("load", 10)])
        self.assertEqual(worker.counts["loaded_blocks"], 10)

    def test_after_a_reset_nothing_from_before_is_used(self):
        engine = self.engine()
        engine.answer(self.tokens)
        engine.scheduler.add("running", lambda: self.tokens, None)
        engine.scheduler.reset()
        self.assertEqual(engine.scheduler.matched("running", 0, 82), 0)
        saves = []
        engine.scheduler.step("running", 0, 83, [range(1, 12)], True, saves)
        self.assertEqual(saves, [])
        self.assertEqual([engine.answer(self.tokens), engine.answer(self.tokens)], [0, 10])
        self.assertEqual(self.engine().answer(self.tokens), 10)     # another engine's weights are as they were

    def test_counts_say_what_happened(self):
        engine = self.engine()
        for _ in range(2):
            engine.answer(self.tokens)
        counts = dict(engine.workers[0].counts)
        self.assertGreater(counts.pop("load_seconds"), 0)
        self.assertGreater(counts.pop("save_seconds"), 0)
        self.assertEqual(counts, {"loads": 1, "loaded_blocks": 10, "missed_blocks": 0, "saves": 1, "saved_blocks": 10,
                                  "unsaved_blocks": 0})

    def test_events_tell_of_blocks_while_they_are_there(self):
        engine, events = self.engine(), Events(lambda tiers: "CPU" if tiers & Tier.HOST else "STORAGE")
        engine.answer(self.tokens)
        for _, blocks, where, _ in engine.planned:
            for block in blocks:
                events.planned(block, where(block))
        never = [(space, space.keys([9] * 8)) for space, _ in where(0)]
        events.planned("never", never)
        said = [(e.stored, e.payload) for e in events.take()]
        self.assertEqual(said, [(True, block) for block in range(10)])
        self.daemon.ctl("purge", "--tenant", "default")
        gone = []
        self.until(lambda: gone.extend((e.stored, e.payload) for e in events.take()) or len(gone) == 10)
        self.assertEqual(sorted(gone), [(False, block) for block in range(10)])

    def test_a_block_is_told_after_its_parent(self):
        engine, events = self.engine(), Events(str)
        engine.answer(self.tokens)
        where = engine.planned[0][2]
        never = [(space, space.keys([9] * 8)) for space, _ in where(0)]
        events.planned(0, where(0) + never)
        events.planned(1, where(1))
        self.assertEqual(events.take(), [])
        events.planned(0, where(0))
        said = []
        self.until(lambda: said.extend(e.payload for e in events.take()) or len(said) == 2)
        self.assertEqual(said, [0, 1])

    def test_layouts_that_are_not_known_are_refused(self):
        good = Tensor("l", "bfloat16", (9, 4, 8, 16), (512, 128, 16, 1), 0, 4096, 9216, False)
        self.assertEqual(layout_of([good], 9)[2:], (Dtype.BF16, 1, 512, 0, "", 1, 0))
        permuted = good._replace(strides=(512, 16, 64, 1))
        self.assertEqual((layout_of([permuted], 9).values, layout_of([permuted], 9).order), (512, "213"))
        for bad, words in ((good._replace(strides=(1024, 128, 16, 2)), "holes"), (good._replace(shape=(8, 4, 8, 16)),
                           "begins neither"), (good._replace(dtype="complex64"), "type complex64")):
            with self.assertRaisesRegex(LayoutError, words):
                layout_of([bad], 9)
        with self.assertRaisesRegex(LayoutError, "at most"):
            layout_of([good, good._replace(shape=(9, 511), strides=(511, 1), memory=1 << 20)] * 9, 9)

    def test_layers_may_differ_in_size_or_be_one(self):
        big = Tensor("l", "bfloat16", (9, 4, 8, 16), (512, 128, 16, 1), 0, 4096, 9216, False)
        small = Tensor("m", "bfloat16", (9, 4, 8, 8), (256, 64, 8, 1), 0, 1 << 20, 4608, False)
        layout = layout_of([big, small, big._replace(name="shares the KV of l")], 9)
        self.assertEqual((layout.runs, layout.values), (3, 256))
        self.assertEqual([(s.region, s.offset, s.page_stride) for s in layout.segments],
                         [(0, 0, 1024), (0, 512, 1024), (1, 0, 512)])

    def test_rope_behind_a_latent_is_not_rounded(self):
        blocks, tokens, row, rope = 4, 16, 72, 8
        memory = bytearray(blocks * tokens * row * 2)
        latent = Tensor("l", "float16", (blocks, 1, tokens, row), (tokens * row, tokens * row, row, 1), 0,
                        C.addressof(C.c_char.from_buffer(memory)), len(memory), False)
        layout = layout_of([latent], blocks, tokens, rope)
        geometry = geometry_of(layout, "mla@1", "", tokens, 1, 0, 1, Codec.FP8)
        values = [random.Random(7).gauss(0, 1) for _ in range(tokens * row)]
        page = struct.pack(f"<{tokens * row}e", *values)
        memory[:len(page)] = page
        with Client(self.daemon.socket) as client:
            space = client.open_space(geometry, layout.regions, layout.segments)
            keys = space.keys(range(tokens))
            self.assertEqual(client.wait(space.store(keys, [0])).ok, 1)
            self.assertEqual(client.wait(space.load(keys, [3])).ok, 1)
        got = struct.unpack(f"<{tokens * row}e", bytes(memory[-len(page):]))
        page = struct.unpack(f"<{tokens * row}e", page)
        for token in range(tokens):
            at = token * row
            self.assertEqual(got[at + row - rope:at + row], page[at + row - rope:at + row])
            self.assertNotEqual(got[at:at + row - rope], page[at:at + row - rope])
            for a, b in zip(got[at:at + row - rope], page[at:at + row - rope]):
                self.assertLessEqual(abs(a - b), max(abs(b) / 17, 0.002))

    def test_groups_that_are_not_served_are_named(self):
        full = type("FullAttentionSpec", (), {})
        window, mamba = type("SlidingWindowSpec", (), {}), type("MambaSpec", (), {})
        cross, mla = type("CrossAttentionSpec", (), {}), type("MLAAttentionSpec", (full,), {})
        self.assertEqual([why_no_group(kind, True) for kind in (full, window, mla)], ["", "", ""])
        for kind in (cross, type("RSWASpec", (full,), {})):
            self.assertIn(kind.__name__, why_no_group(kind, True))
        state = mamba()
        self.assertIn("--enable-prefix-caching", why_no_states(state, True, False))
        state.mamba_cache_mode = "align"
        self.assertEqual((why_no_group(mamba, True), why_no_states(state, True, False)), ("", ""))
        self.assertIn("without --speculative-config", why_no_states(state, True, True))
        self.assertIn("beside attention", why_no_states(state, False, False))

    def test_a_block_of_the_pool_may_be_several_of_the_kernels(self):
        tensor = Tensor("layer", "float32", (12, 2, 8), (16, 8, 1), 0, 4096, 12 * 64, False)
        whole = layout_of([tensor._replace(shape=(4, 3, 2, 8), strides=(48, 16, 8, 1))], 4)
        layout = layout_of([tensor], 4)
        self.assertEqual((layout.segments, layout.values), (whole.segments, 48))
        self.assertNotEqual(layout.order, whole.order)      # another order of the same values
        with self.assertRaises(LayoutError):
            layout_of([tensor], 5)


class Package(unittest.TestCase):
    def test_its_version_is_the_projects(self):
        project = re.search(r'^version = "(.*)"$', (TREE / "client/python/pyproject.toml").read_text(), re.M)[1]
        self.assertEqual(project, re.search(r"^VERSION := (.*)$", (TREE / "Makefile").read_text(), re.M)[1])
