# SPDX-License-Identifier: Apache-2.0
"""vllm_models_test.py - kinds of models and ranks under the real vLLM on the CPU: an engine continues from what another
one computed, and its logits are those of an engine without kvtier, bit for bit; or the model is refused."""
import json
import unittest
from pathlib import Path

import vllm_models
from engine_process import Engine
from world import Waits, host, started

ENGINE = Path(__file__).with_name("vllm_engine.py")
CONTINUES = Path(__file__).with_name("vllm_models_engine.py")
TOKENS = 608            # whole blocks of 16 and of 32
STATES = {"enable_prefix_caching": True, "max_num_batched_tokens": 96, "prefix_cache_retention_interval": 96}
PATIENT_MS = 60000      # ranks wait for each other on all processors, and the daemon waits beside them


class Models(Waits):
    @classmethod
    def setUpClass(cls) -> None:
        cls.work, cls.daemon = started(cls.addClassCleanup, host(256))

    def engine(self, model: str, options: dict, program: Path = ENGINE, served: bool = True, **environment) -> Engine:
        path = self.work / model
        if not path.exists():
            getattr(vllm_models, model)(path)
        engine = Engine(program, str(path), self.daemon.socket if served else "", json.dumps(options), **environment)
        self.addCleanup(engine.kill)
        return engine

    def moved(self) -> tuple:
        stats = self.daemon.stats()
        return stats["store"]["blocks_total"], stats["load"]["blocks_total"]

    def carries(self, model: str, blocks: int, llm: dict, dtype: str = "float32", stored: int = 0, cached: int = TOKENS,
                branch: tuple = (), **how) -> None:
        """The last token is a step of its own in each engine, so that all of them compute it in the same shape.
        blocks: of the prompt, of all ranks together. stored: these and more that an engine keeps of it. branch: of a
        prompt that leaves the first one, after how many tokens, and how many of it are loaded."""
        asks = [{"seeds": [1], "tokens": TOKENS, "logprobs": True}]
        if branch:
            asks.append({**asks[0], "tokens": branch[0], "more": [list(range(3, 103))]})
        options = {"llm": {"max_num_batched_tokens": TOKENS - 1, **llm}, "dtype": dtype,
                   "extra": {"model": self.id(), "timeout_ms": PATIENT_MS}}     # no engine asks before it has a name
        plain = self.engine(model, options, served=False, **how)
        wanted = [plain.ask(**ask) for ask in asks]
        plain.kill()
        begun = self.moved()
        cold = self.engine(model, options, **how)
        self.assertEqual(cold.ask(**asks[0])["digests"], wanted[0]["digests"])
        self.assertTrue(cold.ask(prefixes=True)["reset"])       # though its saves are under way
        self.until(lambda: cold.ask(seeds=[2], tokens=8) and self.moved()[0] - begun[0] >= (stored or blocks))
        cold.kill()
        warm, before = self.engine(model, options, **how), self.moved()[1]
        got = warm.ask(**asks[0])
        self.assertEqual((got["tokens"], got["cached"]), (wanted[0]["tokens"], [cached]))
        self.assertEqual((got["digests"], self.moved()[1] - before), (wanted[0]["digests"], blocks))
        if branch:
            got = warm.ask(**asks[1])
            self.assertEqual((got["digests"], got["cached"]), (wanted[1]["digests"], [branch[1]]))

    def test_two_ranks_of_tensors(self):
        self.carries("llama", 2 * TOKENS // 32, {"tensor_parallel_size": 2}, VLLM_CPU_OMP_THREADS_BIND="0|1")

    def test_two_ranks_of_layers(self):
        """vLLM's second rank of layers has room for what the first one sends when its model was warmed up, and this is
        done on a CPU when it is compiled."""
        self.carries("llama", 2 * TOKENS // 32, {
            "pipeline_parallel_size": 2, "enforce_eager": False, "compilation_config": {"mode": 2, "backend": "eager"}},
            VLLM_CPU_OMP_THREADS_BIND="0|1")

    def test_latents(self):
        """Where a type is rounded by default, the rope part of a latent is kept apart."""
        for dtype in ("float32", "bfloat16"):
            with self.subTest(dtype):
                self.carries("latents", TOKENS // 16, {"block_size": 16}, dtype, program=CONTINUES)

    def test_states_beside_attention(self):
        """vLLM makes its blocks as large as a state, 96 tokens. It keeps states where it is told to, here behind each
        block. A prompt that leaves the first one at token 300 continues from the last state before, of its own kind:
        vLLM itself has had the blocks of the first prompt, and not that state."""
        self.carries("states", 6 + 1, STATES, stored=6 + 6, cached=576, branch=(300, 288))

    def test_states_on_two_ranks(self):
        self.carries("states", 2 * (6 + 1), {**STATES, "tensor_parallel_size": 2}, stored=2 * (6 + 6), cached=576,
                     branch=(300, 288), VLLM_CPU_OMP_THREADS_BIND="0|1")

    def test_states_of_requests_that_vllm_preempts(self):
        """Its KV has room for the prompts, and not for their answers. All states that were saved are right: an engine
        with more room goes on from them, those in answers, too."""
        ask, options = {"seeds": [31, 32, 33, 34], "tokens": 500, "answer": 300}, {"llm": STATES, "extra": {
            "model": self.id(), "timeout_ms": PATIENT_MS}}
        plain = self.engine("states", options, served=False)
        wanted = plain.ask(**ask)["tokens"]
        on = {**ask, "more": wanted, "answer": 16}
        later = plain.ask(**on)["tokens"]
        plain.kill()
        engine = self.engine("states", {**options, "llm": {**STATES, "num_gpu_blocks_override": 40}})
        self.assertEqual([engine.ask(**ask)["tokens"] for _ in range(2)], [wanted] * 2)
        counters = engine.ask(counters=True)["counters"]
        self.assertGreater(counters["vllm:num_preemptions"], 0, counters)
        self.assertGreater(counters["vllm:kvtier_loaded_blocks"], 0, counters)
        engine.kill()
        got = self.engine("states", options).ask(**on)
        self.assertEqual((got["tokens"], got["cached"]), (later, [768] * 4))

    def test_states_that_vllm_does_not_keep_are_refused_and_it_answers(self):
        ask, options = {"seeds": [1], "tokens": TOKENS}, {"extra": {"extras": self.id()}}
        plain = self.engine("states", options, served=False)
        wanted = plain.ask(**ask)["tokens"]
        plain.kill()
        engine, before = self.engine("states", options), self.moved()
        self.assertEqual([engine.ask(**ask)["tokens"] for _ in range(2)], [wanted] * 2)
        self.assertEqual(self.moved(), before)
        self.assertIn("start it with --enable-prefix-caching", engine.log.read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
