# SPDX-License-Identifier: Apache-2.0
"""kvtier.llama_cpp_python - KvtierCache, a cache for llama-cpp-python, and its server with that cache.

    from llama_cpp import Llama
    from kvtier.llama_cpp import KvtierCache

    llm = Llama("model.gguf", n_ctx=8192)
    llm.set_cache(KvtierCache())
    llm("...")                  # what any process of this node computed of the prompt is not computed again
    print(llm.cache.last)       # Reused(prompt_tokens=2071, loaded_tokens=2048, ...)

    python -m kvtier.llama_cpp_python --model model.gguf       # it has the flags of python -m llama_cpp.server

The caches of llama-cpp-python keep one copy of the whole state of a context for each prompt, in one process.
KvtierCache keeps blocks of 64 tokens, so prompts and processes share the blocks that they have in common. kvtierd
bounds them and keeps them in memory and on disk.

How it is called: Llama._create_completion(), which makes every completion and chat, asks cache[prompt] before it
computes anything. It takes the answer for a whole state, and loads it if it holds more than the context. KvtierCache
puts the blocks into the context right then, where no state has to be copied, and says so in the Llama's own n_tokens
and input_ids. Its answer holds no more than these, so no state is loaded after it, and generate() computes the rest.

After the completion comes cache[prompt + answer] = llm.save_state(). KvtierCache stores what the context holds, and
only the blocks that kvtier lacks. It does not use the state, so save_state() does not make the three copies of it when
_create_completion() is the caller.

Prompts share blocks if their Llamas have the same weights (the content of their files, as weights.py says; or the name
that you gave with model=), LoRA and scale, rope settings, metadata overrides, and type and layout of the KV. Sliding
windows, state-space layers, logits_all and images are not served: `refused` and `last.skipped` say why, and
llama-cpp-python runs without a cache.

A KvtierCache raises only KeyError into the Llama, which takes it for a miss. Only the Llama's thread may use it.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sys
import weakref
from typing import Any, List, Optional, Sequence, Tuple

import llama_cpp
from llama_cpp import BaseLlamaCache, Llama, LlamaState

from . import Client, Codec
from .block_cache import LayoutError, Reused, common, named
from .llama_cpp import BLOCK_TOKENS, LlamaCache
from .adapters.llama_state import Functions
from .adapters.weights import Weights, space_of

__all__ = ["KvtierCache", "Reused", "identity", "main"]

_log = logging.getLogger("kvtier")
_ROPE = ("rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor",
         "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx", "attention_type", "pooling_type")


def identity(llm: Any, own: Optional[str] = None) -> Tuple[Weights, str]:
    """(weights, extras) of a Llama: the names of its weights, and a text of what else changes its KV. own: the name
    that a user gives to the model's weights."""
    settings = {name: getattr(llm.context_params, name, None) for name in _ROPE}
    extras = [llm.lora_scale if llm.lora_path else 0, settings, sorted((llm.kv_overrides or {}).items())]
    return (Weights(None if own else llm.model_path, llm.lora_path, llm.lora_base,
                    say=lambda text: _log.info("kvtier: %s", text)),
            hashlib.sha256(json.dumps(extras, default=str).encode()).hexdigest()[:32])


def _whole(tokens: Sequence[int]) -> List[int]:
    """The tokens as a list, up to the first negative number, which is no token."""
    found = list(tokens)
    return found[:next((i for i, token in enumerate(found) if token < 0), len(found))]


def _sees_images(handler: Any) -> bool:
    """Whether a chat handler computes images. Llama.input_ids do not say which images, so their KV has no key. The
    server wraps handlers in a function."""
    wrapped = [cell.cell_contents for cell in getattr(handler, "__closure__", None) or ()]
    return any(hasattr(one, "_mtmd_cpp") for one in (handler, *wrapped))


