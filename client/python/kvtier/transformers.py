# SPDX-License-Identifier: Apache-2.0
"""kvtier.transformers - keeps the KV of prompts of a Hugging Face transformers model in kvtier.

    from kvtier.transformers import kvtier_cache

    with kvtier_cache(model) as cache:
        output = cache.generate(input_ids, max_new_tokens=64)     # as model.generate()
        print(cache.last)      # Reused(prompt_tokens=2048, loaded_tokens=2016, stored_blocks=3, ...)

generate() looks the prompt up, loads the blocks that kvtier has, lets the model compute the rest, and stores the full
blocks that were new. Another process may have stored what is loaded, or this one before a restart. The KV is kept raw,
so the model continues from the very values that it computed (codec=Codec.FP8 halves the bytes, and is lossy).

A block is `block_tokens` tokens of all layers, copied between a DynamicCache and pages that kvtierd maps:

    layer 0: K [kv_heads, block_tokens, head_dim], V of the same shape; layer 1: ...    values of the model's KV dtype

Served are decoder models whose layers all keep [1, kv_heads, tokens, head_dim] of the whole prompt. The layout is taken
from the tensors of one short forward, never from the model's name. A sliding window, a state-space layer or layers of
different shapes are refused with LayoutError when the cache is made. A batch of several prompts, padding, beams,
guesses or a cache of another kind are computed without kvtier, and `last.skipped` says why: transformers_calls.py.

Prompts share blocks if their model has the same name, computes the same, and has the same `extras`:
transformers_model.py. The model is looked at before each prompt, and once more before its blocks are stored, so
adapters may be switched, merged and disabled, and weights and settings changed, between two calls. The engine always
answers, whatever the daemon does: block_cache.py. One thread at a time may use a cache.
"""
from __future__ import annotations

import contextlib
import errno
import functools
from typing import Any, Callable, Iterator, List, Optional, Tuple, Union

from . import Client, Codec, Error, Kind, Tier
from ._lib import Closes
from .block_cache import BlockCache, LayoutError, Reused, named
from .adapters.transformers_calls import why_not
from .adapters.transformers_model import BYTES, CONVENTION, Seen, empty, look

__all__ = ["BLOCK_TOKENS", "CONVENTION", "LayoutError", "PrefixCache", "Reused", "cached_generate", "kvtier_cache"]

BLOCK_TOKENS = 32


