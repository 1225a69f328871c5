# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.vllm_layout - makes regions, segments and a geometry of vLLM's tensors.

Everything is taken from shapes and strides. A layout that is not known is a LayoutError with a sentence for people.
"""
from __future__ import annotations

import json
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import Codec, Dtype, Geometry, Kind, Region, Segment
from ..block_cache import LayoutError

__all__ = ["DTYPES", "Layout", "Regions", "SIZES", "Tensor", "at_revision", "geometry_of", "is_state", "layout_of",
           "layout_of_all", "revision_of", "tensor_of", "why_no_group", "why_no_states"]

CONVENTION = "vllm"
MAX_REGIONS = 64        # how many a space may have: kvtier.h
MAX_SEGMENTS = 2048

DTYPES = {"bfloat16": Dtype.BF16, "float16": Dtype.FP16, "float32": Dtype.FP32, "uint8": Dtype.INT8,
           "int8": Dtype.INT8, "float8_e4m3fn": Dtype.E4M3, "float8_e5m2": Dtype.E5M2}
SIZES = {Dtype.BF16: 2, Dtype.FP16: 2, Dtype.FP32: 4, Dtype.INT8: 1, Dtype.E4M3: 1, Dtype.E5M2: 1}


class Tensor(NamedTuple):
    """A layer's KV, as torch describes it."""
    name: str
    dtype: str                  # "bfloat16"
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]    # in values
    offset: int                 # where its first value lies in the memory, in bytes
    memory: int                 # the address of the memory that it is a view of
    memory_bytes: int
    cuda: bool


def tensor_of(name: str, t: Any) -> Tensor:
    """t, a tensor of torch, as a Tensor."""
    storage = t.untyped_storage()
    return Tensor(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), tuple(t.stride()),
                  t.data_ptr() - storage.data_ptr(), storage.data_ptr(), storage.nbytes(), t.is_cuda)


class Regions:
    """The memories of tensors, each one once. LayoutError: there are more than a space can have."""

    def __init__(self, instead: Optional[Region] = None) -> None:
        """instead: the memory of all tensors as the daemon can map it, or None."""
        self.all: List[Region] = []
        self._known: Dict[int, int] = {}
        self._instead = instead

    def of(self, tensor: Tensor) -> int:
        """The number of the region that has this tensor."""
        if tensor.memory not in self._known:
            self._known[tensor.memory] = len(self.all)
            where = {"cuda": tensor.memory} if tensor.cuda else {"base": tensor.memory}
            self.all.append(self._instead or Region(tensor.memory_bytes, **where))
            if len(self.all) > MAX_REGIONS:
                raise LayoutError(f"the KV lies in more than {MAX_REGIONS} pieces of memory")
        return self._known[tensor.memory]


class Layout(NamedTuple):
    regions: List[Region]
    segments: List[Segment]
    dtype: Dtype
    runs: int                   # how many runs of values a block of all layers has; 0: planes, or rows of latents (MLA)
    values: int                 # how many values a run has, or a head of K, or a token's latent
    opaque: int = 0             # how many bytes of a block are kept verbatim
    order: str = ""             # the order of the values in a run, if it is not that of the tensor's axes
    heads: int = 1              # of a plane
    values_v: int = 0           # of a head of V; 0: there are no V planes


def _inside(tensor: Tensor, block_axis: int, half: Optional[int]) -> Tuple[int, int]:
    """(first byte, number of values) of block 0, which must be one run without holes."""
    size = SIZES[DTYPES[tensor.dtype]]
    axes = [(n, s) for i, (n, s) in enumerate(zip(tensor.shape, tensor.strides))
            if i != block_axis and not (half is not None and i == 0)]
    values = math.prod(n for n, _ in axes)
    if 1 + sum((n - 1) * s for n, s in axes) != values:
        raise LayoutError(f"{tensor.name}: a block of shape {tensor.shape}, strides {tensor.strides} has holes")
    return tensor.offset + (half * tensor.strides[0] * size if half else 0), values


