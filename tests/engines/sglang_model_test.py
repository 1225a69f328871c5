# SPDX-License-Identifier: Apache-2.0
"""sglang_model_test.py - kvtier.sglang under SGLang with a model on the CPU: its engine, scheduler, radix cache and
pools. SGLang's kernels for a CPU are not on PyPI: stand_in/sgl_kernel has their names, and torch computes."""
import os
import unittest
from pathlib import Path

import vllm_models
from engine_process import Engine
from world import Waits, host, started

ENGINE = Path(__file__).with_name("sglang_model_engine.py")
TOKENS, PAGES = 600, 599 // 32


class WithModel(Waits):
    @classmethod
    def setUpClass(cls) -> None:
        cls.work, cls.daemon = started(cls.addClassCleanup, host(256))
        cls.model = cls.work / "speaking"
        vllm_models.speaking(cls.model)

    def engine(self, socket: str) -> Engine:
        paths = f"{ENGINE.parent / 'stand_in'}:{os.environ.get('PYTHONPATH', '')}"
        engine = Engine(ENGINE, str(self.model), socket, PYTHONPATH=paths)
        self.addCleanup(engine.kill)
        return engine

    def test_a_prefix_outlives_its_engine(self):
        """A prefix that is there is continued in a forward of other shapes than a prompt from its beginning, which
        rounds otherwise. So the measure is SGLang's own radix cache, without kvtier."""
        ask = {"seed": 1, "tokens": TOKENS}
        plain = self.engine("")
        first, again = plain.ask(**ask), plain.ask(**ask)
        plain.kill()
        self.assertEqual((first["cached"], again["cached"]), (0, 32 * PAGES))
        cold = self.engine(self.daemon.socket)
        self.assertEqual(cold.ask(**ask), first)
        self.until(lambda: cold.ask(seed=2, tokens=8) and self.daemon.stats()["store"]["blocks_total"] >= PAGES)
        cold.kill()
        warm = self.engine(self.daemon.socket)
        self.assertEqual(warm.ask(**ask), again)
        self.assertGreaterEqual(self.daemon.stats()["load"]["blocks_total"], PAGES)


if __name__ == "__main__":
    unittest.main(verbosity=2)
