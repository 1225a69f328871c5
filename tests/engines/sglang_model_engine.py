# SPDX-License-Identifier: Apache-2.0
"""sglang_model_engine.py FD FD MODEL SOCKET - a process that answers prompts by SGLang with a model on the CPU.

engine_process.py says how it is asked. Scheduler, radix cache, pools and the model are SGLang's; its kernels are what
torch has. kvtier is its linker; if SOCKET is "", it runs without kvtier.
"""
import os
import random
import sys

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"

from engine_process import serve  # noqa: E402

PAGE = 32


def linker(socket: str) -> dict:
    if not socket:
        return {}
    config = {"linker": "KvtierLinker", "linker_module_path": "kvtier.sglang",
              "linker_extra_config": {"socket": socket, "codec": "raw", "timeout_ms": 60000}}
    return {"enable_unified_cache_external_linker": True, "unified_cache_external_linker_backend": "dynamic",
            "unified_cache_external_linker_config": config}


def main() -> None:
    from sglang.srt.entrypoints.engine import Engine
    model, socket = sys.argv[3:5]
    engine = Engine(model_path=model, device="cpu", attention_backend="torch_native", skip_tokenizer_init=True,
                    dtype="float32", disable_cuda_graph=True, mem_fraction_static=0.1, max_total_tokens=4096,
                    page_size=PAGE, sampling_backend="pytorch", **linker(socket))

    def answer(question: dict) -> dict:
        numbers = random.Random(question["seed"])
        got = engine.generate(input_ids=[[numbers.randrange(3, 1000) for _ in range(question["tokens"])]],
                              sampling_params={"max_new_tokens": 16, "temperature": 0, "ignore_eos": True},
                              return_logprob=True)[0]
        return {"tokens": got["output_ids"], "cached": got["meta_info"]["cached_tokens"],
                "logprobs": [repr(value) for value, *_ in got["meta_info"]["output_token_logprobs"]]}

    serve(answer)


if __name__ == "__main__":
    main()