def _order(tensor: Tensor, outside: int) -> str:
    """The names of the axes behind the first `outside` ones, in the order of memory. "": they are in order."""
    axes = [i for i in range(outside, len(tensor.shape)) if tensor.shape[i] > 1]
    lie = sorted(axes, key=lambda i: -tensor.strides[i])
    return "" if lie == axes else "".join(str(i) for i in lie)


def _latents(tensors: Sequence[Tensor], places: List[Tuple[int, int, int, int]], tokens: int,
             rope: int) -> Optional[Tuple[List[Segment], int, int]]:
    """Segments for rows that have a latent, and behind it `rope` values that stay as they are. None: these are no such
    rows."""
    row, size = tensors[0].shape[-1], SIZES[DTYPES[tensors[0].dtype]]
    if size != 2 or not 0 < rope < row or any(values != tokens * row for _, _, values, _ in places):
        return None
    if any(t.shape[-2:] != (tokens, row) or t.strides[-2:] != (row, 1) for t in tensors):
        return None
    latent = row - rope
    segments = [Segment(Kind.K, at, stride, i, row * size, row * size, region=region)
                for i, (at, stride, _, region) in enumerate(places)]
    segments += [Segment(Kind.OPAQUE, at + latent * size, stride, token_stride=row * size, length=rope * size,
                         region=region) for at, stride, _, region in places]
    return segments, latent, len(places) * tokens * rope * size


def _outside(tensor: Tensor, blocks: int) -> Tuple[int, List[Optional[int]]]:
    """The axis of blocks, and the K and V before it, or [None]."""
    if len(tensor.shape) > 1 and tensor.shape[0] == blocks:
        return 0, [None]
    if len(tensor.shape) > 2 and tensor.shape[0] == 2 and tensor.shape[1] == blocks:
        return 1, [0, 1]
    raise LayoutError(f"{tensor.name}: shape {tensor.shape} begins neither with {blocks} blocks nor with K and V of "
                      f"{blocks} blocks")


def _planes(tensors: Sequence[Tensor], blocks: int, tokens: int, regions: Regions) -> Layout:
    """K and V planes, or K planes alone where a token's K and V lie side by side: the axes behind that of blocks are
    K and V, if they are there, then heads and tokens, in any order, and the values of a head."""
    segments, shapes = [], set()
    for layer, tensor in enumerate(tensors):
        axis, sides = _outside(tensor, blocks)
        size, inner = SIZES[DTYPES[tensor.dtype]], list(range(axis + 1, len(tensor.shape)))
        apart = tensor.strides[0]
        if len(inner) == 4 and sides == [None] and tensor.shape[inner[0]] == 2:
            apart, sides = tensor.strides[inner.pop(0)], [0, 1]
        by_tokens = [i for i in inner[:-1] if tensor.shape[i] == tokens]
        if len(inner) != 3 or len(by_tokens) != 1 or tensor.strides[-1] != 1:
            raise LayoutError(f"{tensor.name}: codecs int8, q4 and int8v4 need heads of {tokens} tokens; a block has "
                              f"the shape {tuple(tensor.shape[i] for i in inner)}, in which they cannot be told")
        token = by_tokens[0]
        head = inner[0] + inner[1] - token
        for side, kind in zip(sides, (Kind.K, Kind.V)):
            segments.append(Segment(kind, tensor.offset + (side or 0) * apart * size, tensor.strides[axis] * size,
                                    layer, tensor.strides[head] * size, tensor.strides[token] * size,
                                    region=regions.of(tensor)))
        shapes.add((tensor.shape[head], tensor.shape[-1], len(sides)))
    if len(shapes) > 1:
        raise LayoutError(f"codecs int8, q4 and int8v4 need layers of one shape, not of {sorted(shapes)} (heads, "
                          "values, K and V)")
    heads, values, sides = shapes.pop()
    return Layout(regions.all, segments, DTYPES[tensors[0].dtype], 0, values, order="planes", heads=heads,
                  values_v=values if sides == 2 else 0)