class KvtierCache(BaseLlamaCache):
    """The cache of one Llama: of the one that is given, or of the first whose set_cache() gets it."""

    def __init__(self, llm: Optional[Llama] = None, capacity_bytes: int = 2 << 30, *, client: Optional[Client] = None,
                 socket: Optional[str] = None, model: Optional[str] = None, extras: str = "",
                 codec: Codec = Codec.RAW, pages: int = 16, block_tokens: int = BLOCK_TOKENS, timeout_ms: int = 2000,
                 prefetch_ms: int = 1000) -> None:
        """capacity_bytes: what llama-cpp-python's server passes; it has no effect, as the daemon's configuration bounds
        what is kept. client: one of yours; by default the cache has one of its own at `socket`, which is connected when
        there is a daemon. model: a name that means equal weights, for nodes that share a Redis; by default the file's
        content (weights.py). extras: what else changes KV. codec: RAW gives back what was computed bit for bit, FP8
        halves the bytes of an F16 or BF16 cache and is lossy. pages: how many blocks are under way at once, which is
        the memory that this takes. timeout_ms: for a load or store. prefetch_ms: for a prefetch from Redis."""
        super().__init__(capacity_bytes)
        self.last = Reused()        # if any tokens came, loaded_tokens counts those that the context held before, too
        self.refused = ""           # why this Llama is not served
        self._named, self._extras, self._ends = model, extras, contextlib.ExitStack()
        self._client = client or (lambda: self._ends.enter_context(
            Client(socket, name="llama-cpp-python", timeout_ms=timeout_ms)))
        self._options = dict(codec=codec, pages=pages, block_tokens=block_tokens, timeout_ms=timeout_ms,
                             prefetch_ms=prefetch_ms)
        self._blocks: Optional[LlamaCache] = None
        self._llm: Any = lambda: None       # a weak reference, as the Llama refers to this cache
        self._stored_bytes = 0
        if llm is not None:
            self.attach(llm)

    def attach(self, llm: Llama) -> None:
        """Makes this the cache of a Llama. A second call for the same Llama does nothing. On an empty context
        one token is computed, to see how its KV is laid out."""
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
            weights, extras = identity(llm, self._named)
            model = self._named or space_of(llm.model_path, getattr(llm, "metadata", {}).get("general.architecture"))
            self._blocks = LlamaCache(
                self._client, lib, ctx, memory, model=named(model), names=weights.names,
                extras=named(f"{extras} {self._extras}"), sample=self._sample(llm, Functions(lib), ctx, memory),
                **self._options)
        except (RuntimeError, OSError, AttributeError) as error:    # LayoutError, Error; a model that computes no token
            self._refuse(str(error))
            return
        weights.names()         # it begins to read
        weakref.finalize(llm, self._blocks.close)
        _spare_states(llm, self)

    @staticmethod
    def _sample(llm: Any, functions: Functions, ctx: int, memory: int) -> bytes:
        """The bytes that llama.cpp writes for a sequence of one token."""
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

    def _refuse(self, why: str) -> None:
        self.refused = why
        _log.warning("kvtier: %s", self._lacks())

    def _lacks(self) -> str:
        """A sentence about what went wrong when the model was loaded, or ""."""
        if self.refused:
            return f"this model runs without a cache: {self.refused}"
        away = self._blocks and self._blocks.away
        return f"prompts are computed until a daemon answers: {away}" if away else ""

    def close(self) -> None:
        """Frees the memory and closes the connection; the cache never hits after that. It may be called twice."""
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = None
        self._ends.close()

    @property
    def cache_size(self) -> int:
        """How many bytes the blocks have that this object stored; `kvtierctl stats` says what is kept."""
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
        """Puts blocks of these tokens into the context. KeyError: the context has all of them already. The returned
        state says how many tokens the context holds, and cannot be loaded."""
        llm, tokens = self._served(), _whole(key)
        self.last = Reused(len(tokens))
        if llm is None:
            self.last = self.last._replace(skipped=self.refused or "it is closed")
            raise KeyError("kvtier does not serve this model")
        have = common(llm.input_ids[:llm.n_tokens].tolist(), tokens)
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
        """Stores the blocks that the context holds of these tokens. The value is not used."""
        llm = self._served()
        if llm is None:
            return
        held = llm.input_ids[:llm.n_tokens].tolist()
        tokens = held[:common(held, _whole(key))]
        have = self._blocks.present(tokens)
        stored = self._blocks.store(tokens, have)
        self._stored_bytes += stored.kept * self._blocks.block_bytes
        self.last = self.last._replace(stored_blocks=stored.kept, error=self.last.error or stored.error)


def _state(llm: Any) -> LlamaState:
    """The state of a Llama, without its context and its scores."""
    return LlamaState(input_ids=llm.input_ids[:llm.n_tokens].copy(), scores=llm.scores[:0], n_tokens=llm.n_tokens,
                      llama_state=b"", llama_state_size=0, seed=llm._seed)


def _spare_states(llm: Any, cache: KvtierCache) -> None:
    """Spares the copies of save_state(), which copies all of the context and its scores three times. When
    _create_completion() calls it, the copy is for the cache alone, which does not use it."""
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
Llama.set_cache = _set_cache_and_attach     # else a cache does not learn which Llama has it


def main() -> None:
    """Runs llama-cpp-python's server. The cache of each model is a KvtierCache, whatever --cache_type says, unless
    --cache is false. Its daemon is that of $KVTIER_SOCKET. --logits_all is false unless it is given, as kvtier keeps no
    logits. The last line at start says what keeps a model from its cache."""
    import uvicorn
    from llama_cpp.server.__main__ import main as serve
    from llama_cpp.server.model import LlamaProxy
    caches: List[KvtierCache] = []
    load, startup = LlamaProxy.load_llama_from_model_settings, uvicorn.Server.startup

    def load_for_kvtier(settings: Any) -> Llama:
        given = set(settings.model_fields_set)      # by default the server has no cache, and keeps all logits
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
    # `python -m` runs another copy of this module than kvtier.llama_cpp_python, which others import.
    from kvtier.llama_cpp_python import main as main_of_package
    main_of_package()
