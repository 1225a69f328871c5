# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=30
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: KvtierConnector keeps its contract with vLLM: lookups plan nothing, each load and save is told of once, blocks
that did not come are named, blocks are read before they are freed, and nothing raises into the engine.
Method: kvtier.vllm over doubles of torch and of vLLM's classes (vllm_double.py), a kvtierd of its own, memory of the
CPU. The real vLLM: make test-engines.
"""
import json
import os
import re
import signal
import socket
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch_double
import vllm_double

vllm_double.install()

from kvtier import vllm as adapter  # noqa: E402
from kvtier.adapters.vllm_core import COUNTS, marks_of  # noqa: E402
from kvtier.events.describe import unpacked  # noqa: E402
from vllm_double import Engine, MambaSpec, SlidingWindowSpec, hybrid  # noqa: E402
from world import TREE, World  # noqa: E402

LOG = "vllm.kvtier"


class Vllm(World):
    tokens = list(range(83))        # ten full blocks
    kind = Engine

    def engine(self, extra=(), **how) -> Engine:
        options = {"socket": str(self.daemon.socket), "codec": "raw", "timeout_ms": 2000, "model": "tiny"}
        options.update(extra)
        engine = self.kind(adapter.KvtierConnector, options, **how)
        self.addCleanup(engine.close)
        return engine.connected()

    def warm(self, **how) -> Engine:
        """Another engine has stored the prompt."""
        self.assertEqual(self.engine(**how).answer(self.tokens), 0)
        return self.engine(**how)

    def until_loaded(self, engine) -> None:
        self.until(lambda: engine.answer(self.tokens) == 10)

    def counts(self, engine) -> dict:
        return {name: n for name, n in engine.worker._worker.counts.items() if not name.endswith("seconds")}

    def ops(self) -> tuple:
        stats = self.daemon.stats()
        return tuple(stats[what]["blocks_total"] for what in ("load", "store"))


class Served(Vllm):
    def test_another_engine_continues_where_one_stopped(self):
        for layout, dtype, zero_copy in (("blocks", torch_double.float32, True), ("kv", torch_double.float16, False),
                                         ("kv", torch_double.bfloat16, True)):
            how = {"layout": layout, "dtype": dtype, "extra": {"zero_copy": zero_copy, "extras": f"{layout}{dtype}"}}
            with self.subTest(**how):
                other = self.warm(**how)
                self.assertEqual((other.worker._shared is not None), zero_copy)
                self.assertEqual([other.answer(self.tokens + [7] * 9), other.answer(self.tokens + [7] * 9)], [10, 11])

    def test_a_block_of_all_layers_lies_together(self):
        runs = {}
        for layout in vllm_double.TOGETHER:
            with self.subTest(layout):
                other = self.warm(layout=layout)        # and shares no block with an engine of another layout
                self.assertTrue(other.together)
                self.assertEqual([other.answer(self.tokens + [7] * 9), other.answer(self.tokens + [7] * 9)], [10, 11])
                runs[layout] = other.worker._geometries[0].typed_segments
        self.assertEqual(runs, {"NHD": 4, "HND": 1, "layers": 4, "KV": 8})

    def test_int8_is_of_heads_and_channels_in_every_layout(self):
        heads, dim, apart = Engine.HEADS, Engine.DIM, ("kv", "KV")      # else a token's K and V are one row
        for layout in ("blocks", "kv", *vllm_double.TOGETHER):
            with self.subTest(layout):
                other = self.warm(layout=layout, dtype=torch_double.bfloat16,
                                  extra={"codec": "int8", "extras": layout})
                self.assertEqual([other.answer(self.tokens + [7] * 9), other.answer(self.tokens + [7] * 9)], [10, 11])
                geometry = other.worker._geometries[0]
                self.assertEqual((geometry.kv_heads, geometry.head_dim_k, geometry.head_dim_v),
                                 (heads, dim, dim) if layout in apart else (heads, 2 * dim, 0))

    def test_layers_lie_together_on_a_gpu_alone_and_not_where_that_is_not_wanted(self):
        for layout, how in (("blocks", {}), ("NHD", {"extra": {"cross_layers": False}}), ("NHD", {"groups": 2})):
            engine = self.engine(layout=layout, **how)
            self.assertFalse(engine.together)
            self.assertEqual([engine.answer(self.tokens), engine.answer(self.tokens)], [0, 10])
            self.daemon.ctl("purge", "--tenant", "default")

    def test_the_environment_gives_the_options_that_the_engine_does_not(self):
        with mock.patch.dict(os.environ, KVTIER_EXTRAS="mine", KVTIER_ZERO_COPY="false", KVTIER_CODEC="zip"):
            engine = self.engine()
            self.assertEqual((engine.answer(self.tokens), engine.worker._shared), (0, None))
        self.assertEqual([self.engine().answer(self.tokens), self.engine({"extras": "mine"}).answer(self.tokens)],
                         [0, 10])

    def test_vllm_knows_the_connector_by_its_name(self):
        project = (TREE / "client" / "python" / "pyproject.toml").read_text()
        said = re.search(r'"vllm.general_plugins"\]\nkvtier = "(.*)"', project)
        register = EntryPoint("kvtier", said.group(1), "vllm.general_plugins").load()
        for _ in range(2):
            register()
        module, name = vllm_double.KVConnectorFactory.registered["KvtierConnector"]
        self.assertIs(getattr(sys.modules[module], name), adapter.KvtierConnector)

    def test_a_lookup_plans_nothing(self):
        engine = self.warm()
        before, request = self.ops(), engine.request(self.tokens)
        for _ in range(3):
            self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (80, True))
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 16), (64, True))
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(engine.request([9] * 40), 0), (0, False))
        got, invalid = engine.step()
        self.assertEqual((got.finished_recving, invalid), (set(), set()))
        self.assertEqual(engine.scheduler.request_finished(request, []), (False, None))
        self.assertEqual(self.ops(), before)
        self.assertEqual(self.counts(engine)["loads"], 0)

    def test_of_whole_blocks_all_are_loaded_and_none_is_saved_again(self):
        engine = self.warm()
        self.assertEqual(engine.answer(self.tokens[:80]), 10)
        self.assertEqual(self.counts(engine)["saves"], 0)
        # vLLM has all of them but the last one
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(engine.request(self.tokens[:80]), 72), (0, False))

    def test_of_a_window_a_token_is_left_to_compute(self):
        engine = self.warm(groups=2, spec=SlidingWindowSpec)
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(engine.request(self.tokens[:80]), 0), (72, True))

    def test_no_load_is_planned_for_no_token(self):
        engine = self.warm()
        request = engine.request(self.tokens)
        engine.scheduler.get_num_new_matched_tokens(request, 0)
        engine.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: ([1, 2],)), 0)
        engine.step()
        self.assertEqual(self.counts(engine)["loads"], 0)

    def test_a_load_is_told_of_once_when_it_is_over(self):
        engine = self.warm()
        request = engine.request(self.tokens)
        matched, later = engine.scheduler.get_num_new_matched_tokens(request, 0)
        pages = [engine.take(11)]
        self.assertEqual(engine.load(request, pages, matched), 10)
        self.assertTrue(all(engine.holds(self.tokens, i, 0, pages[0][i]) for i in range(10)))
        for _ in range(3):
            got, invalid = engine.step()
            self.assertEqual((got.finished_recving, invalid), (set(), set()))
        self.assertEqual(engine.scheduler.get_external_cache_hit_sources(request, 80),
                         {vllm_double.CacheHitSource.HOST: 80})
        self.assertEqual(engine.scheduler.get_external_cache_hit_sources(request, 0), {})

    def test_blocks_that_did_not_come_are_named(self):
        engine = self.warm()
        request = engine.request(self.tokens)
        matched, _ = engine.scheduler.get_num_new_matched_tokens(request, 0)
        self.daemon.ctl("purge", "--tenant", "default")
        pages, named = [engine.take(11)], set()
        engine.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: tuple(pages)), matched)

        def received(got, invalid) -> bool:
            named.update(invalid)
            return request.request_id in got.finished_recving

        engine.until(received)
        self.assertEqual(named, set(pages[0][:10]))
        self.assertEqual(self.counts(engine)["missed_blocks"], 10)
        # a request asks no second time for blocks that were promised and did not come
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (0, False))
        self.assertEqual([engine.answer(self.tokens), engine.answer(self.tokens)], [0, 10])

    def test_a_group_that_did_not_come_fails_its_request(self):
        engine = self.warm(groups=2)
        self.assertEqual(engine.answer(self.tokens), 10)
        request = engine.request(self.tokens)
        matched, _ = engine.scheduler.get_num_new_matched_tokens(request, 0)
        self.daemon.ctl("purge", "--tenant", "default")
        pages, failed = [engine.take(11) for _ in range(2)], set()
        engine.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: tuple(pages)), matched)

        def received(got, invalid) -> bool:
            self.assertEqual(invalid, set())
            failed.update(got.failed_recving)
            return request.request_id in got.finished_recving

        engine.until(received)
        self.assertEqual(failed, {request.request_id})
        self.assertEqual([engine.answer(self.tokens), engine.answer(self.tokens)], [0, 10])

    def test_a_window_beside_full_attention_is_served(self):
        other = self.warm(groups=2, spec=SlidingWindowSpec)
        self.assertEqual(other.answer(self.tokens), 10)

    def test_states_beside_attention_are_kept_bit_for_bit_where_vllm_offers_them(self):
        engine, other = (self.engine({"codec": "fp8"}, dtype=torch_double.bfloat16, events=True, **hybrid())
                         for _ in range(2))
        self.assertEqual([g.codec.name for g in engine.worker._geometries], ["RAW", "FP8"])
        engine.computes_states(self.tokens, 9)
        said = []
        self.until(lambda: said.extend(engine.said()) or len(said) == 11)
        self.assertEqual(sorted((e.group_idx, e.kv_cache_spec_kind, e.token_ids[0]) for e in said),
                         [(0, "MambaSpec", 72), *((1, "FullAttentionSpec", 8 * i) for i in range(10))])
        self.assertTrue(other.loads_states(self.tokens, 9))
        self.assertEqual(other.matched(other.request(self.tokens[:79])), 0)

    def test_blocks_of_a_preempted_request_are_read_before_they_are_others(self):
        engine = self.engine()
        request, pages = engine.request(self.tokens), [engine.take(11)]
        engine.scheduler.get_num_new_matched_tokens(request, 0)

        def forward() -> None:
            for block in range(10):
                engine.put(self.tokens, block, 0, pages[0][block])

        with mock.patch.object(engine.worker._worker, "poll", lambda: None):
            engine.step(new=[(request, 0, 83, tuple(pages))], forward=forward)
            engine.give_back(pages)
            engine.step(preempted={request.request_id})
            self.assertEqual(engine.pool.free[-1], pages[0][-1], "a block that is not full is not held")
            self.assertFalse(set(pages[0][:10]) & set(engine.pool.free))
        self.assertEqual(engine.scheduler.request_finished(request, []), (False, None))
        engine.until(lambda *_: set(pages[0]) <= set(engine.pool.free))
        self.assertEqual(self.engine().answer(self.tokens), 10)     # and they are right

    def test_a_preempted_request_may_load_once_more(self):
        engine = self.warm()
        request, pages = engine.request(self.tokens), [engine.take(11)]
        self.assertEqual(engine.load(request, pages, engine.matched(request)), 10)
        engine.step(new=[(request, 80, 3, tuple(pages))])
        engine.step(preempted={request.request_id})
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (80, True))

    def test_a_reset_waits_for_no_save_and_its_blocks_are_held_still(self):
        for groups in (1, 2):
            engine = self.engine(groups=groups, extra={"extras": str(groups)})
            request, pages = engine.request(self.tokens), [engine.take(11) for _ in range(groups)]
            engine.scheduler.get_num_new_matched_tokens(request, 0)
            with mock.patch.object(engine.worker._worker, "poll", lambda: None):
                engine.step(new=[(request, 0, 83, tuple(pages))],
                            forward=lambda: [engine.put(self.tokens, i, group, pages[group][i])
                                             for i in range(10) for group in range(groups)])
                engine.finish(request, pages)
            free = set(engine.pool.free)
            self.assertEqual((engine.pool.reset_prefix_cache(), engine.manager.reset_prefix_cache()), (False, True))
            self.assertEqual(set(engine.pool.free), free)
            self.assertTrue(engine.scheduler.has_pending_push_work())
            engine.until(lambda *_: engine.pool.reset_prefix_cache())
            self.assertEqual(engine.answer(self.tokens), 10)

    def test_what_workers_say_is_added_up(self):
        over = adapter.KvtierOver({1: 1, 2: 1}).aggregate(adapter.KvtierOver({2: 1, 3: 1}))
        self.assertEqual(dict(over.numbers), {1: 1, 2: 2, 3: 1})

    def test_an_answer_is_kept_as_a_prompt_is(self):
        engine = self.engine()
        request, pages = engine.request(self.tokens), [engine.take(13)]
        engine.scheduler.get_num_new_matched_tokens(request, 0)
        engine.step(new=[(request, 0, 83, tuple(pages))],
                    forward=lambda: [engine.put(self.tokens, i, 0, pages[0][i]) for i in range(10)])
        engine.until(lambda got, _: self.counts(engine)["saved_blocks"] == 10)  # a block without its parent is not kept
        for i in range(6):      # the 11th block is full after the 5th token
            request.all_token_ids.append(1000 + i)
            engine.step(cached=[(request.request_id, 83 + i, 1, None)], forward=lambda: engine.put(
                request.all_token_ids, 10, 0, pages[0][10]))
        engine.finish(request, pages)
        self.assertEqual(self.engine().answer(request.all_token_ids), 11)

    def test_an_aborted_request_with_a_load_is_still_told_of(self):
        engine = self.warm()
        request, pages = engine.request(self.tokens), [engine.take(11)]
        matched, _ = engine.scheduler.get_num_new_matched_tokens(request, 0)
        engine.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: tuple(pages)), matched)
        with mock.patch.object(engine.worker._worker, "poll", lambda: None):
            got, _ = engine.step()
        self.assertEqual(got.finished_recving, set())
        self.assertEqual(engine.scheduler.request_finished(request, pages[0]), (False, None))
        engine.until(lambda got, _: request.request_id in got.finished_recving, ended={request.request_id})

    def test_a_prompt_that_its_tokens_do_not_name_is_not_looked_up(self):
        engine = self.warm()
        for more in ({"prompt_embeds": object()}, {"prompt_token_ids": None}):
            request = engine.request(self.tokens, **more)
            self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (0, False))
            pages = [engine.take(11)]
            engine.step(new=[(request, 0, 83, tuple(pages))])
            engine.finish(request, pages)

    def test_adapters_salts_and_images_have_blocks_of_their_own(self):
        engine = self.warm()
        image = SimpleNamespace(identifier="cat", mm_position=SimpleNamespace(offset=3, length=5))
        lora = SimpleNamespace(lora_name="a", lora_path="/none", lora_int_id=1)
        for more in ({"cache_salt": "mine"}, {"lora_request": lora}, {"mm_features": [image]}):
            with self.subTest(**more):
                self.assertEqual([engine.answer(self.tokens, **more) for _ in range(2)], [0, 10])

    def images(self, *said) -> dict:
        """Of a request with these images: name, first token, how many tokens."""
        return {"mm_features": [SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=first, length=n))
                                for name, first, n in said]}

    def test_a_prompt_shares_all_that_is_before_its_image(self):
        engine = self.warm()        # a text of ten blocks, of 8 tokens each
        for images in ([("cat", 43, 12)], [("dog", 43, 12)], [("cat", 42, 12)], [("cat", 43, 11)]):
            with self.subTest(images=images):
                # block 5 has the image's first tokens
                self.assertEqual([engine.answer(self.tokens, **self.images(*images)) for _ in range(2)], [5, 10])
        cat, late = ("cat", 43, 12), ("dog", 70, 4)
        self.assertEqual([engine.answer(self.tokens, **self.images(cat, late)) for _ in range(2)], [8, 10])
        self.assertEqual(engine.answer(self.tokens, **self.images(late)), 8)
        both = self.images(("cat", 40, 3), ("dog", 43, 4)), self.images(("dog", 40, 3), ("cat", 43, 4))
        self.assertEqual([engine.answer(self.tokens, **one) for one in (*both, *both)], [5, 5, 10, 10])
        # a chat: a turn with an image, and one more without
        chat = self.tokens + list(range(200, 240))
        self.assertEqual([engine.answer(chat, **self.images(("bird", 90, 20))) for _ in range(2)], [10, 15])
        more = self.images(("bird", 90, 20))
        self.assertEqual(engine.answer(chat + [7] * 9, **more), 15)
        # behind an encoder all tokens depend on all images
        other = self.engine(model={"model": "tiny", "is_encoder_decoder": True})
        self.assertEqual([other.answer(self.tokens, **self.images(cat)) for _ in range(2)], [0, 10])

    def test_an_image_in_a_prompt_that_grows_is_in_its_keys(self):
        engine, request = self.engine(), None
        known = marks_of([("cat", 43, 12), ("dog", 16, 1)], 8)
        self.assertEqual(sorted(known), [2, 5])
        for steps in ((3, 6, 10), (10,), (5, 10), (2, 10), (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)):
            scheduler = engine.scheduler._scheduler
            scheduler.add(str(steps), lambda: self.tokens, None, marks=known)
            for n in steps:
                scheduler._make_keys(scheduler._requests[str(steps)], n)
            keys = scheduler._requests[str(steps)].keys[0, 0]
            self.assertEqual((len(keys), request or keys), (320, keys))
            request = keys

    def of(self, commit, revision=None, **extra) -> Engine:
        """Of a hub's model whose name stands for this commit."""
        config = SimpleNamespace(_commit_hash=commit) if commit else SimpleNamespace()
        return self.engine({"model": None, **extra},
                           model={"model": "hub/tiny", "revision": revision, "hf_config": config})

    def test_weights_that_a_hubs_name_stands_for_now_are_others(self):
        old, new = "a" * 40, "b" * 40
        self.assertEqual([self.of(old).answer(self.tokens), self.of(new).answer(self.tokens)], [0, 0])
        # the branch is where the commit was found, not what it is
        self.assertEqual([self.of(old, "main").answer(self.tokens), self.of(new, "v2").answer(self.tokens)], [10, 10])
        # of files that no hub gave there is no commit
        self.assertEqual([self.of(None, "v2").answer(self.tokens), self.of(None).answer(self.tokens)], [0, 0])
        self.assertEqual([self.of(None, "v2").answer(self.tokens), self.of(None).answer(self.tokens)], [10, 10])
        self.assertEqual(set(self.models()), {f"hub/tiny@{old}", f"hub/tiny@{new}", "hub/tiny@v2", "hub/tiny"})

    def test_a_name_of_the_users_own_says_which_weights_it_means(self):
        self.assertEqual([self.of("a" * 40, model="mine").answer(self.tokens),
                          self.of("b" * 40, model="mine").answer(self.tokens),
                          self.of("b" * 40, "v2", model="mine").answer(self.tokens)], [0, 10, 0])
        self.assertEqual(self.models(), {"mine": ""})

    def models(self) -> dict:
        """Which hint each revision has."""
        return {space["model"]: space["hinted"] for space in json.loads(self.daemon.ctl("spaces", "--json"))["spaces"]}

    def test_a_revision_is_retired_alone(self):
        old, new = self.of("a" * 40), self.of("b" * 40)
        old.answer(self.tokens)
        new.answer(self.tokens)
        hint = SimpleNamespace(action_id="1", action_type="superseded", action_version="1",
                               payload={"scope": "revision"})
        old.answer([5] * 9, kv_hints=SimpleNamespace(actions=[hint]))
        self.until(lambda: old.step() and old.scheduler._scheduler.hints.answers.accepted)
        self.assertEqual(self.models(), {f"hub/tiny@{'a' * 40}": "retired", f"hub/tiny@{'b' * 40}": ""})

    def test_after_a_reset_nothing_from_before_is_used(self):
        engine = self.warm()
        self.assertEqual(engine.answer(self.tokens), 10)
        self.assertIs(engine.scheduler.reset_cache(), True)
        self.assertEqual([engine.answer(self.tokens), engine.answer(self.tokens)], [0, 10])
        self.assertEqual(self.engine().answer(self.tokens), 10)     # another engine's weights are as they were

    def test_weights_that_requests_name_are_known_after_a_reset(self):
        engines = [self.engine({"requests_name_weights": True}) for _ in range(2)]
        for engine in engines:
            engine.scheduler.reset_cache()
        for name, came in (("step 1", [0, 10]), ("step 2", [0, 10]), ("step 1", [10, 10]), (None, [0, 0])):
            self.assertEqual([engine.answer(self.tokens, kv_transfer_params={"weights": name}) for engine in engines],
                             came, name)
        for wrong in ("", 7):
            with self.assertLogs(LOG, "WARNING") as log:
                engines[0].answer([5] * 20, kv_transfer_params={"weights": wrong})
            self.assertIn(f"weights is {wrong!r}, must be a text", log.output[0])

    def test_a_request_names_no_weights_unless_an_option_allows_it(self):
        """Else a client could keep KV of the weights that are loaded now under the name of others."""
        trusting, engine = self.engine({"requests_name_weights": True}), self.engine()
        named = {"kv_transfer_params": {"weights": "step 1"}}
        self.assertEqual(trusting.answer(self.tokens, **named), 0)
        with self.assertLogs(LOG, "WARNING") as log:
            self.assertEqual([engine.answer(self.tokens, **named) for _ in range(2)], [0, 10])
        self.assertEqual(len(log.output), 1)
        self.assertIn("option requests_name_weights is false", log.output[0])
        self.assertEqual(engine.answer([5] * 83, **named), 0)
        self.assertEqual(trusting.answer([5] * 83, **named), 0)
        self.assertEqual(engine.answer(self.tokens), 10)        # as without a name
        engine.scheduler.reset_cache()
        self.assertEqual([engine.answer(self.tokens, **named), trusting.answer(self.tokens, **named)], [0, 10])
        with self.assertLogs(LOG, "WARNING") as log:
            self.engine({"requests_name_weights": "yes"})
        self.assertIn("must be true or false", log.output[0])

    def test_after_shutdown_there_is_nothing(self):
        engine = self.warm()
        request = engine.request(self.tokens)
        matched, _ = engine.scheduler.get_num_new_matched_tokens(request, 0)
        pages = [engine.take(11)]
        engine.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: tuple(pages)), matched)
        with mock.patch.object(engine.worker._worker, "poll", lambda: None):
            engine.step()           # its load is under way
        clients = self.daemon.stats()["clients"]
        engine.close()
        self.assertTrue(all(engine.holds(self.tokens, i, 0, pages[0][i]) for i in range(10)))   # it was waited for
        self.until(lambda: self.daemon.stats()["clients"] == clients - 2)
        engine.close()
        self.assertEqual(engine.worker.get_finished({"r"}), (None, None))
        self.assertEqual(engine.answer(self.tokens), 0)

    def test_a_daemon_is_killed_and_comes_back(self):
        engine = self.warm()
        self.assertEqual(engine.answer(self.tokens), 10)
        self.daemon.kill()
        self.assertEqual(engine.answer(self.tokens), 0)
        self.daemon.start()
        self.until_loaded(engine)

    def test_a_daemon_stands_still_in_a_load_and_in_a_save(self):
        for extra in ({"zero_copy": True}, {"zero_copy": False}):
            engine = self.engine(extra={**extra, "extras": str(extra)})
            engine.answer(self.tokens)
            self.daemon.process.send_signal(signal.SIGSTOP)
            for tokens in (self.tokens, [11] * 83):
                self.assertEqual(engine.answer(tokens), 0)
            self.daemon.process.send_signal(signal.SIGCONT)
            self.until_loaded(engine)

    def test_an_engine_starts_before_the_daemon(self):
        self.daemon.kill()
        engine = self.engine()
        self.assertEqual(engine.answer(self.tokens), 0)
        self.daemon.start()
        self.until_loaded(engine)

    def test_counts_go_to_vllm_once(self):
        engine = self.engine()
        for _ in range(2):
            engine.answer(self.tokens)
        stats = engine.worker.get_kv_connector_stats()
        self.assertEqual((stats.data["loaded_blocks"], stats.data["saved_blocks"], set(stats.data)),
                         (10, 10, set(COUNTS)))
        self.assertIsNone(engine.worker.get_kv_connector_stats())
        again = adapter.KvtierConnector.build_kv_connector_stats(stats.data)
        self.assertEqual((again.is_empty(), again.aggregate(stats).reduce()["kvtier loaded_blocks"]), (False, 20))
        self.assertTrue(adapter.KvtierConnector.build_kv_connector_stats().is_empty())
        said = {}

        class Counter:
            def __init__(self, name, documentation, labelnames) -> None:
                self.name = name

            def labels(self, *labels):
                return self

            def inc(self, n) -> None:
                said[self.name] = said.get(self.name, 0) + n

        kind = sys.modules["prometheus_client"].Counter
        metrics = adapter.KvtierConnector.build_prom_metrics(None, {kind: Counter}, ["engine"], {0: ["0"]})
        metrics.observe({"loaded_blocks": 3, "missed_blocks": 0}, 0)
        self.assertEqual(said, {"vllm:kvtier_loaded_blocks": 3})

    def test_events_tell_of_blocks_while_they_are_there(self):
        engine = self.engine(events=True)
        engine.answer(self.tokens)
        stored = []
        self.until(lambda: stored.extend(engine.said()) or len(stored) == 10)
        self.assertEqual({type(event) for event in stored}, {vllm_double.BlockStored})
        self.assertEqual((stored[1].token_ids, stored[1].medium), (self.tokens[8:16], "CPU"))
        self.assertEqual((stored[0].parent_block_hash, stored[1].parent_block_hash), (None, bytes(4)))
        engine.scheduler.reset_cache()
        self.assertEqual({type(event) for event in engine.said()}, {vllm_double.BlockRemoved})

    def test_events_say_what_vllms_own_say_of_groups_and_extra_keys(self):
        engine = self.engine(events=True, groups=2, spec=SlidingWindowSpec)
        engine.answer(self.tokens, cache_salt="mine")
        said = []
        self.until(lambda: said.extend(engine.said()) or len(said) == 20)
        self.assertEqual([e.group_idx for e in said], [0, 1] * 10)
        self.assertEqual([e.extra_keys for e in said[:4]], [[("mine",)]] * 2 + [[None]] * 2)
        self.assertEqual({(e.kv_cache_spec_kind, e.kv_cache_spec_sliding_window) for e in said},
                         {("SlidingWindowSpec", 16)})
        engine.scheduler.reset_cache()
        self.assertEqual([(e.group_idx, e.block_hashes) for e in engine.said()],
                         [(e.group_idx, e.block_hashes) for e in said])

    def test_blocks_are_described_to_the_nodes_publisher(self):
        """The keys of a description are those that the daemon has, and its hashes are vLLM's."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(Path(self.daemon.socket).with_name("events.sock")))
            listener.listen(4)
            engine = self.engine(groups=2, spec=SlidingWindowSpec)      # it publishes no events itself
            engine.answer(self.tokens)
            publisher, _ = listener.accept()
            with publisher:
                publisher.settimeout(60)
                said = [unpacked(publisher.recv(1 << 17)) for _ in range(10)]
        self.assertEqual(engine.said(), [])
        rows = json.loads(self.daemon.ctl("events", "--from", "0", "--json"))["events"]
        self.assertEqual({key.hex() for keys, _ in said for key in keys}, {row["key"] for row in rows})
        self.assertEqual([len(keys) for keys, _ in said], [2] * 10)
        self.assertEqual([(e["group_idx"], e["token_ids"]) for e in said[1][1]], [(0, self.tokens[8:16]),
                                                                                  (1, self.tokens[8:16])])
        self.assertEqual([events[0]["parent_block_hash"] for _, events in said[1:]],
                         [events[0]["block_hashes"][0] for _, events in said[:-1]])


class Asked(Vllm):
    """A request, or the engine's kv_role, says which of its blocks are loaded and kept."""

    def test_a_request_says_how_much_is_loaded(self):
        engine = self.warm()
        for most, blocks in ((0, 0), (7, 0), (8, 1), (20, 2), (10 ** 9, 10), (None, 10)):
            self.assertEqual(engine.answer(self.tokens, kv_transfer_params={"max_load_tokens": most}), blocks)
        request = engine.request(self.tokens, kv_transfer_params={"max_load_tokens": 16})
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 40), (16, True))      # beyond these

    def test_a_request_says_how_much_is_kept(self):
        engine = self.engine()
        for most, blocks in ((0, 0), (7, 0), (20, 2), (40, 5), (None, 10)):
            engine.answer(self.tokens, kv_transfer_params={"max_offload_tokens": most})
            self.assertEqual(self.engine().answer(self.tokens, kv_transfer_params={"max_offload_tokens": 0}), blocks)

    def test_a_limit_that_is_no_number_is_left_out(self):
        engine = self.warm()
        for wrong in (-1, True, "8", [8]):
            with self.assertLogs(LOG, "WARNING") as log:
                self.assertEqual(engine.answer(self.tokens, kv_transfer_params={"max_load_tokens": wrong}), 10)
            self.assertIn(f"max_load_tokens is {wrong!r}, must be a number of tokens", log.output[0])
        for wrong in ("max_load_tokens", [0]):
            self.assertEqual(engine.answer(self.tokens, kv_transfer_params=wrong), 10)

    def test_a_producer_loads_nothing_and_a_consumer_keeps_nothing(self):
        producer, consumer = (self.engine(transfer={"kv_role": role}) for role in ("kv_producer", "kv_consumer"))
        for engine, loaded, stored in ((consumer, 0, 0), (producer, 0, 10), (producer, 0, 10), (consumer, 10, 10)):
            self.assertEqual(engine.answer(self.tokens), loaded)
            self.assertGreaterEqual(self.ops()[1], stored)
        self.assertEqual(self.counts(consumer)["saves"], 0)

    def test_a_decode_engine_waits_for_what_a_prefill_engine_saves(self):
        prefill, decode = (self.engine({"prefetch_ms": 60000}, transfer={"kv_role": role})
                           for role in ("kv_producer", "kv_consumer"))
        early = decode.request(self.tokens, kv_transfer_params={"kvtier_tokens": 80})
        for _ in range(3):
            self.assertEqual(decode.scheduler.get_num_new_matched_tokens(early, 0), (None, False))
        prefill.answer(self.tokens, kv_transfer_params={"do_remote_decode": True})
        self.assertEqual(prefill.parameters, {"kvtier_tokens": 80})
        self.assertEqual(decode.matched(early), 80)
        self.assertEqual(decode.answer(self.tokens, kv_transfer_params=prefill.parameters), 10)

    def test_the_wait_for_a_prefill_engine_ends(self):
        asked = {"kv_transfer_params": {"kvtier_tokens": 80}}
        self.assertEqual(self.engine({"prefetch_ms": 20}).answer(self.tokens, **asked), 0)
        patient = self.engine({"prefetch_ms": 600000})
        request = patient.request([5] * 83, **asked)
        self.assertEqual(patient.scheduler.get_num_new_matched_tokens(request, 0), (None, False))
        self.daemon.kill()
        self.assertEqual(patient.matched(request), 0)

    def test_beside_a_connector_whose_handshake_vllm_takes(self):
        engine = self.engine(handshake=False)
        engine.scheduler.set_xfer_handshake_metadata({0: object()})
        self.assertEqual([engine.answer(self.tokens) for _ in range(2)], [0, 0])     # the first one tells of it
        self.until_loaded(engine)


