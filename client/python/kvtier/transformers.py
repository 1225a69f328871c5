# SPDX-License-Identifier: Apache-2.0
"""kvtier.transformers - prompts' KV of a Hugging Face transformers model, into kvtier and back.

    from kvtier.transformers import kvtier_cache

    with kvtier_cache(model) as cache:
        output = cache.generate(input_ids, max_new_tokens=64)     # as model.generate()
        print(cache.last)      # Reused(prompt_tokens=2048, loaded_tokens=2016, stored_blocks=3, ...)

generate() looks the prompt up, loads the blocks that kvtier has, lets the model compute the rest, and stores the full
blocks that were new. It may be another process, or this one after a restart, that stored them. The KV is kept raw:
the model continues from the very values that it computed (codec=Codec.FP8 halves the bytes, and is lossy).

A block is `block_tokens` tokens of all layers, copied between a DynamicCache and pages that kvtierd maps:

    layer 0: K [kv_heads, block_tokens, head_dim], V likewise; layer 1: ...       values of the model's KV dtype

What is served: decoder models whose layers all keep [1, kv_heads, tokens, head_dim] of the whole prompt. The layout is
taken from the tensors of one short forward, never from the model's name. A sliding window, a state-space layer or
layers of different shapes are refused with LayoutError when the cache is made. A batch of several prompts, padding,
or `inputs_embeds` is computed without kvtier, and `last.skipped` says why.

Which prompts share blocks: equal model name, equal sample of all weights (adapters too) and equal `extras`. The engine
always answers, whatever the daemon does: block_cache.py. One thread at a time.
"""
from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import Client, Codec, Dtype, Error, Geometry, Kind, Segment, Tier
from .block_cache import BlockCache, named

__all__ = ["BLOCK_TOKENS", "CONVENTION", "LayoutError", "PrefixCache", "Reused", "cached_generate", "kvtier_cache"]

CONVENTION = "hf"
BLOCK_TOKENS = 32

_PAGE_ALIGN = 4096
_SAMPLES = 64           # values of each weight that its fingerprint is made of
_BYTES = {Dtype.BF16: 2, Dtype.FP16: 2, Dtype.FP32: 4}


class LayoutError(RuntimeError):
    """This model keeps its KV in a way that is not served."""


class Reused(NamedTuple):
    """What became of one prompt."""
    prompt_tokens: int
    loaded_tokens: int         # of these, whose KV came from kvtier
    tiers: Tier                # where the last of them came from
    stored_blocks: int         # in kvtier now, of those that were new
    skipped: str               # why kvtier was not asked; "" otherwise
    error: Optional[Error]     # what a daemon that is away, slow or full said


