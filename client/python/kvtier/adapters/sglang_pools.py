# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.sglang_pools - finds where the pages of SGLang's pools lie, and says it in the words of
kvtier.adapters.sglang_core.

    host_layout()       for a pool of HiCache in host memory, which has one tensor for all layers
    device_layout()     for a pool of the device that is linked, which has tensors for each layer
    places()            the numbers of the pages that SGLang names by their slots

A layout is known by the names that a pool gives to its K and V and to their order, and only if these are all bytes of a
page. For other pools get_page_buffer_meta() says where a page lies, but not what its bytes mean, so the page is kept as
it is.
"""
from __future__ import annotations

from typing import Any, List, Optional, Tuple

import sglang
import torch

from ..block_cache import LayoutError
from .sglang_core import KV_AXES, LATENT_AXES, Layout, anchor, page_bytes, planes, runs
from .vllm_layout import tensor_of

__all__ = ["device_layout", "host_layout", "places"]


def _run_bytes(pool: Any, page: int) -> List[Tuple[int, int]]:
    """Where a page lies, as the pool says."""
    tokens = pool.page_size
    meta = pool.get_page_buffer_meta(torch.arange(page * tokens, (page + 1) * tokens))
    return list(zip(*meta)) if meta else []


def _device_order(pool: Any) -> str:
    """How the device orders tokens, heads and values. The rows of a host pool have the same order."""
    infos = getattr(pool, "_buffer_infos", None)
    if infos:
        return str(getattr(infos[0].buffers.layout, "value", infos[0].buffers.layout))
    return str(getattr(getattr(pool, "device_pool", None), "kv_cache_layout", "nhd"))


def _known(pool: Any) -> Optional[Layout]:
    """The layout of a host pool that names its K and V. None: it does not."""
    order, kv = getattr(pool, "layout", ""), getattr(pool, "kv_buffer", None)
    if _device_order(pool) != "nhd":
        return None             # as rows of the host pool are not heads of a token then
    rope = getattr(pool, "qk_rope_head_dim", None)
    if rope is not None:
        if isinstance(kv, torch.Tensor) and order in LATENT_AXES and kv.shape[-1] == pool.kv_lora_rank + rope:
            return planes([tensor_of("kv", kv)], [], LATENT_AXES[order], pool.page_size, rope)
        return None
    if order not in KV_AXES or not hasattr(pool, "v_buffer"):
        return None
    k, v = (kv, kv) if "c" in KV_AXES[order] else (pool.k_buffer, pool.v_buffer)
    return planes([tensor_of("k", k)], [tensor_of("v", v)], KV_AXES[order], pool.page_size)


def host_layout(pool: Any) -> Layout:
    """The layout of a HostKVCache. LayoutError: it is not served."""
    if getattr(pool, "kv_buffer", None) is None and pool.get_page_buffer_meta(torch.arange(pool.page_size)) is None:
        return anchor()         # this pool has only numbers: its pages are those of other pools
    why = ""
    try:
        layout = _known(pool)
        if layout and page_bytes(layout, pool.page_size) == pool.size_per_token * pool.page_size:
            return layout
        why = "its K and V are not all that it holds" if layout else ""
    except LayoutError as error:
        why = str(error)
    order = f"{getattr(pool, 'layout', '')}/{_device_order(pool)}/{type(pool).__name__}/{sglang.__version__}"
    try:
        return runs(lambda page: _run_bytes(pool, page), pool.page_num, order)
    except (LayoutError, NotImplementedError, ValueError, AttributeError) as error:
        raise LayoutError(f"order {getattr(pool, 'layout', None)!r} of {type(pool).__name__}: {why or error}") from None


def device_layout(entry: Any) -> Layout:
    """The layout of a pool that is linked. It has tensors for each layer. LayoutError: it is not served."""
    tokens, pool, tensors = entry.page_size, entry.device_pool, list(entry.kv_buffer)
    size = sum(length for _, length in _run_bytes(entry, 1))
    k, v = list(getattr(pool, "k_buffer", None) or ()), list(getattr(pool, "v_buffer", None) or ())
    rope = getattr(pool, "qk_rope_head_dim", None)
    try:
        if getattr(pool, "kv_cache_layout", "nhd") != "nhd":
            raise LayoutError("")
        if [t.data_ptr() for t in k + v] == [t.data_ptr() for t in tensors]:
            layout = planes([tensor_of("k", t) for t in k], [tensor_of("v", t) for t in v], "shd", tokens)
        elif rope is not None and all(t.shape[-1] == pool.kv_lora_rank + rope for t in tensors):
            layout = planes([tensor_of("kv", t) for t in tensors], [], "shd", tokens, rope)
        else:
            raise LayoutError("")
        if page_bytes(layout, tokens) == size:
            return layout
    except LayoutError:
        pass
    (first, _), (second, _) = _run_bytes(entry, 0)[0], _run_bytes(entry, 1)[0]
    rows = (second - first) // (tensors[0].stride(0) * tensors[0].element_size())
    return runs(lambda page: _run_bytes(entry, page), min(t.shape[0] for t in tensors) // rows,
                f"device/{getattr(pool, 'kv_cache_layout', '')}/{type(pool).__name__}/{sglang.__version__}",
                tensors[0].is_cuda)


def places(indices: torch.Tensor, n: int, tokens: int, pages: int) -> List[int]:
    """The numbers of n pages. ValueError: these are not the slots of whole pages."""
    slots = indices.detach().cpu().reshape(n, tokens)
    first = slots[:, :1]
    if bool((first % tokens).any()) or not torch.equal(slots, first + torch.arange(tokens)):
        raise ValueError(f"indices that are no whole pages of {tokens} tokens")
    ret = [slot // tokens for slot in first.flatten().tolist()]
    if ret and (min(ret) < 0 or max(ret) >= pages > 1):
        raise ValueError(f"page {max(ret)} of a pool that has {pages}")
    return [0] * n if pages == 1 else ret
