# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=15
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: PrefixCache keeps its contract with transformers: a prompt is continued from the very KV that any process computed
of it, with the same answer; a model that was changed is another one; calls that are not served are computed, models
that are not are refused.
Method: kvtier.transformers over doubles of torch and of a DynamicCache (transformers_double.py), a kvtierd of its own.
The real one: make test-engines.
"""
import errno
import random
import signal
from unittest import mock

import torch_double
import transformers_double

transformers_double.install()

from kvtier import Client, Error, Tier  # noqa: E402
from kvtier.transformers import LayoutError, PrefixCache, cached_generate, kvtier_cache  # noqa: E402
from transformers_double import DynamicLayer, DynamicSlidingWindowLayer, Ids, Model  # noqa: E402
from world import World  # noqa: E402


class Transformers(World):
    tokens = list(range(43))        # five full blocks

    def client(self) -> Client:
        return Client(self.daemon.socket, name="transformers", timeout_ms=2000)

    def cache(self, model=None, **options) -> PrefixCache:
        cache = PrefixCache(self.client, model or Model(), **{"block_tokens": 8, "pages": 3, "timeout_ms": 2000,
                                                              "prefetch_ms": 0, **options})
        self.addCleanup(cache.close)
        return cache

    def answer(self, cache, tokens=None, n: int = 2) -> tuple:
        """Loaded tokens and stored blocks of a prompt; its answer is that of the model alone."""
        tokens = tokens or self.tokens
        got = cache.generate(Ids([tokens]), max_new_tokens=n).tolist()
        self.assertEqual(cache._model.computed, len(tokens) - cache.last.loaded_tokens)
        self.assertEqual(got, cache._model.generate(Ids([tokens]), max_new_tokens=n).tolist())
        self.assertEqual((cache.last.prompt_tokens, cache.last.skipped), (len(tokens), ""))
        return cache.last.loaded_tokens, cache.last.stored_blocks

    def test_another_engine_continues_where_one_stopped(self):
        for dtype in (torch_double.float32, torch_double.float16, torch_double.bfloat16):
            with self.subTest(dtype):
                self.assertEqual(self.answer(self.cache(Model(dtype=dtype))), (0, 5))
                cache = self.cache(Model(dtype=dtype), pages=4)
                self.assertEqual(self.answer(cache, self.tokens + [7] * 9), (40, 1))
                self.assertEqual((cache.last.tiers, cache.last.error), (Tier.HOST, None))

    def test_an_answer_is_kept_as_a_prompt_is(self):
        cache = self.cache()
        output = cache.generate(Ids([self.tokens]), max_new_tokens=6)      # the KV of its last token is not there
        self.assertEqual(cache.last.stored_blocks, 6)
        self.assertEqual(self.answer(self.cache(), output.tolist()[0]), (48, 0))
        output = cache.generate(Ids([[9] * 43]), max_new_tokens=5)
        self.assertEqual((output.shape, cache.last.stored_blocks, cache.last.error), ((1, 48), 5, None))

    def test_a_token_is_left_to_compute(self):
        cache = self.cache()
        self.answer(cache, self.tokens[:40], n=1)
        self.assertEqual(self.answer(cache, self.tokens[:40], n=1)[0], 32)

    def test_prompts_share_what_they_share(self):
        cache = self.cache()
        self.answer(cache)
        self.assertEqual(self.answer(cache, self.tokens[:20] + [9] * 23), (16, 3))

    def test_models_that_differ_share_nothing(self):
        self.answer(self.cache())
        for model, options in ((Model("x"), {}), (Model(theta=5), {}), (Model(eps=1e-5), {}), (Model(layers=3), {}),
                               (Model(shapes=((2, 8), (2, 8))), {}), (Model(), {"extras": "e"}),
                               (Model(), {"name": "other"})):
            self.assertEqual(self.answer(self.cache(model, **options)), (0, 5))
        self.assertEqual(self.answer(self.cache())[0], 40)

    def test_a_model_that_was_changed_is_another_one(self):
        model = Model()
        cache = self.cache(model)
        self.answer(cache)
        for what, value, before in (("adapter", "b", "a"), ("eps", 1e-5, 1e-6), ("rope_theta", 5, 10000),
                                    ("weights", (0, b"x"), (0, b"w")), ("embedding", (40, b"e"), (40, b"\0")),
                                    ("dtype", torch_double.float16, torch_double.float32)):
            with self.subTest(what):
                model.change(what, value)
                self.assertEqual([self.answer(cache), self.answer(cache)], [(0, 5), (40, 0)])
                self.assertEqual(self.answer(self.cache(model))[0], 40)
                model.change(what, before)
                self.assertEqual(self.answer(cache)[0], 40)

    def test_one_byte_of_a_large_weight_counts(self):
        from kvtier.adapters.transformers_model import _weights
        digests = set()
        for at, byte in ((0, b"w"), (70000, b"x"), (99999, b"x"), (4096, b"x")):
            model = Model("w" * 100000)
            model.change("weights", (at, byte))
            digests.add(_weights(model))
        self.assertEqual(len(digests), 4)

    def test_a_model_that_changes_while_it_answers_keeps_nothing(self):
        model = Model()
        cache = self.cache(model)
        cache.generate(Ids([self.tokens]), max_new_tokens=2, streamer=lambda _: model.change("adapter", "b"))
        self.assertEqual((cache.last.stored_blocks, cache.last.error.errno), (0, errno.ESTALE))
        self.assertIn("settings", str(cache.last.error))
        self.assertEqual(self.answer(cache), (0, 5))
        model.change("adapter", "a")
        self.assertEqual(self.answer(cache), (0, 5))

    def test_a_model_whose_forwards_differ_is_computed_without_kvtier(self):
        model = Model()
        cache = self.cache(model)
        self.answer(cache)
        model.change("chance", random.Random(7))
        cache.generate(Ids([self.tokens]), max_new_tokens=2)
        self.assertIn("eval()", cache.last.skipped)
        _, loaded, _, error = cache.fetch(Ids([self.tokens]))
        self.assertEqual((loaded, error.errno), (0, errno.EOPNOTSUPP))
        with self.assertRaisesRegex(LayoutError, "eval()"):
            self.cache(model)
        model.change("chance", None)
        self.assertEqual(self.answer(cache)[0], 40)

    def test_frequencies_that_change_with_a_prompts_length_have_a_limit(self):
        model = Model()
        model.rope_type, model.original_max_seq_len = "dynamic", 44
        cache = self.cache(model)
        self.assertEqual(self.answer(cache), (0, 5))
        cache.generate(Ids([self.tokens]), max_new_tokens=6)        # its KV ends behind the limit
        self.assertEqual((cache.last.loaded_tokens, cache.last.stored_blocks, cache.last.error.errno),
                         (40, 0, errno.EBADMSG))
        cache.generate(Ids([self.tokens + [1, 2]]))
        self.assertIn("more than 44 tokens", cache.last.skipped)

    def test_calls_that_are_not_served_are_computed(self):
        cache, prompt, settings = self.cache(), Ids([self.tokens]), transformers_double.GenerationConfig
        self.answer(cache)
        for ids, keywords, why in ((Ids([self.tokens, self.tokens]), {}, "batch"),
                                   (prompt, {"num_beams": 2}, "num_beams"),
                                   (prompt, {"generation_config": settings(num_beams=2)}, "num_beams"),
                                   (prompt, {"cache_implementation": "static"}, "cache_implementation"),
                                   (prompt, {"generation_config": settings(cache_implementation="static")}, "static"),
                                   (prompt, {"prompt_lookup_num_tokens": 3}, "prompt_lookup"),
                                   (prompt, {"generation_config": settings(prompt_lookup_num_tokens=3)}, "lookup"),
                                   (prompt, {"assistant_model": Model()}, "assistant_model"),
                                   (prompt, {"token_type_ids": Ids([[1] * 43])}, "token_type_ids"),
                                   (prompt, {"what_comes_next": True}, "what_comes_next"),
                                   (prompt, {"attention_mask": Ids([[0] + [1] * 42])}, "mask"),
                                   (prompt, {"pad_token_id": 7}, "padding"),
                                   (prompt, {"use_cache": False}, "use_cache")):
            got = cache.generate(ids, max_new_tokens=2, **keywords)
            self.assertEqual(got.tolist()[0], cache._model.generate(prompt, max_new_tokens=2).tolist()[0])
            self.assertIn(why, cache.last.skipped)
            self.assertEqual((cache.last.loaded_tokens, cache.last.stored_blocks, cache.last.prompt_tokens), (0, 0, 43))
        for keywords in ({"attention_mask": Ids([[1] * 43])}, {"attention_mask": None},
                         {"pad_token_id": 7, "eos_token_id": [8, 7]},
                         {"generation_config": settings(temperature=0.5, chat_format="of a hub")}):
            cache.generate(prompt, **keywords)
            self.assertEqual((cache.last.skipped, cache.last.loaded_tokens), ("", 40))

    def test_the_models_own_settings_count(self):
        cache, prompt = self.cache(), Ids([self.tokens])
        own = cache._model.generation_config
        self.answer(cache)
        for name, value, other in (("num_beams", 2, 1), ("cache_implementation", "static", None),
                                   ("prompt_lookup_num_tokens", 3, None)):
            with mock.patch.object(own, name, value):
                want = cache._model.generate(prompt, max_new_tokens=2).tolist()
                self.assertEqual(cache.generate(prompt, max_new_tokens=2).tolist(), want)
                self.assertIn(name, cache.last.skipped)
                if other is not None:
                    cache.generate(prompt, **{name: other})
                    self.assertEqual((cache.last.skipped, cache.last.loaded_tokens), ("", 40))

    def test_a_call_that_raises_with_a_cache_is_computed_without_one(self):
        cache, prompt, generate = self.cache(), Ids([self.tokens]), Model.generate
        self.answer(cache)

        def raising(model, ids, past_key_values=None, **keywords):
            if past_key_values:
                raise RuntimeError("no cache, please")
            return generate(model, ids, **keywords)

        with mock.patch.object(Model, "generate", raising):
            got = cache.generate(prompt, max_new_tokens=2)
            self.assertEqual(got.tolist(), cache._model.generate(prompt, max_new_tokens=2).tolist())
            self.assertIn("RuntimeError: no cache, please", cache.last.skipped)
            self.assertEqual((cache.last.loaded_tokens, cache.last.stored_blocks), (0, 0))
            with self.assertRaises(RuntimeError):       # a reader has had the beginning
                cache.generate(prompt, streamer=lambda _: None)
        with mock.patch.object(Model, "generate", side_effect=ValueError("of the user")), \
                self.assertRaisesRegex(ValueError, "of the user"):
            cache.generate(prompt)
        self.assertEqual(self.answer(cache)[0], 40)

    def test_generate_returns_as_the_models_own(self):
        cache = self.cache()
        whole = cache.generate(Ids([self.tokens]), return_dict_in_generate=True)
        self.assertEqual((whole.past_key_values.get_seq_length(), whole.sequences.shape), (43, (1, 44)))
        with mock.patch.object(cache._model.generation_config, "return_dict_in_generate", True):
            self.assertEqual(cache.generate(Ids([self.tokens])).sequences.tolist(), whole.sequences.tolist())
            self.assertIsInstance(cache.generate(Ids([self.tokens]), return_dict_in_generate=False), Ids)

    def test_models_that_are_not_served_are_refused(self):
        for model, why in ((Model(kinds=[DynamicLayer, DynamicSlidingWindowLayer]), "DynamicSlidingWindowLayer"),
                           (Model(dtype=torch_double.int8), "int8"), (Model(shapes=((2, 8), (1, 8))), "shapes")):
            with self.assertRaisesRegex(LayoutError, why):
                self.cache(model)
        odd, update = Model(), transformers_double.DynamicCache.update

        def smaller(past, keys, values, layer):     # its last layer has other heads
            update(past, *[side[:, :2 - layer] for side in (keys, values)], layer)

        with mock.patch.object(transformers_double.DynamicCache, "update", smaller), \
                self.assertRaisesRegex(LayoutError, "differ"):
            self.cache(odd)

    def test_kv_that_the_engine_does_not_hold_is_stored_under_no_key(self):
        cache, model = self.cache(), Model()
        past = transformers_double.DynamicCache(model.config)
        model._forward(self.tokens, past)
        past.layers[1].values = past.layers[1].values[:, :, :20]        # cut by somebody
        stored, error = cache.store(Ids([self.tokens]), past)
        self.assertEqual((stored <= 2, error.errno), (True, errno.EBADMSG))
        self.assertLessEqual(self.answer(cache)[0], 16)

    def test_a_daemon_that_dies_stands_still_or_comes_later_costs_the_hit_alone(self):
        self.daemon.kill()
        cache = self.cache()
        self.assertIsInstance(cache.last.error, Error)
        self.assertEqual(self.answer(cache), (0, 0))
        self.daemon.start()
        self.until_loaded(cache)
        self.daemon.process.send_signal(signal.SIGSTOP)
        self.assertEqual([self.answer(cache), self.answer(cache)], [(0, 0)] * 2)
        self.daemon.process.send_signal(signal.SIGCONT)
        self.until_loaded(cache)
        self.daemon.kill()
        self.assertEqual(self.answer(cache), (0, 0))
        self.assertIsInstance(cache.last.error, Error)

    def until_loaded(self, cache) -> None:
        self.until(lambda: self.answer(cache)[0] == 40)

    def test_one_line_is_enough(self):
        with self.client() as client:
            how = dict(client=client, cache={"block_tokens": 8, "prefetch_ms": 0})
            first = cached_generate(Model(), Ids([self.tokens]), max_new_tokens=2, **how)
            with kvtier_cache(Model(), client, block_tokens=8, prefetch_ms=0) as cache:
                self.assertEqual(self.answer(cache), (40, 0))
            self.assertEqual(cached_generate(Model(), Ids([self.tokens]), max_new_tokens=2, **how).tolist(),
                             first.tolist())