class Layout:
    """Where K and V of each layer lie in a page."""

    def __init__(self, dtype: Dtype, layers: int, heads: int, dim_k: int, dim_v: int, tokens: int) -> None:
        self.dtype, self.layers, self.heads, self.dims, self.tokens = dtype, layers, heads, (dim_k, dim_v), tokens
        self.planes: List[Tuple[Kind, int, int]] = []      # (kind, layer, first byte)
        at = 0
        for layer in range(layers):
            for kind, dim in zip((Kind.K, Kind.V), self.dims):
                self.planes.append((kind, layer, at))
                at += heads * tokens * dim * _BYTES[dtype]
        self.page_bytes = at
        self.stride = -(-at // _PAGE_ALIGN) * _PAGE_ALIGN

    def geometry(self, model: str, extras: str, codec: Codec) -> Geometry:
        return Geometry(model, CONVENTION, self.dtype, self.layers, self.heads, *self.dims, self.tokens,
                        extras=extras, codec=codec)

    def segments(self) -> List[Segment]:
        parts = []
        for kind, layer, at in self.planes:
            row = self.dims[kind == Kind.V] * _BYTES[self.dtype]
            parts.append(Segment(kind, at, self.stride, layer=layer, head_stride=self.tokens * row, token_stride=row))
        return parts


def why_not(rows: int, mask_is_whole: bool, keywords: dict) -> str:
    """"" when a call of generate() can be served, else the reason."""
    if rows != 1:
        return f"a batch of {rows} prompts"
    if not mask_is_whole:
        return "the attention mask leaves tokens out"
    for name in ("inputs_embeds", "past_key_values", "position_ids", "cache_implementation", "cache_config"):
        if keywords.get(name) is not None:
            return f"{name} is given"
    if keywords.get("use_cache") is False:
        return "use_cache is False"
    for name in ("num_beams", "num_return_sequences"):
        if (keywords.get(name) or 1) != 1:
            return f"{name} is {keywords[name]}"
    return ""


def fingerprint(named_values: Iterator[Tuple[str, str, bytes]]) -> str:
    """Of (name, type and shape, sampled bytes) of all weights."""
    h = hashlib.sha256()
    for name, shape, sample in named_values:
        for part in (name.encode(), shape.encode(), sample):
            h.update(len(part).to_bytes(8, "little") + part)
    return h.hexdigest()[:32]


def _sampled(model: Any) -> Iterator[Tuple[str, str, bytes]]:
    import torch
    for name, value in sorted(model.state_dict().items()):
        flat = value.detach().reshape(-1)
        step = max(1, flat.numel() // _SAMPLES)
        yield name, f"{value.dtype} {tuple(value.shape)}", (
            flat[::step].contiguous().cpu().view(torch.uint8).numpy().tobytes() if flat.numel() else b"")


def _rope(config: Any) -> str:
    """What changes the KV and is no weight."""
    known = {name: getattr(config, name, None)
             for name in ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")}
    return json.dumps({k: v for k, v in known.items() if v is not None}, sort_keys=True, default=str)


class PrefixCache:
    """Blocks of one model. Made by kvtier_cache()."""

    def __init__(self, client: Union[Client, Callable[[], Client]], model: Any, *, name: Optional[str] = None,
                 extras: str = "", codec: Codec = Codec.RAW, pages: int = 16, block_tokens: int = BLOCK_TOKENS,
                 timeout_ms: int = 0, prefetch_ms: int = 1000) -> None:
        """client: or a function that connects one, as BlockCache has it. model: of transformers, in eval mode. name:
        the model's name in kvtier; default the name that it was loaded by. extras: a text for all else that changes KV
        and is neither a weight nor a rope setting. pages: blocks under way at once, that is the memory this takes.
        timeout_ms, prefetch_ms: as in BlockCache. LayoutError: its KV is not served."""
        self._model, self.last = model, Reused(0, 0, Tier(0), 0, "", None)
        self._layout, self._torch_dtype, self._device = self._probe(block_tokens)
        name = name or getattr(model.config, "_name_or_path", "") or type(model).__name__
        marks = hashlib.sha256(_rope(model.config).encode()).hexdigest()[:16]
        self._blocks = BlockCache(
            client, self._layout.geometry(
                named(name), named(f"weights={fingerprint(_sampled(model))} rope={marks} {extras}"), codec),
            self._layout.segments(), self._layout.page_bytes, self._layout.stride, pages, timeout_ms, prefetch_ms)
        try:
            self._blocks.open()
        except Error as error:
            if error.errno == errno.EINVAL:
                self.close()
                raise
            self.last = self.last._replace(error=error)     # the daemon is away: generate() asks it again

    def close(self) -> None:
        self._blocks.close()

    def __enter__(self) -> "PrefixCache":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def generate(self, input_ids: Any, **keywords: Any) -> Any:
        """model.generate(input_ids, **keywords), with what kvtier has of the prompt. `last` says what came of it."""
        mask = keywords.get("attention_mask")
        skipped = why_not(input_ids.shape[0], mask is None or bool(mask.all()), keywords)
        if skipped:
            self.last = Reused(input_ids.shape[-1], 0, Tier(0), 0, skipped, None)
            return self._model.generate(input_ids, **keywords)
        whole = keywords.pop("return_dict_in_generate", None)
        past, loaded, tiers, error = self.fetch(input_ids)
        if mask is None:    # its default is made from the tokens that are left to compute in some versions
            keywords["attention_mask"] = input_ids.new_ones(input_ids.shape)
        output = self._model.generate(input_ids, past_key_values=past, return_dict_in_generate=True, **keywords)
        stored, store_error = self.store(output.sequences, output.past_key_values, loaded)
        self.last = Reused(input_ids.shape[-1], loaded, tiers, stored, "", error or store_error)
        wanted = self._model.generation_config.return_dict_in_generate if whole is None else whole
        return output if wanted else output.sequences

    def fetch(self, input_ids: Any) -> Tuple[Any, int, Tier, Optional[Error]]:
        """input_ids: [1, tokens], int. A DynamicCache with the KV of as many leading tokens as kvtier has, how many,
        from where, and why it was not more when that was no miss. At least one token is left to compute."""
        import torch
        pages: List[Any] = []
        tokens = input_ids[0].tolist()

        def take(page: memoryview, _position: int) -> None:
            pages.append(torch.frombuffer(page, dtype=self._torch_dtype).clone())

        got = self._blocks.fetch(tokens, take, len(tokens) - 1)
        past = self._empty()
        if pages:
            self._fill(past, torch.stack(pages))
        return past, got.tokens, got.tiers, got.error

    def store(self, sequences: Any, past: Any, first: int = 0) -> Tuple[int, Optional[Error]]:
        """sequences: [1, tokens], int. Stores the full blocks from token `first` on whose KV `past` holds. How many
        of them kvtier has now, and why not all."""
        have = min(past.get_seq_length(), sequences.shape[-1])
        got = self._blocks.store(sequences[0, :have].tolist(), lambda page, at: self._give(past, page, at), first)
        return got.kept, got.error

    def _empty(self) -> Any:
        from transformers import DynamicCache
        return DynamicCache(config=self._model.config)

    def _probe(self, block_tokens: int) -> Tuple[Layout, Any, Any]:
        """The layout of the KV of a forward of two tokens."""
        import torch
        past = self._empty()
        ids = torch.zeros((1, 2), dtype=torch.long, device=self._model.device)
        with torch.no_grad():
            self._model(input_ids=ids, past_key_values=past, use_cache=True)
        kinds = sorted({type(layer).__name__ for layer in past.layers})
        if kinds != ["DynamicLayer"]:
            raise LayoutError(f"layers of the kinds {', '.join(kinds)}: only DynamicLayer, the KV of the whole prompt "
                              "in every layer, is served")
        shapes = {(layer.keys.shape, layer.values.shape, layer.keys.dtype, layer.values.dtype, layer.keys.device)
                  for layer in past.layers}
        if len(shapes) != 1:
            raise LayoutError("layers differ in the shape, type or device of their KV")
        keys, values, dtype, other, device = shapes.pop()
        names = {torch.bfloat16: Dtype.BF16, torch.float16: Dtype.FP16, torch.float32: Dtype.FP32}
        if dtype not in names or dtype != other or len(keys) != 4 or keys[:3] != values[:3] or keys[2] != 2:
            raise LayoutError(f"KV of type {dtype} and {other}, shapes {tuple(keys)} and {tuple(values)}: only "
                              "[1, kv_heads, tokens, head_dim] of BF16, FP16 or FP32 is served")
        return Layout(names[dtype], len(past.layers), keys[1], keys[3], values[3], block_tokens), dtype, device

    def _views(self, flat: Any) -> Iterator[Tuple[int, Any, Any]]:
        """(layer, K, V) of pages in one tensor [..., values of a page]; K and V are [..., heads, tokens, dim]."""
        layout = self._layout
        size = _BYTES[layout.dtype]
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
            past.update(*[part.transpose(0, 1).flatten(1, 2).unsqueeze(0).to(self._device) for part in (keys, values)],
                        layer)

    def _give(self, past: Any, page: memoryview, at: int) -> None:
        import torch
        flat = torch.frombuffer(page, dtype=self._torch_dtype)
        end = at + self._layout.tokens
        for layer, keys, values in self._views(flat):
            for target, source in ((keys, past.layers[layer].keys), (values, past.layers[layer].values)):
                if source.shape[0] != 1 or source.shape[2] < end or source.dtype != target.dtype:
                    raise Error(errno.EBADMSG, f"layer {layer} does not hold tokens {at} to {end}: its shape is "
                                f"{tuple(source.shape)}, its type {source.dtype}")
                target.copy_(source[0, :, at:end])


@contextlib.contextmanager
def kvtier_cache(model: Any, client: Optional[Client] = None, **options: Any) -> Iterator[PrefixCache]:
    """A PrefixCache for a `with` block; options as there. client: one of yours; default one of its own, which is
    connected when there is a daemon."""
    with contextlib.ExitStack() as stack:
        own = lambda: stack.enter_context(Client(name="transformers"))     # noqa: E731
        cache = PrefixCache(client or own, model, **options)
        try:
            yield cache
        finally:
            cache.close()


def cached_generate(model: Any, input_ids: Any, *, client: Optional[Client] = None, cache: Optional[dict] = None,
                    **keywords: Any) -> Any:
    """model.generate(input_ids, **keywords) with kvtier, in one call: for scripts that generate once. cache: options of
    PrefixCache."""
    with kvtier_cache(model, client, **(cache or {})) as prefix:
        return prefix.generate(input_ids, **keywords)
