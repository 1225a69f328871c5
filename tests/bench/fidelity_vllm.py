# SPDX-License-Identifier: Apache-2.0
"""fidelity_vllm.py - what fidelity.py asks of vLLM on the CPU. As a program it is the engine's process (main(), below);
engine_process.py says how it is asked.

An engine reads the prefix, as a request of its own, and vLLM's prefix cache keeps the KV as it was computed. The next
request has one token more. For each token of its answer a logits processor keeps the distribution and then permits the
text's next token alone. Before the same request is asked again, vLLM's prefix cache is emptied, so that the prefix
comes from kvtierd; the daemon's counters say whether it did. In each of these requests vLLM computes one token a step,
so that nothing but the prefix's KV can make a difference.
"""
import json
import os
import pathlib
import sys
import time
from typing import Callable, Iterator

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "engines")]

from engine_process import Engine, serve  # noqa: E402

# scheduler and worker in one process, which computes with one thread, with kvtier and without: rounding depends on the
# number of threads, and where others use the machine two threads wait for each other
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
               "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(ROOT / "client" / "python")}
PATIENT_S = 60


class Asked:
    """An engine's process, and the text that is forced on it."""

    def __init__(self, model: pathlib.Path, prefix: torch.Tensor, text: torch.Tensor, llm: dict, library: pathlib.Path,
                 at: str = "", codec: str = "") -> None:
        self.tokens = prefix.shape[1]
        options = {"socket": at, "codec": codec, "llm": llm, "prefix": prefix[0].tolist(), "text": text[0].tolist()}
        (model / "options.json").write_text(json.dumps(options))
        self.engine = Engine(pathlib.Path(__file__), str(model), KVTIER_LIBRARY=str(library), **ENVIRONMENT)
        self.engine.ask(read=True)

    def force(self, to: pathlib.Path) -> torch.Tensor:
        cached = self.engine.ask(force=str(to))["cached"]
        if cached != self.tokens:
            sys.exit(f"fidelity.py: {cached} of {self.tokens} tokens came from a cache")
        return torch.load(to)


def until(holds: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + PATIENT_S
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"fidelity.py: {otherwise} within {PATIENT_S} s")
        time.sleep(0.05)


def through_kvtier(asked: Asked, daemon, blocks: int, to: pathlib.Path) -> torch.Tensor:
    """As Asked.force(), with the prefix's blocks from kvtierd."""
    loaded = daemon.stats()["load"]["blocks_total"]
    until(lambda: asked.engine.ask(reset=True)["reset"], "vLLM's prefix cache was not emptied")
    ret = asked.force(to)
    loaded = daemon.stats()["load"]["blocks_total"] - loaded
    if loaded != blocks:
        sys.exit(f"fidelity.py: {loaded} of {blocks} blocks were loaded")
    return ret


def rows(model: pathlib.Path, daemon, codecs: list, prefix: torch.Tensor, text: torch.Tensor, block: int,
         piece: int) -> Iterator[tuple]:
    """Name, log probabilities with the KV as computed, those with another KV. model: a directory with the model."""
    tokens = prefix.shape[1] + text.shape[1]
    llm = {"block_size": block, "max_model_len": tokens + block, "max_num_batched_tokens": tokens, "max_num_seqs": 1}
    library, to = daemon.build / "libkvtier.so.0", model / "distributions.pt"
    os.environ["KVTIER_ENGINE_LOGS"] = str(daemon.build)
    blocks, p = prefix.shape[1] // block, None
    for name in codecs:
        stored = daemon.stats()["store"]["blocks_total"] + blocks
        asked = Asked(model, prefix, text, llm, library, daemon.socket, name)
        try:
            computed = p is None
            p = asked.force(to) if computed else p      # the KV as computed is the same one for each codec
            until(lambda: daemon.stats()["store"]["blocks_total"] >= stored, f"{blocks} blocks were not kept")
            q = through_kvtier(asked, daemon, blocks, to)
        finally:
            asked.engine.kill()
        if computed:
            floor = Asked(model, prefix, text, {**llm, "max_num_batched_tokens": piece}, library)
            try:
                yield "floor", p, floor.force(to)
            finally:
                floor.engine.kill()
        yield name, p, q


def main() -> None:
    """fidelity_vllm.py FD FD MODEL; MODEL/options.json: see Asked."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.v1.sample.logits_processor import LogitsProcessor

    class Forcing(LogitsProcessor):
        """One request at a time."""
        text, kept = [], []

        def __init__(self, config, device, is_pin_memory) -> None:
            pass

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update) -> None:
            pass

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            if self.text:
                self.kept.append(torch.log_softmax(logits[0].float(), dim=-1))
                logits.fill_(-torch.inf)
                logits[0, self.text.pop(0)] = 0
            return logits

    model = pathlib.Path(sys.argv[3])
    options = json.loads((model / "options.json").read_text())
    prefix, text = options["prefix"], options["text"]
    connector = {"kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier.vllm", "kv_role": "kv_both",
                 "kv_load_failure_policy": "recompute",
                 "kv_connector_extra_config": {"socket": options["socket"], "codec": options["codec"]}}
    llm = LLM(str(model), dtype="bfloat16", enforce_eager=True, skip_tokenizer_init=True, enable_prefix_caching=True,
              logits_processors=[Forcing], kv_transfer_config=connector if options["socket"] else None,
              **options["llm"])

    def generate(prompt: list, tokens: int):
        how = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        return llm.generate([TokensPrompt(prompt_token_ids=prompt)], how, use_tqdm=False)[0]

    def answer(question: dict) -> dict:
        if question.get("reset"):
            generate(text[:1], 1)       # a step, in which the connector lets go of the blocks that it has stored
            return {"reset": llm.reset_prefix_cache()}
        if question.get("read"):
            return {"cached": generate(prefix, 1).num_cached_tokens}
        Forcing.text[:], Forcing.kept[:] = text[1:], []
        output = generate(prefix + text[:1], len(text) - 1)
        assert list(output.outputs[0].token_ids) == text[1:] and len(Forcing.kept) == len(text) - 1
        torch.save(torch.stack(Forcing.kept), question["force"])
        return {"cached": output.num_cached_tokens}

    serve(answer)


if __name__ == "__main__":
    main()
