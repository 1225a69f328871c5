# SPDX-License-Identifier: Apache-2.0
"""kvtier.llama_cpp_python - KvtierCache, a cache for llama-cpp-python, and its server with that cache.

    from llama_cpp import Llama
    from kvtier.llama_cpp import KvtierCache

    llm = Llama("model.gguf", n_ctx=8192)
    llm.set_cache(KvtierCache())
    llm("...")                  # what any process of this node computed of the prompt is not computed again
    print(llm.cache.last)       # Reused(prompt_tokens=2071, loaded_tokens=2048, ...)

    python -m kvtier.llama_cpp_python --model model.gguf       # flags as of python -m llama_cpp.server

The caches of llama-cpp-python keep one copy of the whole state of a context for each prompt, in one process.
KvtierCache keeps blocks of 64 tokens, so prompts share what they share, and so do processes; kvtierd bounds them and
has them in memory and on disk.

How it is called. Llama._create_completion(), with which every completion and chat is made, asks cache[prompt] before it
computes anything, takes the answer for a whole state, and loads it if it goes further than what the context holds.
KvtierCache puts the blocks into the context right then, where no state has to be copied, and says so in the Llama's
own n_tokens and input_ids; what it returns goes no further than these, so nothing is loaded after it, and generate()
computes the rest. After the completion comes cache[prompt + answer] = llm.save_state(). KvtierCache stores what the
context holds, and only the blocks that kvtier has not; the state is not used, so save_state() does not make the three
copies of it when _create_completion() is the caller.

Which prompts share blocks: equal file of weights (name, size, time; a name of yours with model=), equal LoRA and scale,
rope settings and metadata overrides, equal type and layout of the KV. Sliding windows, state-space layers, logits_all
and images are not served: `refused` and `last.skipped` say why, and llama-cpp-python runs without a cache.

Never raises into the Llama but KeyError, which it takes for a miss. For the thread that runs the Llama.
"""
from __future__ import annotations

import hashlib
import json
import logging
import sys
import weakref
from typing import Any, List, NamedTuple, Optional, Sequence

import llama_cpp
from llama_cpp import BaseLlamaCache, Llama, LlamaState

from . import Client, Codec, Error, Tier
from .block_cache import named
from .llama_cpp import BLOCK_TOKENS, LayoutError, LlamaCache
from .llama_state import Functions, files_said, weights

__all__ = ["KvtierCache", "Reused", "identity", "main"]

_log = logging.getLogger("kvtier")
_ROPE = ("rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor",
         "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx", "attention_type", "pooling_type")


class Reused(NamedTuple):
    """What became of one completion."""
    prompt_tokens: int
    loaded_tokens: int         # of these, that the context holds thanks to kvtier, with what it held before
    tiers: Tier                # where the last block came from; 0: none came
    stored_blocks: int         # in kvtier now, of those that were new
    skipped: str               # why kvtier was not asked; "" otherwise
    error: Optional[Error]     # what a daemon that is away, slow or full said


def identity(llm: Any) -> tuple:
    """(model, extras) of a Llama: two texts that name its weights, and what else changes its KV."""
    settings = {name: getattr(llm.context_params, name, None) for name in _ROPE}
    extras = [files_said(llm.lora_path), files_said(llm.lora_base), llm.lora_scale if llm.lora_path else 0, settings,
              sorted((llm.kv_overrides or {}).items())]
    return (weights(llm.model_path),
            hashlib.sha256(json.dumps(extras, default=str).encode()).hexdigest()[:32])


def _whole(tokens: Sequence[int]) -> List[int]:
    """As a list; without what follows a negative one, which is no token."""
    found = list(tokens)
    return found[:next((i for i, token in enumerate(found) if token < 0), len(found))]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def _sees_images(handler: Any) -> bool:
    """Whether a chat handler computes images: Llama.input_ids do not say which, so their KV has no key. The server
    wraps handlers in a function."""
    wrapped = [cell.cell_contents for cell in getattr(handler, "__closure__", None) or ()]
    return any(hasattr(one, "_mtmd_cpp") for one in (handler, *wrapped))


