# SPDX-License-Identifier: Apache-2.0
"""vllm_test.py BUILD - kvtier.vllm under the real vLLM on the CPU: what one process computed another one continues
from; the engine answers every request as it does without kvtier, whatever becomes of the daemon."""
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "client" / "examples"), str(TREE / "tests" / "engines")]

from engine_process import Engine  # noqa: E402
from llama_demo import Daemon  # noqa: E402

BUILD = Path(sys.argv.pop(1)).resolve()
ENGINE = Path(__file__).with_name("vllm_engine.py")
CONFIG = "[host]\nbytes = 256M\nhuge_pages = no\n[nvme]\nbytes = 0\n"
PATIENT_S = 120


def make_model(to: Path) -> None:
    """A small Llama with seeded random weights: wide enough that its answers depend on the whole prompt."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(7)
    LlamaForCausalLM(LlamaConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, head_dim=64,
        intermediate_size=512, vocab_size=1000, initializer_range=0.2, max_position_embeddings=4096, bos_token_id=1,
        eos_token_id=2, pad_token_id=0)).save_pretrained(to)


class Vllm(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.work = tempfile.TemporaryDirectory(prefix="kvtier-engines-")
        cls.model = Path(cls.work.name) / "tiny-llama"
        make_model(cls.model)
        cls.daemon = Daemon(BUILD, Path(cls.work.name), CONFIG)
        plain = Engine(ENGINE, str(cls.model), "")
        cls.plain = {seed: plain.ask(seeds=[seed], tokens=600)["tokens"][0] for seed in range(1, 9)}
        plain.kill()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.daemon.close()
        cls.work.cleanup()

    def engine(self, **environment: str) -> Engine:
        engine = Engine(ENGINE, str(self.model), self.daemon.socket, **environment)
        self.addCleanup(engine.kill)
        return engine

    def loaded(self) -> int:
        return self.daemon.stats()["tiers"]["host"]["hit_blocks_total"]

    def until(self, holds) -> None:
        """On a busy machine a daemon may be found late: then the engine asks it again with a later request."""
        end = time.monotonic() + PATIENT_S
        while not holds():
            self.assertLess(time.monotonic(), end, {k: self.daemon.stats()[k] for k in ("lookup", "load", "store")})

    def stores(self, engine: Engine, seed: int) -> None:
        before = self.daemon.stats()["store"]["blocks_total"]

        def stored() -> bool:
            self.is_right(engine.ask(seeds=[seed], tokens=600), seed)
            return self.daemon.stats()["store"]["blocks_total"] - before >= 600 // 32

        self.until(stored)

    def loads(self, engine: Engine, seed: int) -> None:
        """All blocks of the prompt but the one with its last token."""
        def loaded() -> bool:
            before = self.loaded()
            self.is_right(engine.ask(seeds=[seed], tokens=600), seed)
            return self.loaded() - before == 599 // 32

        self.until(loaded)

    def is_right(self, answer: dict, *seeds: int) -> None:
        self.assertEqual(answer["tokens"], [self.plain[seed] for seed in seeds])

    def test_a_prefix_outlives_its_engine(self):
        cold = self.engine()
        self.stores(cold, 1)
        cold.kill()
        self.loads(self.engine(), 1)

    def test_scheduler_and_worker_in_processes_of_their_own(self):
        self.stores(self.engine(VLLM_ENABLE_V1_MULTIPROCESSING="1"), 2)
        self.loads(self.engine(VLLM_ENABLE_V1_MULTIPROCESSING="1"), 2)

    def test_requests_beside_each_other(self):
        engine = self.engine()
        self.is_right(engine.ask(seeds=[3, 4], tokens=600), 3, 4)
        self.is_right(engine.ask(seeds=[3, 5, 4], tokens=600), 3, 5, 4)

    def test_a_daemon_that_is_killed_costs_hits_alone(self):
        engine = self.engine()
        engine.ask(seeds=[6], tokens=600)
        for delay in (0.0, 0.002, 0.01, 0.05):
            engine.begin(seeds=[6], tokens=600)
            time.sleep(delay)
            self.daemon.kill()
            self.is_right(engine.read(), 6)
            self.daemon.start()
            self.is_right(engine.ask(seeds=[6], tokens=600), 6)

    def test_a_daemon_that_stands_still_costs_hits_alone(self):
        engine = self.engine()
        engine.ask(seeds=[7], tokens=600)
        for delay in (0.0, 0.002, 0.01, 0.05):
            engine.begin(seeds=[7], tokens=600)
            time.sleep(delay)
            self.daemon.process.send_signal(signal.SIGSTOP)
            self.is_right(engine.read(), 7)
            self.is_right(engine.ask(seeds=[7], tokens=600), 7)
            self.daemon.process.send_signal(signal.SIGCONT)

    def test_an_engine_that_starts_first_finds_the_daemon_later(self):
        self.daemon.kill()
        engine = self.engine()
        self.is_right(engine.ask(seeds=[8], tokens=600), 8)
        self.daemon.start()
        self.loads(engine, 8)


if __name__ == "__main__":
    unittest.main(verbosity=2)
