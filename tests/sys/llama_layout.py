# SPDX-License-Identifier: Apache-2.0
"""The cases of sys_llama_layout.sh: the layout of llama.cpp's state is checked, never believed.

Shelf stands in for client and space: it keeps the bytes of pages in a dictionary, so each case fails for
reasons of the adapter alone.
"""
import ctypes as C
import errno
import unittest
from unittest import mock

import llama_engine
from kvtier import Error, Hit, Kind, Result, Tier
from kvtier.llama_cpp import BLOCK_TOKENS, LayoutError, LlamaCache
from kvtier.adapters.llama_state import Functions
from world import TREE


class Shelf:
    tiers = Tier.HOST | Tier.REDIS

    def __init__(self):
        self.pages, self.far, self.prefetches, self.cache = {}, {}, 0, None

    def open_space(self, geometry, regions, segments):
        self.geometry, self.segments = geometry, segments
        return self

    def close(self):
        pass

    def keys(self, tokens):
        return [tuple(tokens[:i]) for i in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS)]

    def lookup(self, keys):
        n = next((i for i, key in enumerate(keys) if key not in self.pages), len(keys))
        return Hit(n, Tier.HOST)

    def store(self, keys, pages, timeout_ms):
        for key, page in zip(keys, pages):
            self.pages[key] = bytes(self.cache._blocks.page(page))
        return len(keys)

    def load(self, keys, pages, timeout_ms):
        for key, page in zip(keys, pages):
            self.cache._blocks.page(page)[:] = self.pages[key]
        return len(keys)

    def prefetch(self, keys):
        self.prefetches += 1
        self.pages.update((key, self.far.pop(key)) for key in keys if key in self.far)
        return len(keys)

    def wait(self, n, timeout_ms=-1):
        return Result(1, 0, n, n, n, [0] * n)


