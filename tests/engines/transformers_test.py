# SPDX-License-Identifier: Apache-2.0
"""transformers_test.py BUILD - kvtier.transformers under the real transformers: what one process computed another one
continues from; the engine answers every prompt, whatever becomes of the daemon; what is not served is refused."""
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "client" / "examples"), str(TREE / "tests" / "engines")]

from engine_process import MOMENTS, PATIENT_S, Engine  # noqa: E402
from llama_demo import Daemon  # noqa: E402

BUILD = Path(sys.argv.pop(1)).resolve()
ENGINE = Path(__file__).with_name("transformers_engine.py")
CONFIG = "[host]\nbytes = 256M\nhuge_pages = no\n[nvme]\nbytes = 0\n"


class Transformers(unittest.TestCase):
    def setUp(self) -> None:
        work = tempfile.TemporaryDirectory(prefix="kvtier-engines-")
        self.addCleanup(work.cleanup)
        self.daemon = Daemon(BUILD, Path(work.name), CONFIG)
        self.addCleanup(self.daemon.close)

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

    def until(self, holds) -> None:
        end = time.monotonic() + PATIENT_S
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)

    def trouble(self, number: int, after) -> None:
        """The daemon gets a signal around the load of a prompt, and around the store of another one."""
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

    def test_a_daemon_that_is_killed_costs_hits_alone(self):
        def again():
            self.daemon.kill()
            self.daemon.start()
        self.trouble(signal.SIGKILL, again)

    def test_a_daemon_that_stands_still_costs_hits_alone(self):
        self.trouble(signal.SIGSTOP, lambda: self.daemon.process.send_signal(signal.SIGCONT))

    def test_an_engine_that_starts_first_finds_the_daemon_later(self):
        self.daemon.kill()
        engine = self.engine()
        answer = engine.ask(seed=4, tokens=100)
        self.assertNotEqual(answer["error"], "")
        self.daemon.start()
        self.until(lambda: engine.ask(seed=4, tokens=100)["stored_blocks"])
        self.assertEqual(engine.ask(seed=4, tokens=100)["loaded_tokens"], 96)


class NotServed(unittest.TestCase):
    """Decided before a daemon is asked."""

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

    def test_other_weights_are_another_model(self):
        import torch
        from kvtier.transformers import _sampled, fingerprint
        with self.cache() as cache:
            before = fingerprint(_sampled(cache._model))
            with torch.no_grad():
                cache._model.model.layers[1].mlp.up_proj.weight.mul_(1.01)
            self.assertNotEqual(fingerprint(_sampled(cache._model)), before)


if __name__ == "__main__":
    unittest.main(verbosity=2)