class PrefixCache(Closes):
    """The blocks of one model; kvtier_cache() makes it."""

    def __init__(self, client: Union[Client, Callable[[], Client]], model: Any, *, name: Optional[str] = None,
                 extras: str = "", codec: Codec = Codec.RAW, pages: int = 16, block_tokens: int = BLOCK_TOKENS,
                 timeout_ms: int = 0, prefetch_ms: int = 1000) -> None:
        """client, timeout_ms, prefetch_ms: as in BlockCache. model: one of transformers, in eval mode. name: the
        model's name in kvtier; by default the name that it was loaded by. extras: a text for all else that changes KV
        and cannot be seen in the model. pages: how many blocks are under way at once, which is the memory that this
        takes. LayoutError: the model's KV is not served."""
        from transformers import GenerationConfig
        self._model, self.last = model, Reused()
        self._client = functools.cache(client) if callable(client) else client
        self._name, self._extras, self._codec = name, extras, codec
        self._pages, self._times, self._block_tokens = pages, (timeout_ms, prefetch_ms), block_tokens
        self._settings = frozenset(vars(GenerationConfig()))
        self._blocks: Optional[BlockCache] = None
        self._adopt(look(model, block_tokens))
        try:
            self._blocks.open()
        except Error as error:
            if error.errno == errno.EINVAL:
                self.close()
                raise
            self.last = self.last._replace(error=error)     # the daemon is away, and generate() asks it again

    def _adopt(self, seen: Seen) -> None:
        """From now on blocks belong to the model as it was seen. Error: there is no memory for pages."""
        name = self._name or getattr(self._model.config, "_name_or_path", "") or type(self._model).__name__
        layout, before = seen.layout, self._blocks
        self._blocks = BlockCache(
            self._client, layout.geometry(named(name), named(f"{seen.name()} {self._extras}"), self._codec),
            layout.segments(), layout.page_bytes, layout.stride, self._pages, *self._times)
        self._seen = seen
        if before is not None:
            before.close()

    def _renew(self) -> Tuple[str, str]:
        """Looks at the model. Returns what has changed since the last look ("": it is the same), and why it is not
        served as it is now ("": it is)."""
        try:
            seen = look(self._model, self._block_tokens, self._seen)
            changed = seen.changed(self._seen)
            if changed:
                self._adopt(seen)
        except (LayoutError, Error) as error:
            return "", str(error)
        self._seen = seen       # the device may be another one
        return changed, ""

    def close(self) -> None:
        self._blocks.close()

    def generate(self, input_ids: Any, **keywords: Any) -> Any:
        """Does model.generate(input_ids, **keywords) with what kvtier has of the prompt. `last` says what came of
        it."""
        skipped = self._skipped(input_ids, keywords) or self._renew()[1]
        if not skipped and input_ids.shape[-1] > self._seen.longest:
            skipped = f"a prompt of more than {self._seen.longest} tokens, whose KV depends on how many there are"
        past, loaded, tiers, error = (None, 0, Tier(0), None) if skipped else self._fetch(input_ids)
        if not skipped:
            mask = keywords.get("attention_mask")
            if mask is None:    # some versions make a default of the tokens that are left to compute
                mask = input_ids.new_ones(input_ids.shape)
            try:
                output = self._model.generate(input_ids, past_key_values=past, **{**keywords, "attention_mask": mask})
            except Exception as failure:
                if keywords.get("streamer") is not None:    # its reader has seen the beginning already
                    raise
                skipped = f"generate() raised when it was given a cache: {type(failure).__name__}: {failure}"
        if skipped:
            past = None     # its memory may be what the model lacked
            self.last = Reused(input_ids.shape[-1], skipped=skipped, error=error)
            return self._model.generate(input_ids, **keywords)
        stored, store_error = self.store(getattr(output, "sequences", output), past, loaded)
        self.last = Reused(input_ids.shape[-1], loaded, tiers, stored, "", error or store_error)
        return output

    def _skipped(self, input_ids: Any, keywords: dict) -> str:
        configs = [vars(config) for config in (keywords.get("generation_config"), self._model.generation_config)
                   if config is not None]
        return why_not(input_ids.shape, input_ids[0].tolist(), self._settings, keywords, *configs)

    def fetch(self, input_ids: Any) -> Tuple[Any, int, Tier, Optional[Error]]:
        """input_ids: [1, tokens], int. Returns a DynamicCache with the KV of as many leading tokens as kvtier has, how
        many these are, where they came from, and why it was not more if that was no miss. At least one token is left to
        compute."""
        refused = self._renew()[1]
        if refused or input_ids.shape[-1] > self._seen.longest:
            return empty(self._model), 0, Tier(0), Error(errno.EOPNOTSUPP, refused or "the prompt is too long for "
                                                         f"rotations that change after {self._seen.longest} tokens")
        return self._fetch(input_ids)

    def _fetch(self, input_ids: Any) -> Tuple[Any, int, Tier, Optional[Error]]:
        import torch
        pages: List[Any] = []
        tokens = input_ids[0].tolist()

        def take(page: memoryview, _position: int) -> None:
            pages.append(torch.frombuffer(page, dtype=self._seen.dtype).clone())

        got = self._blocks.fetch(tokens, take, len(tokens) - 1)
        past = empty(self._model)
        if pages:
            self._fill(past, torch.stack(pages))
        return past, got.tokens, got.tiers, got.error

    def store(self, sequences: Any, past: Any, first: int = 0) -> Tuple[int, Optional[Error]]:
        """sequences: [1, tokens], int. Stores the full blocks from token `first` on whose KV `past` holds and which
        were computed since the last call of fetch() or store(). Returns how many of them kvtier has now, and why not
        all."""
        have, total = past.get_seq_length(), sequences.shape[-1]
        if have // self._block_tokens * self._block_tokens <= first:
            return 0, None
        if have > min(total, self._seen.longest):
            return 0, Error(errno.EBADMSG, f"the cache holds {have} tokens, more than {min(total, self._seen.longest)}")
        changed, refused = self._renew()
        if changed or refused:
            return 0, Error(errno.ESTALE, refused or f"the model changed meanwhile ({changed}): its KV has no name")
        got = self._blocks.store(sequences[0, :have].tolist(), lambda page, at: self._give(past, page, at), first)
        return got.kept, got.error

    def _views(self, flat: Any) -> Iterator[Tuple[int, Any, Any]]:
        """Yields (layer, K, V) of the pages in one tensor [..., values of a page]. K and V are views [..., heads,
        tokens, dim]."""
        layout = self._seen.layout
        size = BYTES[layout.dtype]
        for layer in range(layout.layers):
            both = []
            for kind, _, at in layout.planes[2 * layer:2 * layer + 2]:
                dim = layout.dims[kind == Kind.V]
                part = flat[..., at // size:at // size + layout.heads * layout.tokens * dim]
                both.append(part.unflatten(-1, (layout.heads, layout.tokens, dim)))
            yield layer, both[0], both[1]

    def _fill(self, past: Any, pages: Any) -> None:
        for layer, keys, values in self._views(pages):
            # [blocks, heads, tokens, dim] -> [1, heads, blocks * tokens, dim]
            past.update(*[part.transpose(0, 1).flatten(1, 2).unsqueeze(0).to(self._seen.device)
                          for part in (keys, values)], layer)

    def _give(self, past: Any, page: memoryview, at: int) -> None:
        import torch
        flat = torch.frombuffer(page, dtype=self._seen.dtype)
        end = at + self._block_tokens
        for layer, keys, values in self._views(flat):
            for target, source in ((keys, past.layers[layer].keys), (values, past.layers[layer].values)):
                heads, _, dim = target.shape
                if tuple(source.shape) != (1, heads, max(end, source.shape[2]), dim) or source.dtype != target.dtype:
                    raise Error(errno.EBADMSG, f"layer {layer} does not hold tokens {at} to {end}: its shape is "
                                f"{tuple(source.shape)}, its type {source.dtype}")
                target.copy_(source[0, :, at:end])


@contextlib.contextmanager
def kvtier_cache(model: Any, client: Optional[Client] = None, **options: Any) -> Iterator[PrefixCache]:
    """A PrefixCache for a `with` block, with the options of PrefixCache. client: one of yours; by default the cache has
    one of its own, which is connected when there is a daemon."""
    with contextlib.ExitStack() as stack:
        own = lambda: stack.enter_context(Client(name="transformers"))     # noqa: E731
        cache = PrefixCache(client or own, model, **options)
        try:
            yield cache
        finally:
            cache.close()


def cached_generate(model: Any, input_ids: Any, *, client: Optional[Client] = None, cache: Optional[dict] = None,
                    **keywords: Any) -> Any:
    """Does model.generate(input_ids, **keywords) with kvtier in one call, for scripts that generate once. cache: the
    options of PrefixCache."""
    with kvtier_cache(model, client, **(cache or {})) as prefix:
        return prefix.generate(input_ids, **keywords)
