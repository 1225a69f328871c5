# SPDX-License-Identifier: Apache-2.0
"""transformers_test.py - kvtier.transformers under the real transformers. A process continues from what another one
computed, a model that is changed is another one, the engine answers every prompt as the model alone does whatever
becomes of the daemon, and what is not served is refused."""
import os
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

from engine_process import MOMENTS, PATIENT_S, Engine, Trouble, blocks
from fidelity_cases import FidelityRules  # noqa: F401 (unittest runs them)
from world import World, host, started

ENGINE = Path(__file__).with_name("transformers_engine.py")
LARGE = host(256)


class Transformers(Trouble, World):
    settings = LARGE

    def engine(self) -> Engine:
        engine = Engine(ENGINE, self.daemon.socket)
        self.addCleanup(engine.kill)
        return engine

    def test_a_prefix_outlives_its_engine(self):
        cold = self.engine()
        plain = cold.ask(seed=1, tokens=300, plain=True)["tokens"]
        first = cold.ask(seed=1, tokens=300)
        own = cold.ask(seed=1, tokens=300, logits="own", split=288)["logits"]
        cold.kill()
        warm = self.engine()
        second = warm.ask(seed=1, tokens=300)
        self.assertEqual((first["loaded_tokens"], second["loaded_tokens"]), (0, 288))
        self.assertEqual(first["tokens"], plain)
        self.assertEqual(second["tokens"], plain)
        got = warm.ask(seed=1, tokens=300, logits="loaded")
        self.assertEqual(got, {"split": 288, "logits": own})
        self.assertGreater(self.daemon.stats()["tiers"]["host"]["hit_blocks_total"], 0)

    def test_the_program_of_the_readme(self):
        program, = blocks("transformers", "python")
        run = [sys.executable, "-B", "-c", f"from transformers_engine import model, prompt\nmodel, input_ids = "
                                           f"model(), prompt(3, 200)\n{program}\nprint(output.tolist())"]
        said = [subprocess.run(run, check=True, capture_output=True, text=True, cwd=ENGINE.parent, timeout=PATIENT_S,
                               env={**os.environ, "KVTIER_SOCKET": self.daemon.socket}).stdout.splitlines()
                for _ in range(2)]
        self.assertIn("loaded_tokens=0,", said[0][0])
        self.assertIn("loaded_tokens=192,", said[1][0])
        self.assertEqual(said[0][-1], said[1][-1])
        self.assertGreater(self.daemon.stats()["load"]["blocks_total"], 0)

    def trouble(self, number: int, after) -> None:
        engine = self.engine()
        plain = {seed: engine.ask(seed=seed, tokens=600, plain=True)["tokens"] for seed in (2, 3, 4, 5)}
        for op, moment, seed in (*(("load", moment, 2) for moment in MOMENTS),
                                 *(("store", moment, 3 + i) for i, moment in enumerate(MOMENTS))):
            with self.subTest(f"{moment} {op}"):
                self.until(lambda: engine.ask(seed=2, tokens=600)["loaded_tokens"] == 576)
                engine.begin(seed=seed, tokens=600, stop=op)
                engine.strikes(self.daemon.process, number, moment)
                answer = engine.read()
                self.assertEqual(answer["tokens"], plain[seed])
                if moment != "after":
                    self.assertEqual((answer["loaded_tokens"], answer["stored_blocks"]), (0, 0))
                    self.assertNotEqual(answer["error"], "")
                self.assertEqual(engine.ask(seed=seed, tokens=600)["tokens"], plain[seed])
                after()
        self.until(lambda: engine.ask(seed=2, tokens=600)["loaded_tokens"] == 576)

    def test_an_engine_that_starts_first_finds_the_daemon_later(self):
        self.daemon.kill()
        engine = self.engine()
        answer = engine.ask(seed=4, tokens=100)
        self.assertNotEqual(answer["error"], "")
        self.daemon.start()
        self.until(lambda: engine.ask(seed=4, tokens=100)["stored_blocks"])
        self.assertEqual(engine.ask(seed=4, tokens=100)["loaded_tokens"], 96)


NAMES = """
import torch
from peft import LoraConfig, get_peft_model
from kvtier.adapters.transformers_model import look
from transformers_engine import model
torch.set_num_threads(1)
print(look(model(), 32).name())
print(look(torch.compile(model(), backend="eager"), 32).name())
torch.manual_seed(3)
low = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
print(look(get_peft_model(model(), low).eval(), 32).name())
"""