def layout_of(tensors: Sequence[Tensor], blocks: int, tokens: int = 0, rope: int = 0,
              region: Optional[Region] = None, planes: bool = False) -> Layout:
    """The layout of tensors, which are in the order of layers; layers that share their KV count once. A block of a
    layer is one run of values ([blocks, ...]) or two ([2, blocks, ...]: K and V apart), in an order that only the
    engine knows. rope: in models with latents (MLA), how many values at the end of each of the `tokens` rows must not
    be rounded. region: the memory of all tensors as the daemon can map it, or None. planes: the values' heads and
    channels must be known, not their runs alone. LayoutError: it is another layout."""
    if not tensors:
        raise LayoutError("there is no layer with KV")
    regions = Regions(region)
    places: List[Tuple[int, int, int, int]] = []    # first byte, bytes from block to block, values, region
    orders: List[str] = []
    own = {(t.memory, t.offset): t for t in reversed(tensors)}
    tensors = [t for t in tensors if own[t.memory, t.offset] is t]
    for tensor in tensors:
        if tensor.dtype not in DTYPES or DTYPES[tensor.dtype] != DTYPES[tensors[0].dtype]:
            raise LayoutError(f"{tensor.name}: values of type {tensor.dtype}; {tensors[0].name} has {tensors[0].dtype}")
        parts, within = 1 if rope or planes else tensor.shape[0] // blocks, ""
        if parts > 1 and tensor.shape[0] == parts * blocks:     # the engine's kernels have smaller blocks than its pool
            tensor = tensor._replace(shape=(blocks, parts, *tensor.shape[1:]),
                                     strides=(parts * tensor.strides[0], *tensor.strides))
            within = f"{parts} parts "
        axis, halves = _outside(tensor, blocks)
        if planes and not rope:
            continue
        orders.append(within + _order(tensor, axis + 1))
        for half in halves:
            at, values = _inside(tensor, axis, half)
            places.append((at, tensor.strides[axis] * SIZES[DTYPES[tensor.dtype]], values, regions.of(tensor)))
    if planes and not rope:
        return _planes(tensors, blocks, tokens, regions)
    dtype = DTYPES[tensors[0].dtype]
    rows = _latents(tensors, places, tokens, rope) if rope else None
    if rows:
        return Layout(regions.all, rows[0], dtype, 0, rows[1], rows[2])
    part = math.gcd(*(values for _, _, values, _ in places))    # layers of other sizes are more runs
    segments = [Segment(Kind.TYPED, at + first * SIZES[dtype], stride, length=part, region=where)
                for at, stride, values, where in places for first in range(0, values, part)]
    if len(segments) > MAX_SEGMENTS:
        raise LayoutError(f"layers have blocks of {sorted({values for _, _, values, _ in places})} values: in equal "
                          f"runs that is {len(segments)}, at most {MAX_SEGMENTS} are served")
    order = orders[0] if len(set(orders)) == 1 else ",".join(orders)
    return Layout(regions.all, segments, dtype, len(segments), part, order=order)