class Sums(Vllm):
    """vLLM sums the KV of a request, and proves it after a load. The sums go through kv_transfer_params."""
    ON = {"enable_kv_checksum": True}
    CLOSED = {"enable_kv_checksum": True, "kv_checksum_fail_closed": True}

    def summed(self, extra=(), **how) -> dict:
        """What an engine answers beside the tokens of a prompt that it computes."""
        engine = self.engine(extra, **how)
        self.assertEqual(engine.answer(self.tokens), 0)
        return engine.parameters

    def test_what_is_kept_bit_for_bit_is_proven_by_another_engine(self):
        for groups, dtype, codec in ((1, torch_double.bfloat16, "raw"), (2, torch_double.float32, ""),
                                     (1, torch_double.float32, "")):        # FP32 of a CPU is kept raw
            how = {"groups": groups, "dtype": dtype, "transfer": self.ON,
                   "extra": {"codec": codec, "extras": f"{groups}{dtype}"}}
            with self.subTest(**how):
                parameters, other = self.summed(**how), self.engine(**how)
                self.assertEqual(len(parameters["kv_checksums"]), 11)
                self.assertEqual(other.answer(self.tokens + [7] * 9, kv_transfer_params=parameters), 10)
                self.assertEqual(other.compared, (10, []))

    def test_another_sum_is_seen(self):
        parameters, other = self.summed(transfer=self.ON), self.engine(transfer=self.ON)
        parameters["kv_checksums"][4] += 1
        self.assertEqual((other.answer(self.tokens, kv_transfer_params=parameters), other.compared), (10, (10, [4])))

    def test_where_vllm_must_prove_each_load_it_goes_on_with_proven_ones_alone(self):
        parameters, other = self.summed(transfer=self.CLOSED), self.engine(transfer=self.CLOSED)
        for brought, loaded, compared in ((parameters, 10, (10, [])), (None, 0, (0, [])), ({"another": 1}, 0, (0, [])),
                                          ({"kv_checksums": [0] * 10}, 0, (10, list(range(10)))),
                                          (parameters, 10, (10, []))):
            self.assertEqual(other.answer(self.tokens, kv_transfer_params=brought), loaded)
            self.assertEqual(other.compared, compared)

    def test_a_load_without_sums_is_not_compared(self):
        self.summed(transfer=self.ON)
        other = self.engine(transfer=self.ON)
        for brought in (None, {}, {"another": 1}):
            self.assertEqual((other.answer(self.tokens, kv_transfer_params=brought), other.compared), (10, None))

    def test_nothing_is_carried_of_what_is_not_kept_bit_for_bit(self):
        sums = {"kv_checksums": [0] * 10}
        for codec in ("fp8", ""):
            engine = self.engine({"codec": codec}, dtype=torch_double.bfloat16, transfer=self.ON)
            request = engine.request(self.tokens, kv_transfer_params=sums)
            engine.scheduler.get_num_new_matched_tokens(request, 0)
            self.assertTrue(engine.scheduler._scheduler.knows(request.request_id))
            for receiving in (False, True):
                self.assertIsNone(engine.scheduler.kv_checksum_carrier(request, receiving=receiving))
            self.assertEqual(engine.scheduler.request_finished(request, []), (False, None))

    def test_nothing_is_carried_unless_vllm_sums_and_the_request_is_kept(self):
        self.assertIsNone(self.summed())                    # it is not switched on
        engine = self.engine(transfer=self.CLOSED)
        engine.answer(self.tokens, prompt_embeds=object())
        self.assertEqual((engine.parameters, engine.compared), (None, None))
        with mock.patch.object(adapter, "_CARRIER", None):
            self.assertIsNone(self.summed({"extras": "old"}, transfer=self.ON))


