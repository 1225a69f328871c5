# SPDX-License-Identifier: Apache-2.0
"""llama_server_process.py FD FD SOCKET SLOTS BLOCK_TOKENS OPTIONS - xllamacpp's server and a SlotCache.

They have a process of their own, which the test can kill. The server's batches are a block long, so equal prompts give
equal bits. OPTIONS, in JSON: lora (an adapter's file), key (of the server), rope (its base), port. A question is asked
through the SlotCache, but with "around" past it.
"""
import json
import sys
import time

import xllamacpp

from engine_process import PATIENT_S, serve, stops_around
from kvtier.llama_server import SlotCache
from llama_engine import find_model


def made(block_tokens: int) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = find_model()
    params.n_ctx, params.n_parallel, params.cache_ram_mib, params.warmup = 1024, 2, 0, False
    params.fit_params = False       # the server would load the model twice, to see how much of it fits a GPU
    params.n_batch = params.n_ubatch = block_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    return params


def main() -> None:
    socket, slots, block_tokens, options = sys.argv[3], sys.argv[4], int(sys.argv[5]), json.loads(sys.argv[6])
    params = made(block_tokens)
    params.slot_save_path = slots
    if "lora" in options:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(options["lora"], 1.0)]
    if "key" in options:
        params.api_keys = [options["key"]]
    params.port = options.get("port", params.port)
    params.rope_freq_base = options.get("rope", params.rope_freq_base)
    server = xllamacpp.Server(params)
    cache = SlotCache(server.listening_address, slots, socket=socket, block_tokens=block_tokens, timeout_ms=2000,
                      api_key=options.get("key"))

    def reads_the_weights() -> bool:
        """Their content is their name soon; blocks that came before would be stored twice."""
        return cache._weights.first.startswith("files:") and len(cache._weights.names()) == 1

    def answer(question: dict) -> dict:
        end = time.monotonic() + PATIENT_S
        while reads_the_weights() and time.monotonic() < end:
            time.sleep(0.05)
        if question.get("stop"):
            stops_around(question["stop"])
        ask = cache._server.ask if question.get("around") else cache.ask
        got = ask(question["path"], question["body"])
        got = got if isinstance(got, (dict, list)) else list(got)
        last = cache.last._asdict()
        return {"answer": got, **last, "error": str(last["error"] or ""), "refused": cache.refused}

    serve(answer)


if __name__ == "__main__":
    main()