class EveryProcess(unittest.TestCase):
    def test_equal_models_have_one_name(self):
        names = [subprocess.run([sys.executable, "-W", "ignore", "-B", "-c", NAMES], stdout=subprocess.PIPE, check=True,
                                env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")]
        self.assertEqual(names[0], names[1])
        self.assertEqual(len(set(names[0].splitlines())), 3)


class NotServed(unittest.TestCase):
    """What is refused before a daemon is asked."""

    def cache(self, **config):
        import torch
        from transformers import AutoModelForCausalLM, MistralConfig
        from kvtier.transformers import PrefixCache
        torch.manual_seed(1)
        small = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
                     intermediate_size=64, vocab_size=100)
        model = AutoModelForCausalLM.from_config(MistralConfig(**{**small, "sliding_window": None, **config})).eval()
        return PrefixCache(mock.Mock(), model)

    def test_a_sliding_window_is_refused(self):
        from kvtier.transformers import LayoutError
        with self.assertRaisesRegex(LayoutError, "DynamicSlidingWindowLayer"):
            self.cache(sliding_window=16)

    def test_a_batch_is_computed_without_kvtier(self):
        import torch
        with self.cache() as cache:
            out = cache.generate(torch.ones((2, 40), dtype=torch.long), max_new_tokens=2, pad_token_id=0)
            self.assertEqual((tuple(out.shape), cache.last.skipped), ((2, 42), "a batch of 2 prompts"))

    def test_tokens_that_are_no_tokens_are_refused(self):
        """Adapters of peft that put KV in front of the prompt's."""
        from kvtier.transformers import LayoutError, PrefixCache
        from peft import PrefixTuningConfig, PromptTuningConfig, TaskType, get_peft_model
        for kind in (PrefixTuningConfig, PromptTuningConfig):
            with self.cache() as cache:
                tuned = get_peft_model(cache._model, kind(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=5)).eval()
            with self.assertRaises(LayoutError):
                PrefixCache(mock.Mock(), tuned)


class OneProcess(unittest.TestCase):
    """A model and its caches in this process: what a call changes, and what is changed between two calls."""

    @classmethod
    def setUpClass(cls) -> None:
        import torch
        import transformers_engine
        torch.set_num_threads(1)
        cls.torch, cls.model = torch, staticmethod(transformers_engine.model)
        cls.ids = transformers_engine.prompt(1, 200)        # six full blocks
        _, cls.daemon = started(cls.addClassCleanup, LARGE)

    def cache(self, model):
        from kvtier import Client
        from kvtier.transformers import PrefixCache
        client = Client(self.daemon.socket, timeout_ms=10000)
        self.addCleanup(client.close)
        cache = PrefixCache(client, model, name=self.id())
        self.addCleanup(cache.close)
        return cache

    def loaded(self, cache, ids=None, **how) -> int:
        """How many tokens were loaded. It checks that the answer is that of the model alone."""
        ids = self.ids if ids is None else ids
        how = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0, **how}
        got = cache.generate(ids, **how)
        self.assertEqual(got.tolist(), cache._model.generate(ids, **how).tolist())
        return cache.last.loaded_tokens

    def once_more(self, cache) -> None:
        """The model is another one now: it does not hit blocks of before, then hits its own, also in another cache."""
        self.assertEqual([self.loaded(cache), self.loaded(cache)], [0, 192])
        self.assertEqual(self.loaded(self.cache(cache._model)), 192)

    def test_adapters_that_are_switched_merged_and_off(self):
        from peft import LoraConfig, get_peft_model
        self.torch.manual_seed(3)
        low = LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj"], init_lora_weights=False)
        model = get_peft_model(self.model(), low, adapter_name="one")
        model.add_adapter("two", low)
        model.eval()
        cache = self.cache(model)
        self.once_more(cache)
        model.set_adapter("two")
        self.once_more(cache)
        with model.disable_adapter():
            self.once_more(cache)
        model.set_adapter("one")
        self.assertEqual([self.loaded(cache), self.loaded(self.cache(model))], [192, 192])
        model.merge_adapter()
        self.once_more(cache)

    def test_weights_and_settings_that_are_changed(self):
        model = self.model()
        cache, layer = self.cache(model), model.model.layers[0]
        self.once_more(cache)
        rows = (model.model.embed_tokens.weight.data[self.ids[0, 5]], layer.mlp.up_proj.weight.data)    # no _version
        for change in (*(lambda row=row: row.mul_(1.01) for row in rows),
                       lambda: setattr(layer.input_layernorm, "variance_epsilon", 1e-5),
                       lambda: setattr(model.config, "rms_norm_eps", 1e-5),
                       lambda: layer.register_forward_hook(lambda _module, _inputs, output: output * 1.01),
                       model.bfloat16):
            change()
            self.once_more(cache)

    def test_another_model_of_the_same_weights(self):
        from torch.ao.quantization import quantize_dynamic
        from transformers import LlamaForCausalLM
        model = self.model()
        self.once_more(self.cache(model))
        config = type(model.config)(**{**model.config.to_dict(), "rms_norm_eps": 1e-5})
        other = LlamaForCausalLM(config).eval()
        other.load_state_dict(model.state_dict())
        self.once_more(self.cache(other))
        self.assertEqual(self.loaded(self.cache(quantize_dynamic(model, {self.torch.nn.Linear}))), 0)

    def test_guesses_are_the_models_own(self):
        import transformers_engine
        model, helper = self.model(), self.model()
        cache = self.cache(model)
        for seed in (1, 2, 3):
            ids = transformers_engine.prompt(seed, 40).repeat(1, 5)
            self.loaded(cache, ids, max_new_tokens=40)
            answer = model.generate(ids, max_new_tokens=40, do_sample=False, pad_token_id=0)
            ids = self.torch.cat([ids, answer[:, 200:], ids[:, -8:]], 1)    # its answer may well come again
            self.loaded(cache, ids, max_new_tokens=40)
            self.assertGreater(self.loaded(cache, ids), 192)
            for how in ({"prompt_lookup_num_tokens": 4}, {"assistant_model": helper}):
                self.loaded(cache, ids, max_new_tokens=40, **how)
                self.assertIn(next(iter(how)), cache.last.skipped)

    def test_settings_that_go_with_no_cache_of_ours(self):
        from transformers import GenerationConfig
        cache = self.cache(self.model())
        self.loaded(cache)
        own = cache._model.generation_config
        for name, value in (("num_beams", 2), ("cache_implementation", "static"), ("prompt_lookup_num_tokens", 4),
                            ("prefill_chunk_size", 3)):
            for how in ({name: value}, {"generation_config": GenerationConfig(**{name: value})}):
                with self.subTest(f"{name} {value} {list(how)}"):
                    self.loaded(cache, **how)
                    self.assertIn(name, cache.last.skipped)
            with self.subTest(f"{name} {value} of the model"), mock.patch.object(own, name, value):
                self.loaded(cache)
                self.assertIn(name, cache.last.skipped)
        for how in ({"generation_config": GenerationConfig(max_new_tokens=5)},
                    {"output_scores": True}, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3}):
            self.assertEqual(self.loaded(cache, **how), 192)

    def test_padding_in_a_prompt_is_left_out_as_ever(self):
        cache = self.cache(self.model())
        self.loaded(cache, pad_token_id=int(self.ids[0, 3]), eos_token_id=999)
        self.assertIn("padding", cache.last.skipped)

    def test_a_call_that_raises_with_a_cache_is_computed_without_one(self):
        model = self.model()
        cache = self.cache(model)
        self.loaded(cache)
        forward = model.forward

        def raising(*inputs, past_key_values=None, **more):
            if past_key_values is not None and past_key_values.get_seq_length() == 192:
                raise RuntimeError("no cache of 192 tokens, please")
            return forward(*inputs, past_key_values=past_key_values, **more)

        with mock.patch.object(model, "forward", raising):
            self.loaded(cache)      # under another name, so nothing is there
            self.assertEqual(self.loaded(cache), 0)
        self.assertIn("192 tokens, please", cache.last.skipped)

    def test_a_prompt_beyond_the_rotations_length(self):
        from transformers import LlamaConfig, LlamaForCausalLM
        self.torch.manual_seed(7)
        for rope in ({"rope_type": "dynamic", "factor": 4.0}, {
                "rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 16, "long_factor": [4.0] * 16,
                "original_max_position_embeddings": 210}):
            model = LlamaForCausalLM(LlamaConfig(
                hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=64,
                vocab_size=1000, initializer_range=0.3, max_position_embeddings=210,
                rope_parameters={**rope, "rope_theta": 10000.0})).eval()
            cache, short = self.cache(model), {"max_new_tokens": 4}
            self.loaded(cache)      # its answer goes beyond
            self.assertIn("more than 210", str(cache.last.error))
            self.assertEqual([self.loaded(cache, **short), self.loaded(cache, **short)], [0, 192])
            beyond = self.torch.cat([self.ids, self.ids[:, :11]], 1)
            cache.generate(beyond, max_new_tokens=4, pad_token_id=0)
            self.assertIn("more than 210 tokens", cache.last.skipped)
            self.assertEqual(self.loaded(cache, **short), 192)


if __name__ == "__main__":
    unittest.main(verbosity=2)
