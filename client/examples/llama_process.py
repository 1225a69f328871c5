# SPDX-License-Identifier: Apache-2.0
"""llama_process.py - one engine process that answers questions on a document, with its KV backed by kvtier.

    llama_process.py SOCKET CODEC KV   (run by llama_demo.py; CODEC is raw, fp8, int8, q4 or lossless, KV f16 or bf16)

A line on standard input is a question, and a line on standard output is its answer; each line is a JSON object. An
engine that uses kvtier has to do just this: fetch before the prefill, and store after it.
"""
from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import IO, List, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import kvtier  # noqa: E402
from kvtier.llama_cpp import BLOCK_TOKENS, LlamaCache, Stored  # noqa: E402

import llama_engine  # noqa: E402

# SmolLM2-Instruct's chat template, the document first so that every question on it has the same beginning.
BEFORE = ("<|im_start|>system\nYou answer questions about a document, in one or two sentences.<|im_end|>\n"
          "<|im_start|>user\nThe document:\n\n")
AFTER = "\n[...]\n\nThe question: {question}<|im_end|>\n<|im_start|>assistant\n"
N_CTX = 4096
PREFETCH_MS = 10_000    # an engine with a GPU would wait a second; here computing takes longer than that


class Progress:
    """Prints a line on standard error when two seconds have passed without one."""

    def __init__(self, what: str) -> None:
        self.what, self.last = what, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self.last >= 2:
            self.last = time.monotonic()
            print(f"      {self.what}: {done} of {total} tokens", file=sys.stderr, flush=True)


def model_name(path: str) -> str:
    """The name and revision of the model. Two files are the same model if their bytes are equal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return f"{os.path.basename(path)}@sha256:{digest.hexdigest()}"


def prompt(engine: llama_engine.Engine, question: dict) -> List[int]:
    """The tokens of document and question. They are tokenized apart, so that the document's are the same whatever is
    asked. Questions share the first prefix_tokens of it, a multiple of the block."""
    shared = engine.tokenize(BEFORE + question["document"])[:question["prefix_tokens"]]
    return shared + engine.tokenize(AFTER.format(question=question["question"]))


def prefill(engine: llama_engine.Engine, tokens: List[int], have: int) -> None:
    """Computes tokens[have:]. What follows the last block boundary is always a batch of its own, because llama.cpp
    rounds differently in batches of different sizes: so the last batch of a warm run is that of the cold run."""
    cut, progress = (len(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS, Progress("computing")
    if have < cut:
        engine.decode(tokens[have:cut], lambda done: progress(done, cut - have))
    engine.decode(tokens[max(have, cut):])


def generate(engine: llama_engine.Engine, limit: int, logits: IO[bytes], first: int) -> List[int]:
    """Decodes greedily from the first token on, and writes the logits behind every token to the file."""
    answer, progress = [first], Progress("answering")
    while len(answer) < limit and not engine.is_end(answer[-1]):
        engine.decode(answer[-1:])
        logits.write(engine.logits())
        answer.append(engine.greedy())
        progress(len(answer), limit)
    return answer


def nearest(tiers: kvtier.Tier) -> str:
    """The tier that a block is loaded from, of all tiers that have it."""
    return next((tier.name.lower() for tier in kvtier.Tier if tier in tiers), "")


def answer_question(engine: llama_engine.Engine, cache: Optional[LlamaCache], question: dict) -> dict:
    engine.reset()
    start = time.monotonic()
    tokens = prompt(engine, question)
    asked = time.monotonic()
    got = cache.fetch(tokens) if cache else None
    fetched = time.monotonic()
    have = got.tokens if got else 0
    prefill(engine, tokens, have)
    first = engine.greedy()
    ttft = time.monotonic() - start
    with open(question["logits"], "wb") as logits:
        logits.write(engine.logits())
        answer = generate(engine, question["answer_tokens"], logits, first)
    stored = cache.store(tokens, have) if cache else Stored(0, 0, None)
    error = (got.error if got else None) or stored.error
    return {"prompt_tokens": len(tokens), "hit_tokens": have, "fetch_s": fetched - asked, "ttft_s": ttft,
            "tier": nearest(got.tiers) if have else "", "stored_blocks": stored.kept,
            "answer": engine.detokenize(answer).strip(), "tokens": answer,
            "kvtier": f"away or unwilling: {error}" if error else "ok" if cache else "not connected"}


def open_cache(engine: llama_engine.Engine, path: str, socket: str, codec: str) -> Optional[LlamaCache]:
    """The cache, or None if there is no daemon: an engine works without."""
    engine.decode([0])
    sample = engine.state()     # of one token, from which the cache learns how this context keeps its KV
    engine.reset()
    try:
        client = kvtier.Client(socket, name="llama-demo")
        return LlamaCache(client, engine.lib, engine.ctx, engine.memory, model=model_name(path),
                          prefetch_ms=PREFETCH_MS, codec=kvtier.Codec[codec.upper()], sample=sample)
    except kvtier.Error as error:
        print(f"      no kvtier: {error}", file=sys.stderr, flush=True)
        return None


def main() -> None:
    socket, codec, kv = sys.argv[1:]
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)       # whatever a library prints must not get between the replies
    path = llama_engine.find_model()
    with llama_engine.Engine(llama_engine.load_library(), path, N_CTX, kv=kv) as engine:
        cache = open_cache(engine, path, socket, codec)
        print(json.dumps({"ready": True}), file=replies, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer_question(engine, cache, json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