class Refused(Vllm):
    """The engine runs uncached, and one line says why."""

    def refused(self, words: str, extra=(), break_it=None, **how) -> None:
        with self.subTest(words), self.assertLogs(LOG, "WARNING") as log:
            with break_it or mock.patch.object(Engine, "TOKENS", 8):
                engine = self.engine(extra, **how)
            self.assertEqual([engine.answer(self.tokens), engine.answer(self.tokens)], [0, 0])
        lines = {line for line in log.output if "runs uncached" in line}
        self.assertEqual(len(lines), 1, log.output)
        self.assertIn(words, lines.pop())
        self.assertEqual(self.ops(), (0, 0))

    def test_options_that_are_wrong(self):
        for wrong in ("soon", None, 0, -1, [2], True, 10 ** 20):
            self.refused(f"option timeout_ms is {wrong!r}, must be a number of milliseconds", {"timeout_ms": wrong})
        for wrong in ("zip", None, ["raw"]):
            self.refused(f"option codec is {wrong!r}, must be 'fp8' or 'raw' or 'int8' or 'q4' or 'int8v4' or "
                         "'lossless'", {"codec": wrong})
        self.refused("option socket is 5, must be a text", {"socket": 5})
        self.refused("no option ttl: the options are codec, cross_layers, ", {"ttl": 60})
        for wrong in ("soon", 2, None):
            self.refused(f"option zero_copy is {wrong!r}, must be true or false", {"zero_copy": wrong})
        with mock.patch.dict(os.environ, KVTIER_PREFETCH_MS="soon"):
            self.refused("option prefetch_ms is 'soon', must be a number of milliseconds")

    def test_int8_where_heads_and_tokens_cannot_be_told(self):
        with mock.patch.object(Engine, "HEADS", Engine.TOKENS):
            self.refused("codecs int8, q4 and int8v4 need heads of 8 tokens", {"codec": "int8"},
                         dtype=torch_double.bfloat16)

    def test_loads_that_vllm_itself_must_prove(self):
        closed = {"enable_kv_checksum": True, "kv_checksum_fail_closed": True}
        for codec in ("fp8", ""):       # the daemon's default is not known to keep every bit
            self.refused("kv_checksum_fail_closed: no load would be proven", {"codec": codec},
                         dtype=torch_double.bfloat16, transfer=closed)
        with mock.patch.object(adapter, "_CARRIER", None):
            self.refused("kv_checksum_fail_closed: kvtier knows no checksums of this vLLM", transfer=closed)

    def test_layouts_and_groups_that_are_not_known(self):
        self.refused("groups of full, sliding or chunked attention", groups=2,
                     spec=lambda tokens: SimpleNamespace(block_size=tokens))
        self.refused("states are served beside attention", groups=2, spec=MambaSpec)
        self.refused("start it with --enable-prefix-caching", groups=2, spec=type("MambaSpec", (MambaSpec,), {
            "mamba_cache_mode": "none"}))
        self.refused("blocks of 4 tokens; others have 8", spec=lambda tokens: SlidingWindowSpec(4))
        for wrong in ((0, 1, 2, 3), (1, 0, 3, 2, 2), None):
            self.refused("all layers", layout="NHD", break_it=mock.patch.object(
                vllm_double.Backend, "get_kv_cache_stride_order", lambda *_, **__: wrong))
        self.refused("sleep_mode_backend criu: kvtier sees", layout="NHD",
                     model={"enable_sleep_mode": True, "sleep_mode_backend": "criu"})
        self.refused("begins neither with 320 blocks", break_it=mock.patch.object(
            Engine, "_allocate", lambda engine: [torch_double.zeros(7, 9, dtype=torch_double.float32)] * 4))

    def test_a_worker_that_serves_nothing_or_is_missing(self):
        engine = self.engine(handshake=False)
        engine.worker.build_connector_worker_meta()         # and it is lost
        self.assertEqual(engine.answer(self.tokens), 0)     # no worker has said what it has
        engine.scheduler.set_xfer_handshake_metadata({0: adapter.KvtierHandshake(None)})
        self.assertEqual(engine.answer(self.tokens), 0)
        geometries = [tuple(g) for g in engine.worker._geometries]
        other = [(*g[:9], 1, 2, *g[11:]) for g in geometries]
        self.assertEqual(adapter.Geometry(*other[0]).rank, 1)
        with self.assertLogs(LOG, "WARNING") as log:
            engine.scheduler.set_xfer_handshake_metadata({0: adapter.KvtierHandshake(other)})
        self.assertIn("workers with the ranks [1]", log.output[0])
        self.assertEqual((engine.answer(self.tokens), self.ops()), (0, (0, 0)))

    def test_a_library_that_is_missing(self):
        with mock.patch.object(adapter, "Client", side_effect=OSError("libkvtier cannot be loaded")), \
                mock.patch.object(adapter, "SharedMemory", side_effect=OSError("libkvtier cannot be loaded")), \
                self.assertLogs(LOG, "INFO") as log:
            engine = self.engine()
            self.assertEqual([engine.answer(self.tokens), engine.answer(self.tokens)], [0, 0])
        self.assertEqual(sum("libkvtier cannot be loaded" in line for line in log.output), 3)   # memory, both roles

    def test_a_cache_promises_no_delivery(self):
        engine = self.engine()
        self.assertIs(engine.scheduler.requires_kv_delivery, False)
        self.assertEqual(engine.transfer.kv_load_failure_policy, "recompute")
        self.assertTrue(issubclass(adapter.KvtierConnector, vllm_double.SupportsHMA))