def layout_of_all(tensor: Tensor, order: Sequence[int], blocks: int, tokens: int = 0, rope: int = 0,
                  planes: bool = False) -> Layout:
    """The layout of one tensor for all layers. Its i-th axis is axis order[i] of [layers, *axes of a layer's tensor]. A
    block is a run for each layer, as in layout_of(); if heads lie outside of layers, a block of all layers is one
    run."""
    if sorted(order) != list(range(len(tensor.shape))):
        raise LayoutError(f"{tensor.name}: shape {tensor.shape}, whose axes cannot be in the order {tuple(order)}")
    at = [list(order).index(i) for i in range(len(order))]
    shape, strides = tuple(tensor.shape[i] for i in at), tuple(tensor.strides[i] for i in at)
    size = SIZES.get(DTYPES.get(tensor.dtype), 0)     # layout_of() refuses other types
    layers = [tensor._replace(name=f"{tensor.name} {i}", shape=shape[1:], strides=strides[1:],
                              offset=tensor.offset + i * strides[0] * size) for i in range(shape[0])]
    try:
        layout = layout_of(layers, blocks, tokens, rope, planes=planes)
    except LayoutError:
        if planes:
            raise
        outside = 1 if shape[1] == blocks else 2        # axes up to that of blocks
        axes = [outside, *(i for i in range(len(shape)) if i != outside)]
        layout = layout_of([tensor._replace(shape=tuple(shape[i] for i in axes),
                                            strides=tuple(strides[i] for i in axes))], blocks)
    return layout._replace(order=f"together {layout.order}")    # layers may be in another order than those of tensors


def geometry_of(layout: Layout, model: str, extras: str, block_tokens: int, layers: int, rank: int, world: int,
                codec: Codec) -> Geometry:
    return Geometry(model, CONVENTION, layout.dtype, layers, layout.heads, 0 if layout.runs else layout.values,
                    layout.values_v, block_tokens,
                    extras=extras, rank=rank, world=world, codec=codec, typed_segments=layout.runs,
                    typed_values=layout.values if layout.runs else 0, opaque_bytes=layout.opaque)


_SERVED = {"FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec"}
_NOT_SERVED = {"RSWASpec", "HiSparseSourceSpec", "SinkFullAttentionSpec"}


def why_no_group(kind: type, several: bool) -> str:
    """Why a KV cache group of this kind (a KVCacheSpec of vLLM) is not served; "" if it is. several: it has others
    beside it."""
    names = [base.__name__ for base in kind.__mro__]
    if not several or is_state(kind):
        return ""       # with one group blocks are blocks, whatever they hold
    bad = _NOT_SERVED.intersection(names)
    if bad or not _SERVED.intersection(names):
        return f"{names[0]}: groups of full, sliding or chunked attention are served"
    return ""


def is_state(kind: type) -> bool:
    """Whether the pages of a KV cache group of this kind have the state of layers behind all tokens (Mamba, linear
    attention), and not KV of tokens."""
    return "MambaSpec" in [base.__name__ for base in kind.__mro__]


def why_no_states(spec: Any, attention: bool, guesses: bool) -> str:
    """Why a group of states is not served; "" if it is. spec: its MambaSpec. attention: there are groups of blocks
    beside it. guesses: vLLM decodes speculatively."""
    mode = getattr(spec, "mamba_cache_mode", None)
    if mode != "align":
        return (f"{type(spec).__name__} with mamba_cache_mode {mode!r}: vLLM keeps no state that a prompt can continue "
                "from; start it with --enable-prefix-caching, and without --mamba-cache-mode")
    if guesses:
        return (f"{type(spec).__name__} with speculative decoding: a step ends before it is known which state is the "
                "right one; start vLLM without --speculative-config")
    return "" if attention else f"{type(spec).__name__} alone: states are served beside attention"


def overrides_of(overrides: Any) -> str:
    """A text of what an engine's user changes in a model's configuration (rope, for one); equal changes give equal
    texts. The text of a function differs from process to process, so engines with a function share no blocks."""
    return json.dumps(overrides, sort_keys=True, default=str) if overrides else ""


def revision_of(config: Any, asked: Any) -> str:
    """Which weights a hub's name stands for: the commit that transformers found, or else the revision that the engine
    was asked for, which may be a branch. "": it is not known. config: transformers' one, or None."""
    commit = getattr(config, "_commit_hash", None)
    return commit if isinstance(commit, str) and commit else str(asked or "")


def at_revision(model: str, revision: str) -> str:
    """A name for these weights alone, so that a hint on a revision concerns no other revision of the model."""
    return f"{model}@{revision}" if revision else model