class KvtierCache(BaseLlamaCache):
    """For one Llama: the one that is given, or the first whose set_cache() gets it."""

    def __init__(self, llm: Optional[Llama] = None, capacity_bytes: int = 2 << 30, *, client: Optional[Client] = None,
                 socket: Optional[str] = None, model: Optional[str] = None, extras: str = "",
                 codec: Codec = Codec.RAW, pages: int = 16, block_tokens: int = BLOCK_TOKENS, timeout_ms: int = 2000,
                 prefetch_ms: int = 1000) -> None:
        """capacity_bytes: what llama-cpp-python's server passes; the daemon's configuration bounds what is
        kept. client: one of yours; default one of its own at `socket`, which is connected when there is a
        daemon. model: a name that means equal weights, for nodes that share a Redis; default the file's name,
        size and time. extras: what else changes KV. codec: RAW gives back what was computed bit for bit, FP8
        halves the bytes of an F16 or BF16 cache and is lossy. pages: blocks under way at once, that is the
        memory this takes. timeout_ms: of a load or store, prefetch_ms: of a prefetch from Redis."""
        super().__init__(capacity_bytes)
        self.last = Reused(0, 0, Tier(0), 0, "", None)
        self.refused = ""           # why this Llama is not served
        self._named, self._extras, self._client = model, extras, client
        self._own: Optional[Client] = None
        self._socket, self._timeout_ms = socket, timeout_ms
        self._options = dict(codec=codec, pages=pages, block_tokens=block_tokens, timeout_ms=timeout_ms,
                             prefetch_ms=prefetch_ms)
        self._blocks: Optional[LlamaCache] = None
        self._llm: Any = lambda: None       # a weak reference: the Llama has this cache
        self._stored_bytes = 0
        if llm is not None:
            self.attach(llm)

    def attach(self, llm: Llama) -> None:
        """Makes this the cache of a Llama. Once; again for the same one is fine. On an empty context one token is
        computed, to see how its KV is laid out."""
        if self._llm() is llm:
            return
        if self._llm() is not None:
            self._refuse("a KvtierCache is for one Llama; this one has another")
            return
        self._llm = weakref.ref(llm)
        if getattr(llm, "_logits_all", False):
            self._refuse("kvtier has no logits, and logits_all=True keeps those of every token: leave it out, and a "
                         "draft model, which sets it")
            return
        try:
            lib = llama_cpp.llama_cpp._lib
            ctx = llm._ctx.ctx
            memory = llama_cpp.llama_get_memory(ctx)
            model, extras = identity(llm)
            self._blocks = LlamaCache(
                self._client or self._connect, lib, ctx, memory, model=named(self._named or model),
                extras=named(f"{extras} {self._extras}"), sample=self._sample(llm, Functions(lib), ctx, memory),
                **self._options)
        except (RuntimeError, OSError, AttributeError) as error:    # LayoutError, Error; a model that computes no token
            self._refuse(str(error))
            return
        weakref.finalize(llm, self._blocks.close)
        _spare_states(llm, self)

    @staticmethod
    def _sample(llm: Any, functions: Functions, ctx: int, memory: int) -> bytes:
        """What llama.cpp writes for a sequence of one token."""
        model = functions.get_model(ctx)
        if functions.is_recurrent(model) or functions.is_hybrid(model):
            raise LayoutError("the model has state-space layers, whose state is not one of tokens")
        empty = functions.pos_max(memory, 0) == -1
        if empty:
            llm.reset()
            llm.eval([0])
        functions.seq_cp(memory, 0, 1, 0, 1)
        data = functions.state(ctx, 1)
        functions.seq_rm(memory, 1, -1, -1)
        if empty:
            functions.seq_rm(memory, 0, -1, -1)
            llm.reset()
        return data

    def _connect(self) -> Client:
        self._own = Client(self._socket, name="llama-cpp-python", timeout_ms=self._timeout_ms)
        return self._own

    def _refuse(self, why: str) -> None:
        self.refused = why
        _log.warning("kvtier: %s", self._lacks())

    def _lacks(self) -> str:
        """"" when all was well as the model was loaded, else a sentence."""
        if self.refused:
            return f"this model runs without a cache: {self.refused}"
        away = self._blocks and self._blocks.away
        return f"prompts are computed until a daemon answers: {away}" if away else ""

    def close(self) -> None:
        """Gives its memory and connection back; then it never hits. Twice is fine."""
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = None
        if self._own is not None:
            self._own.close()
            self._own = None

    @property
    def cache_size(self) -> int:
        """Bytes of the blocks that this object has stored; `kvtierctl stats` says what is kept."""
        return self._stored_bytes

    def _served(self) -> Any:
        """The Llama, or None when it is not served now."""
        llm = self._llm()
        if llm is None and not self.refused:
            self._refuse("it was set by other means than Llama.set_cache(): use KvtierCache(llm)")
        if llm is None or self._blocks is None:
            return None
        if _sees_images(getattr(llm, "chat_handler", None)):
            if not self.refused:
                self._refuse("its chat handler computes images, whose tokens do not say which")
            return None
        return llm

    def __contains__(self, key: Sequence[int]) -> bool:
        """Whether kvtier has a block of these tokens now."""
        return self._served() is not None and self._blocks.present(_whole(key)) > 0

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """Puts blocks of these tokens into the context. KeyError: there are none that it does not have. The state that
        is returned says how far the context goes, and cannot be loaded."""
        llm, tokens = self._served(), _whole(key)
        self.last = Reused(len(tokens), 0, Tier(0), 0, "", None)
        if llm is None:
            self.last = self.last._replace(skipped=self.refused or "it is closed")
            raise KeyError("kvtier does not serve this model")
        have = _common(llm.input_ids[:llm.n_tokens].tolist(), tokens)
        got = self._blocks.fetch(tokens, have)
        came = bool(got.tiers)
        if came:
            llm.input_ids[:got.tokens] = tokens[:got.tokens]
            llm.n_tokens = got.tokens
            llm._requires_eval = True
        self.last = Reused(len(tokens), got.tokens if came else 0, got.tiers, 0, "", got.error)
        if not came:
            raise KeyError("kvtier has nothing more of this prompt")
        return _state(llm)

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Stores the blocks of what the context holds of these tokens. The value is not used."""
        llm = self._served()
        if llm is None:
            return
        held = llm.input_ids[:llm.n_tokens].tolist()
        tokens = held[:_common(held, _whole(key))]
        have = self._blocks.present(tokens)
        stored = self._blocks.store(tokens, have)
        self._stored_bytes += stored.kept * self._blocks.block_bytes
        self.last = self.last._replace(stored_blocks=stored.kept, error=self.last.error or stored.error)


def _state(llm: Any) -> LlamaState:
    """Of a Llama, without what its context and its scores are."""
    return LlamaState(input_ids=llm.input_ids[:llm.n_tokens].copy(), scores=llm.scores[:0], n_tokens=llm.n_tokens,
                      llama_state=b"", llama_state_size=0, seed=llm._seed)


def _spare_states(llm: Any, cache: KvtierCache) -> None:
    """save_state() copies all of the context and its scores, three times. Where _create_completion() calls it, the copy
    is for the cache alone, which does not use it."""
    weak, original, code = weakref.ref(llm), type(llm).save_state, Llama._create_completion.__code__

    def save_state() -> LlamaState:
        own = weak()
        if own.cache is cache and sys._getframe(1).f_code is code:
            return _state(own)
        return original(own)

    llm.save_state = save_state


_set_cache = Llama.set_cache


def _set_cache_and_attach(self: Llama, cache: Optional[BaseLlamaCache]) -> None:
    if isinstance(cache, KvtierCache):
        cache.attach(self)
    _set_cache(self, cache)


_set_cache_and_attach.__doc__ = _set_cache.__doc__
Llama.set_cache = _set_cache_and_attach     # a Llama does not tell its cache who it is


def main() -> None:
    """llama-cpp-python's server. The cache of each model is a KvtierCache, whatever --cache_type says, but with --cache
    false; its daemon is $KVTIER_SOCKET's. --logits_all is false unless it is given, as kvtier has no logits. What keeps
    a model from its cache is the last line at start."""
    import uvicorn
    from llama_cpp.server.__main__ import main as serve
    from llama_cpp.server.model import LlamaProxy
    caches: List[KvtierCache] = []
    load, startup = LlamaProxy.load_llama_from_model_settings, uvicorn.Server.startup

    def load_for_kvtier(settings: Any) -> Llama:
        given = set(settings.model_fields_set)      # the server's defaults are no cache, and all logits
        settings.cache = settings.cache or "cache" not in given
        settings.logits_all = settings.logits_all and not (settings.cache and "logits_all" not in given)
        return load(settings)

    def cache(capacity_bytes: int) -> KvtierCache:
        caches.append(KvtierCache(capacity_bytes=capacity_bytes))
        return caches[-1]

    async def start_and_say(server: uvicorn.Server, *arguments: Any, **options: Any) -> None:
        await startup(server, *arguments, **options)
        for lacks in filter(None, [one._lacks() for one in caches]):
            _log.warning("kvtier: %s", lacks)

    LlamaProxy.load_llama_from_model_settings = staticmethod(load_for_kvtier)
    llama_cpp.LlamaRAMCache = llama_cpp.LlamaDiskCache = cache
    uvicorn.Server.startup = start_and_say
    serve()


if __name__ == "__main__":
    # The module that `python -m` runs is another one than kvtier.llama_cpp_python, which others import.
    from kvtier.llama_cpp_python import main as main_of_package
    main_of_package()
