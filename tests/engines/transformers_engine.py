# SPDX-License-Identifier: Apache-2.0
"""transformers_engine.py FD FD SOCKET - a process that answers prompts by a transformers model backed by kvtier.

engine_process.py says how it is asked. The model is a small Llama with seeded random weights in FP32, so two processes
have the same one and greedy decoding is deterministic.
"""
import hashlib
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvtier import Client, Error
from kvtier.transformers import kvtier_cache

from engine_process import serve, stops_around

VOCABULARY = 1000


def model() -> LlamaForCausalLM:
    torch.manual_seed(7)
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        intermediate_size=512, vocab_size=VOCABULARY, initializer_range=0.2, max_position_embeddings=8192)).eval()


def prompt(seed: int, n: int) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (1, n), generator=torch.Generator().manual_seed(seed))


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def continued(llama: LlamaForCausalLM, ids: torch.Tensor, past, split: int) -> str:
    """A digest of the logits when the KV of the first `split` tokens is in `past` and one forward computes the rest."""
    with torch.no_grad():
        return digest(llama(input_ids=ids[:, split:], past_key_values=past, use_cache=True).logits)


def answer(llama, cache, question: dict) -> dict:
    ids = prompt(question["seed"], question["tokens"])
    how = {"max_new_tokens": question.get("answer", 16), "do_sample": False, "pad_token_id": 0}
    if question.get("plain"):
        return {"tokens": llama.generate(ids, **how)[0].tolist()}
    if question.get("logits") == "own":     # the engine's own prefix: computed in one forward, cut at the split
        with torch.no_grad():
            past = llama(input_ids=ids, use_cache=True).past_key_values
        past.crop(question["split"] - past.get_seq_length())
        return {"logits": continued(llama, ids, past, question["split"])}
    if question.get("logits"):
        past, split, _, _ = cache.fetch(ids)
        return {"split": split, "logits": continued(llama, ids, past, split)}
    if question.get("stop"):
        stops_around(question["stop"])
    tokens = cache.generate(ids, **how)[0].tolist()
    last = cache.last._asdict()
    return {"tokens": tokens, **last, "error": str(last["error"] or "")}


def main() -> None:
    torch.set_num_threads(1)
    llama = model()
    with kvtier_cache(llama, lambda: Client(sys.argv[3], timeout_ms=2000), name="tiny-llama") as cache:
        serve(lambda question: answer(llama, cache, question))


if __name__ == "__main__":
    try:
        main()
    except Error as error:
        sys.exit(f"transformers_engine.py: {error}")