class Layouts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lib = llama_engine.load_library()
        cls.engine = llama_engine.Engine(cls.lib, llama_engine.find_model(), n_ctx=1024)
        text = (TREE / "LICENSE").read_text()
        cls.tokens = cls.engine.tokenize(text)[:3 * BLOCK_TOKENS + 10]
        cls.cold = cls.compute(cls.tokens)
        cls.state = Functions(cls.lib).state(cls.engine.ctx, 0)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def setUp(self):
        self.engine.reset()
        self.shelf = Shelf()
        self.cache = self.shelf.cache = self.open(self.engine.ctx)
        self.addCleanup(self.cache.close)

    def open(self, ctx):
        return LlamaCache(self.shelf, self.lib, ctx, self.lib.llama_get_memory(ctx), model="m", pages=2)

    @classmethod
    def compute(cls, tokens, have=0):
        cut = (len(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        if have < cut:
            cls.engine.decode(tokens[have:cut])
        cls.engine.decode(tokens[cut:])
        return cls.engine.logits()

    def give_computed(self):
        """The context holds the tokens' KV as setUpClass() computed it: computing it takes a second of CPU."""
        data = C.create_string_buffer(self.state, len(self.state))
        took = Functions(self.lib).state_set(self.engine.ctx, C.addressof(data), len(data), 0, 0)
        self.assertEqual(took, len(data))

    def context(self, **fields):
        params = self.lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified, params.flash_attn_type = 1024, 2, True, 1
        for name, value in fields.items():
            setattr(params, name, value)
        ctx = self.lib.llama_init_from_model(self.engine.model, params)
        self.assertTrue(ctx)
        self.addCleanup(self.lib.llama_free, ctx)
        return ctx

    def test_another_release_is_refused(self):
        with mock.patch.object(llama_engine.importlib.metadata, "version", return_value="2026.10.11550"):
            with self.assertRaisesRegex(RuntimeError, "2026.10.11550 may lay its structs out in another way"):
                llama_engine.load_library()

    def test_transposed_v_is_refused(self):
        with self.assertRaises(LayoutError):
            self.open(self.context(flash_attn_type=0))

    def test_separate_streams_are_refused(self):
        with self.assertRaisesRegex(LayoutError, "kv_unified"):
            self.open(self.context(kv_unified=False))

    def test_quantized_cache_is_refused(self):
        with self.assertRaises(LayoutError):
            self.open(self.context(type_k=8, type_v=8))

    def test_k_comes_before_v(self):
        # One token over and over: in layer 0 its V row is always the same, its K row is rotated by its
        # position.
        self.compute([self.tokens[0]] * (BLOCK_TOKENS + 1))
        self.assertEqual(self.cache.store([self.tokens[0]] * BLOCK_TOKENS).kept, 1)
        page = next(iter(self.shelf.pages.values()))
        for kind, same in ((Kind.K, False), (Kind.V, True)):
            s = next(s for s in self.shelf.segments if s.kind == kind and s.layer == 0)
            row = [page[s.offset + t * s.token_stride:s.offset + (t + 1) * s.token_stride] for t in (0, 40)]
            self.assertEqual(row[0] == row[1], same, kind.name)

    def test_segments_cover_every_byte_once(self):
        g, end = self.shelf.geometry, 0
        for s in sorted(self.shelf.segments, key=lambda s: s.offset):
            self.assertEqual(s.offset, end)
            end += s.length if s.kind == Kind.OPAQUE else g.block_tokens * s.token_stride
        self.assertEqual(end, self.cache.block_bytes)

    def test_fetched_prefix_gives_equal_logits(self):
        self.give_computed()
        self.assertEqual(self.cache.store(self.tokens)[:], (3, 3, None))
        self.engine.reset()
        got = self.cache.fetch(self.tokens)
        self.assertEqual((got.tokens, got.error), (3 * BLOCK_TOKENS, None))
        self.assertTrue(self.compute(self.tokens, got.tokens) == self.cold)

    def test_a_token_is_left_to_compute(self):
        self.give_computed()
        self.cache.store(self.tokens)
        self.engine.reset()
        self.assertEqual(self.cache.fetch(self.tokens[:2 * BLOCK_TOKENS]).tokens, BLOCK_TOKENS)

    def test_a_page_of_another_position_is_not_imported(self):
        self.give_computed()
        self.cache.store(self.tokens)
        keys = self.shelf.keys(self.tokens)
        self.shelf.pages[keys[1]] = self.shelf.pages[keys[2]]
        self.engine.reset()
        got = self.cache.fetch(self.tokens)
        self.assertEqual(got.tokens, BLOCK_TOKENS)
        self.assertIn("position 64", str(got.error))
        self.assertEqual(self.lib.llama_memory_seq_pos_max(self.engine.memory, 0), BLOCK_TOKENS - 1)

    def test_tokens_that_were_not_computed_are_not_stored(self):
        self.compute(self.tokens[:BLOCK_TOKENS + 20])
        stored = self.cache.store(self.tokens)
        self.assertEqual(stored.kept, 0)
        self.assertIn("does not hold", str(stored.error))

    def test_pages_of_an_op_that_is_not_over_are_left_alone(self):
        self.give_computed()
        stopped = Error(errno.ETIMEDOUT, "op 1 is not done yet")
        with mock.patch.object(self.shelf, "wait", side_effect=stopped):
            self.assertIs(self.cache.store(self.tokens[:BLOCK_TOKENS]).error, stopped)
            before = bytes(self.cache._blocks.page(0))
            self.assertIs(self.cache.store(self.tokens, BLOCK_TOKENS).error, stopped)
            self.assertEqual(bytes(self.cache._blocks.page(0)), before)
            self.engine.reset()
            self.assertIs(self.cache.fetch(self.tokens).error, stopped)
            self.assertEqual(bytes(self.cache._blocks.page(0)), before)
        self.assertEqual(self.cache.fetch(self.tokens).tokens, BLOCK_TOKENS)

    def test_what_is_further_away_is_brought_first(self):
        self.give_computed()
        self.cache.store(self.tokens)
        self.shelf.pages, self.shelf.far = {}, self.shelf.pages
        self.engine.reset()
        self.assertEqual(self.cache.fetch(self.tokens)[::2], (3 * BLOCK_TOKENS, None))
        self.assertEqual(self.shelf.prefetches, 1)

    def test_what_is_near_is_not_asked_for(self):
        self.give_computed()
        self.cache.store(self.tokens)
        self.engine.reset()
        self.cache.fetch(self.tokens)
        self.assertEqual(self.shelf.prefetches, 0)

    def test_a_daemon_without_redis_is_not_asked(self):
        with mock.patch.object(self.shelf, "tiers", Tier.HOST | Tier.NVME):
            self.assertEqual(self.cache.fetch(self.tokens)[::2], (0, None))
        self.assertEqual(self.shelf.prefetches, 0)

    def test_a_prefetch_that_does_not_end_is_waited_for_once(self):
        late, waits = Error(errno.ETIMEDOUT, "op 1 is not done yet"), []
        with mock.patch.object(self.shelf, "wait", side_effect=lambda op, ms: waits.append(ms) or self.fail_with(late)):
            for _ in range(2):
                self.assertEqual(self.cache.fetch(self.tokens)[::2], (0, late))
        self.assertEqual((waits, self.shelf.prefetches), ([1000, 0], 1))
        self.assertEqual(self.cache.fetch(self.tokens)[::2], (0, None))
        self.assertEqual(self.shelf.prefetches, 2)

    def fail_with(self, error):
        raise error

    def sampled(self, ctx):
        """A cache whose layout is read from what llama.cpp writes for one token."""
        functions, memory = Functions(self.lib), self.lib.llama_get_memory(ctx)
        one = (C.c_int32 * 1)(self.tokens[0])
        self.assertEqual(self.lib.llama_decode(ctx, self.lib.llama_batch_get_one(one, 1)), 0)
        functions.seq_cp(memory, 0, 1, 0, 1)
        sample = functions.state(ctx, 1)
        for seq in range(2):
            functions.seq_rm(memory, seq, -1, -1)
        self.shelf.cache = LlamaCache(self.shelf, self.lib, ctx, memory, model="m", pages=2, sample=sample)
        self.addCleanup(self.shelf.cache.close)
        return self.shelf.cache, C.c_void_p(memory)

    def test_other_layouts_are_read_from_a_sample(self):
        tokens = self.tokens[:2 * BLOCK_TOKENS + 10]

        def last_logits(ctx, first):
            for piece in (tokens[first:2 * BLOCK_TOKENS], tokens[2 * BLOCK_TOKENS:]):
                if piece:
                    array = (C.c_int32 * len(piece))(*piece)
                    self.assertEqual(self.lib.llama_decode(ctx, self.lib.llama_batch_get_one(array, len(piece))), 0)
            return C.string_at(self.lib.llama_get_logits_ith(ctx, -1), 4 * self.engine.n_vocab)

        q8_0 = 8
        for fields in (dict(flash_attn_type=0), dict(type_k=q8_0, type_v=q8_0), dict(type_k=0, type_v=0)):
            with self.subTest(fields):
                self.shelf.pages = {}
                ctx = self.context(n_ctx=256, n_seq_max=1, kv_unified=False, **fields)
                cache, memory = self.sampled(ctx)
                self.assertEqual(cache._layout.transposed, "flash_attn_type" in fields)
                self.assertEqual(cache._layout.exact_only, fields.get("type_k") == q8_0)
                cold = last_logits(ctx, 0)
                self.assertEqual(cache.store(tokens)[:], (2, 2, None))
                self.lib.llama_memory_clear(memory, True)
                got = cache.fetch(tokens)
                self.assertEqual((got.tokens, got.error), (2 * BLOCK_TOKENS, None))
                self.assertTrue(last_logits(ctx, got.tokens) == cold)
                self.lib.llama_memory_seq_rm(memory, 0, BLOCK_TOKENS + 9, -1)      # its own, and then a block
                self.assertEqual(cache.fetch(tokens, BLOCK_TOKENS + 9).tokens, 2 * BLOCK_TOKENS)
                self.assertTrue(last_logits(ctx, 2 * BLOCK_TOKENS) == cold)
                cache.close()

    def test_a_full_context_is_a_short_hit(self):
        self.give_computed()
        self.cache.store(self.tokens)
        self.engine.reset()
        small = self.context(n_ctx=256, n_seq_max=3)
        memory = C.c_void_p(self.lib.llama_get_memory(small))
        with self.open(small) as cache:
            self.shelf.cache = cache
            filler = (C.c_int32 * 150)(*self.tokens[:150])
            self.assertEqual(self.lib.llama_decode(small, self.lib.llama_batch_get_one(filler, 150)), 0)
            self.lib.llama_memory_seq_cp(memory, 0, 2, -1, -1)
            self.lib.llama_memory_seq_rm(memory, 0, -1, -1)
            got = cache.fetch(self.tokens)
            self.assertEqual(got.tokens, BLOCK_TOKENS)
            self.assertIn("is the context full", str(got.error))
            self.assertEqual(self.lib.llama_memory_seq_pos_max(memory, 0), BLOCK_TOKENS - 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
