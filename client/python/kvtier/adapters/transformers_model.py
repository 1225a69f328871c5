# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.transformers_model - the layout of a transformers model's KV, and a name for what the model computes.

The tokens of a prompt name its KV only while the model stays the same. set_adapter(), a merge, a new value in its
config or in a module's attribute, an edit of a weight, quantisation, or a hook make it another model, and few of these
leave a mark of their own. So look() looks at all that can differ:

    kv        the KV of 16 fixed tokens, bit for bit: what the model does
    weights   all parameters and buffers: tensors of up to 64 KiB byte for byte, of larger ones the sum of each 4 KiB
    settings  the config, and numbers, texts and flags in the attributes of each module; names of classes, functions
              and hooks

A look costs a forward of 16 tokens and one reading of the weights, as much as two to five tokens of an answer. The KV
is compared bit for bit, so two processes share it when they compute alike: on equal processors, with equal releases of
torch and of transformers. A difference costs only hits.

A model whose forwards of equal tokens differ (dropout), whose weights cannot be read (offloaded), or whose KV is laid
out in another way is refused with LayoutError.
"""
from __future__ import annotations

import enum
import hashlib
import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from .. import Codec, Dtype, Geometry, Kind, Segment
from ..block_cache import LayoutError

__all__ = ["CONVENTION", "Layout", "Seen", "empty", "look"]

CONVENTION = "hf"
BYTES = {Dtype.BF16: 2, Dtype.FP16: 2, Dtype.FP32: 4}

_PAGE_ALIGN = 4096
_PROBE = 16             # tokens
_VALUES = {type(None), bool, int, float, str}
_WHOLE = 64 << 10       # a tensor of so many bytes at most is taken byte for byte
_ROW = 4096             # how many bytes of a larger tensor each sum covers
# These say where a model came from, where it runs, or what generate() left in it, and not what the model does. A
# GenerationConfig chooses tokens and changes no KV.
_IGNORED = {"name_or_path", "_name_or_path", "base_model_name_or_path", "transformers_version", "_commit_hash",
            "generation_config", "hf_device_map", "warnings_issued", "_is_hf_initialized", "_previous_max_cache_length",
            "_cache", "_compiled_call", "_last_compile_config", "_torchdynamo_wrapper_id", "_parameters", "_buffers",
            "_modules"}


class Layout:
    """Where K and V of each layer lie in a page."""

    def __init__(self, dtype: Dtype, layers: int, heads: int, dim_k: int, dim_v: int, tokens: int) -> None:
        self.dtype, self.layers, self.heads, self.dims, self.tokens = dtype, layers, heads, (dim_k, dim_v), tokens
        self.planes: List[Tuple[Kind, int, int]] = []      # (kind, layer, first byte)
        at = 0
        for layer in range(layers):
            for kind, dim in zip((Kind.K, Kind.V), self.dims):
                self.planes.append((kind, layer, at))
                at += heads * tokens * dim * BYTES[dtype]
        self.page_bytes = at
        self.stride = -(-at // _PAGE_ALIGN) * _PAGE_ALIGN

    def geometry(self, model: str, extras: str, codec: Codec) -> Geometry:
        return Geometry(model, CONVENTION, self.dtype, self.layers, self.heads, *self.dims, self.tokens,
                        extras=extras, codec=codec)

    def segments(self) -> List[Segment]:
        parts = []
        for kind, layer, at in self.planes:
            row = self.dims[kind == Kind.V] * BYTES[self.dtype]
            parts.append(Segment(kind, at, self.stride, layer=layer, head_stride=self.tokens * row, token_stride=row))
        return parts


class Seen(NamedTuple):
    """A model as it is now."""
    layout: Layout
    dtype: Any              # the KV's, one of torch
    device: Any             # where the KV is
    digests: Dict[str, str]
    longest: float          # how many tokens a prompt may have before their number changes the KV of all of them

    def name(self) -> str:
        return " ".join(f"{what}={digest}" for what, digest in self.digests.items())

    def changed(self, before: "Seen") -> str:
        """A text that names what differs; "" if the two are equal."""
        return " and ".join(what for what, digest in self.digests.items() if digest != before.digests[what])


def look(model: Any, block_tokens: int, before: Optional[Seen] = None) -> Seen:
    """The model as it is now. If that differs from `before`, a second forward has to give the same KV. LayoutError: its
    KV is not served, or cannot be named."""
    try:
        layout, dtype, device, kv = _probe(model, block_tokens)
        seen = Seen(layout, dtype, device, {"kv": kv, "weights": _weights(model), "settings": _settings(model)},
                    _longest(model))
        if (before is None or seen.changed(before)) and _probe(model, block_tokens)[3] != kv:
            raise LayoutError("two forwards of the same tokens gave different KV: dropout (call model.eval()), or "
                              "something else that is random")
        return seen
    except LayoutError:
        raise
    except Exception as error:      # from the model's own code, or because a tensor is of an unknown kind
        raise LayoutError(f"the KV of this model cannot be given a name: {type(error).__name__}: {error}") from error


def empty(model: Any) -> Any:
    from transformers import DynamicCache
    return DynamicCache(config=model.config)


def _probe(model: Any, block_tokens: int) -> Tuple[Layout, Any, Any, str]:
    """The layout, type and device of the KV of a short forward, and a digest of all of that KV."""
    import torch
    past = empty(model)
    ids = torch.tensor([list(range(1, _PROBE + 1))], device=model.device)
    with torch.no_grad():
        model(input_ids=ids, past_key_values=past, use_cache=True)
    kinds = sorted({type(layer).__name__ for layer in past.layers})
    if kinds != ["DynamicLayer"]:
        raise LayoutError(f"layers of the kinds {', '.join(kinds)}: only DynamicLayer, the KV of the whole prompt "
                          "in every layer, is served")
    if any(layer.keys is None or layer.values is None for layer in past.layers):
        raise LayoutError("a forward leaves layers of the cache that it is given empty")
    shapes = {(layer.keys.shape, layer.values.shape, layer.keys.dtype, layer.values.dtype, layer.keys.device)
              for layer in past.layers}
    if len(shapes) != 1:
        raise LayoutError("layers differ in the shape, type or device of their KV")
    keys, values, dtype, other, device = shapes.pop()
    names = {torch.bfloat16: Dtype.BF16, torch.float16: Dtype.FP16, torch.float32: Dtype.FP32}
    if dtype not in names or dtype != other or len(keys) != 4 or keys[:3] != values[:3] or keys[0] != 1 or \
            keys[2] != _PROBE:
        raise LayoutError(f"KV of type {dtype} and {other}, shapes {tuple(keys)} and {tuple(values)}, of {_PROBE} "
                          "tokens: only [1, kv_heads, tokens, head_dim] of BF16, FP16 or FP32 is served")
    layout = Layout(names[dtype], len(past.layers), keys[1], keys[3], values[3], block_tokens)
    kv = _digest((f"{i} {dtype} {tuple(side.shape)}", side) for i, layer in enumerate(past.layers)
                 for side in (layer.keys, layer.values))
    return layout, dtype, device, kv


def _weights(model: Any) -> str:
    """A digest of the parameters, of all buffers (those that are not saved, too), and of tensors that are plain
    attributes of modules."""
    import torch
    plain = [{key: value for key, value in vars(module).items() if isinstance(value, torch.Tensor)}
             for module in model.modules()]
    return _digest(_tensors("", [model.state_dict(), dict(model.named_buffers(remove_duplicate=False)), plain]))


def _tensors(name: str, value: Any) -> Iterator[Tuple[str, Any]]:
    """Yields the tensors in a state with their names. Anything else is yielded as its text, with None."""
    import torch
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _tensors(f"{name}.{key}", part)
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from _tensors(f"{name}.{i}", part)
    elif not isinstance(value, torch.Tensor):
        yield f"{name} {_plain(value, {})}", None
    elif value.is_quantized:
        yield from _tensors(f"{name} {value.dtype}", value.dequantize())
    elif hasattr(value, "__tensor_flatten__"):      # one of torchao, or a shard of a tensor
        parts, _ = value.__tensor_flatten__()
        for part in parts:
            yield from _tensors(f"{name}.{part}", getattr(value, part))
    else:
        yield f"{name} {value.dtype} {tuple(value.shape)}", value


def _digest(tensors: Iterator[Tuple[str, Any]]) -> str:
    """A digest of names and tensors. All tensors of a device are copied from it at once."""
    import torch
    told, known, by_device = hashlib.sha256(), {}, {}
    for name, tensor in tensors:
        told.update(f"{name}\n".encode())
        if tensor is None or not tensor.numel():
            continue
        if tensor.device.type == "meta":
            raise LayoutError("its weights, or its KV, are not in memory (offloaded)")
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if place not in known:      # with the tensor, which keeps its place from being another one's
            known[place] = tensor, list(_pieces(tensor.detach()))
        by_device.setdefault(tensor.device, []).extend(known[place][1])     # again for one that is tied to it
    for pieces in by_device.values():
        told.update(torch.cat(pieces).cpu().numpy().tobytes())
    return told.hexdigest()[:24]


def _pieces(tensor: Any) -> Iterator[Any]:
    """Yields rows of bytes that stand for a tensor. The sums add integers, so their order does not matter."""
    import torch
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    summed = flat.numel() // _ROW * _ROW if flat.numel() > _WHOLE else 0
    if summed:
        words = flat[:summed] if flat.storage_offset() % 8 == 0 else flat[:summed].clone()
        yield words.view(torch.int64).reshape(summed // _ROW, _ROW // 8).sum(1).view(torch.uint8)
    if summed < flat.numel():
        yield flat[summed:]


def _settings(model: Any) -> str:
    import transformers
    told, seen = hashlib.sha256(getattr(transformers, "__version__", "").encode()), {}
    told.update(repr(_plain(model.config, seen)).encode())
    for name, module in model.named_modules():
        kind = type(module)
        told.update(repr((name, _named(kind), _named(getattr(kind, "forward", kind)),
                          _plain(_attributes(module), seen))).encode())
    return told.hexdigest()[:24]


def _attributes(module: Any) -> Dict[str, Any]:
    """The attributes of a module, without those that are False or empty, as most are."""
    ret = {}
    for key, value in vars(module).items():
        if isinstance(value, dict) and "_hooks" in key:
            value = list(value.values())        # its keys count the hooks of a process
        if value is not False and not (isinstance(value, (dict, list)) and not value):
            ret[key] = value
    return ret


def _named(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def _plain(value: Any, seen: Dict[int, Any]) -> Any:
    """The numbers, texts and flags in a value, in an order that is the same in each process. seen: the configs so far
    by id, as all modules have the same one."""
    import torch
    if type(value) in _VALUES:
        return value
    if isinstance(value, dict):
        return sorted(((str(key), part if type(part) in _VALUES else _plain(part, seen)) for key, part in value.items()
                       if key not in _IGNORED), key=lambda item: item[0])
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_plain(part, seen)) for part in value)
    if isinstance(value, (list, tuple)):
        parts = [_plain(part, seen) for part in value]
        return parts[0] if len(parts) == 1 else parts       # peft has one active adapter as a list or as itself
    if hasattr(value, "to_dict") and hasattr(value, "__dict__"):    # a config
        if id(value) not in seen:
            seen[id(value)] = None      # in case it contains itself
            seen[id(value)] = _plain(vars(value), seen)
        return seen[id(value)]
    if isinstance(value, (int, float, str, torch.dtype, torch.device, enum.Enum)):
        return str(value)
    return _named(value)


def _longest(model: Any) -> float:
    """How many tokens a prompt may have before its length changes its KV. Some rotations change their frequencies in
    the middle of a prompt."""
    longest = math.inf
    for module in model.modules():
        kinds = getattr(module, "rope_type", "")
        if any("dynamic" in str(kind) or "longrope" in str(kind)
               for kind in (kinds.values() if isinstance(kinds, dict) else [kinds])):
            longest = min([longest, module.original_max_seq_len, *_originals(vars(module.config))])
    return longest


def _originals(settings: Any) -> Iterator[int]:
    """Each original_max_position_embeddings in a config."""
    for key, value in settings.items():
        if key == "original_max_position_embeddings" and value:
            yield value
        elif isinstance(value, dict):
            yield from _originals(value)
