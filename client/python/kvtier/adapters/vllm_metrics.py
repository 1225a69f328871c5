# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.vllm_metrics - what vLLM says of kvtier: statistics in its log, counters for Prometheus, KV events.

Workers count what happened; vLLM's own counters for external hits count what was promised. Prometheus has these, with
`_total` behind each name and vLLM's own labels:

    vllm:kvtier_loads, vllm:kvtier_loaded_blocks, vllm:kvtier_missed_blocks, vllm:kvtier_load_seconds
    vllm:kvtier_saves, vllm:kvtier_saved_blocks, vllm:kvtier_unsaved_blocks, vllm:kvtier_save_seconds

With kv_events_config.enable_kv_cache_events the engine also publishes BlockStored and BlockRemoved for blocks that it
gave to kvtier or had from there, under the block hashes of vLLM, one of each KV cache group. Fields are filled as vLLM
fills them for its own caches. The medium is CPU (memory of this node) or STORAGE. Where a publisher of the node is
there (kvtier.events), it gets the same descriptions, and tells routers of blocks that outlive the engine.
"""
from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, Iterator, List, Sequence, Tuple

from prometheus_client import Counter
from vllm.distributed import kv_events
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from .. import Keys, Space, Tier
from ..events.describe import Describer
from .vllm_core import COUNTS
from .vllm_events import Event, Events
from .vllm_layout import is_state

try:
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
except ImportError:
    def maybe_convert_block_hash(hash_bytes: Any) -> Any:
        return hash_bytes
try:
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, to_event_extra_keys
    from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window
except ImportError:         # the events of an older vLLM have no such fields
    generate_block_hash_extra_keys = None

__all__ = ["KvtierMetrics", "KvtierStats", "events_of"]

STEP_S, PLANS_MAX = 0.001, 4096     # of a step, for describing blocks; plans that wait for it, the oldest are forgotten

_SAY = {
    "loads": "Loads from kvtierd, of one or more blocks.", "saves": "Saves to kvtierd, of one or more blocks.",
    "loaded_blocks": "Blocks that loads brought.", "saved_blocks": "Blocks that kvtierd has after a save.",
    "missed_blocks": "Blocks that were promised and did not come: they were computed.",
    "unsaved_blocks": "Blocks that kvtierd did not take.",
    "load_seconds": "Seconds that loads took.", "save_seconds": "Seconds that saves took, beside the engine's work.",
}


@dataclass
class KvtierStats(KVConnectorStats):
    """The statistics of an interval. data: vllm_core.COUNTS."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name in COUNTS:
            self.data[name] = self.data.get(name, 0) + other.data.get(name, 0)
        return self

    def reduce(self) -> Dict[str, Any]:
        ret = {f"kvtier {name}": n for name, n in self.data.items() if not name.endswith("seconds")}
        for what in ("load", "save"):
            if self.data.get(f"{what}s"):
                ret[f"kvtier {what} ms"] = round(1000 * self.data[f"{what}_seconds"] / self.data[f"{what}s"], 2)
        return ret

    def is_empty(self) -> bool:
        return not any(self.data.values())


class KvtierMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: List[str],
                 per_engine_labelvalues: Dict[int, List[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter = metric_types[Counter]
        self._counters = {name: counter(name=f"vllm:kvtier_{name}", documentation=_SAY[name], labelnames=labelnames)
                          for name in COUNTS}

    def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, counter in self._counters.items():
            if transfer_stats_data.get(name):
                counter.labels(*labels).inc(transfer_stats_data[name])


def _medium(tiers: Tier) -> str:
    return getattr(kv_events, "MEDIUM_CPU", "CPU") if tiers & (Tier.GPU | Tier.HOST) else "STORAGE"


class _VllmEvents:
    """The events of the scheduler. Blocks whose save or load was planned are described within the next steps, STEP_S in
    each: a long prompt has thousands. groups: what events say of each KV cache group; [0] those with blocks, [1] those
    with states. publishes: whether the engine does."""

    def __init__(self, block_tokens: int, hash_tokens: int, groups: Sequence[List[Dict[str, Any]]], publishes: bool,
                 describer: Describer) -> None:
        self._events, self._block_tokens, self._groups = Events(_medium), block_tokens, groups
        self._publishes, self._describer = publishes, describer
        self._steps = block_tokens // hash_tokens       # vLLM may hash in finer steps: a block has the hash of its last
        self._requests: Dict[str, Any] = {}
        self._late: List[Any] = []
        self._plans: Deque[Tuple[Any, Iterator[int], Callable, bool]] = deque(maxlen=PLANS_MAX)

    def add(self, request: Any) -> None:
        self._requests[request.request_id] = request

    def forget(self, name: str) -> None:
        self._requests.pop(name, None)

    def planned(self, name: str, blocks: range, where: Callable[[int], Sequence[Tuple[Space, Keys]]],
                states: bool) -> None:
        """Scheduler calls it: blocks are to be saved or loaded."""
        if name in self._requests and (self._publishes or self._describer.there()):
            self._plans.append((self._requests[name], iter(blocks), where, states))

    @property
    def busy(self) -> bool:
        """Whether blocks wait for a step."""
        return bool(self._plans)

    def _describe(self, request: Any, block: int, where: Sequence[Tuple[Space, Keys]], states: bool) -> None:
        hashes, bt = getattr(request, "block_hashes", None) or (), self._block_tokens
        steps, first = self._steps, block * bt
        if not where or not steps or (block + 1) * steps > len(hashes):
            return
        lora = request.lora_request
        payload = {
            "block_hashes": [maybe_convert_block_hash(hashes[(block + 1) * steps - 1])],
            "parent_block_hash": maybe_convert_block_hash(hashes[block * steps - 1]) if block else None,
            "token_ids": list(request.all_token_ids[first:first + bt]), "block_size": bt,
            "lora_id": lora.lora_int_id if lora else None, "lora_name": lora.lora_name if lora else None,
            "extra_keys": _extra_keys(request, first, first + bt),
            "session_id": getattr(request, "session_id", None)}
        if self._publishes:
            self._events.planned((payload, states), where)
        if self._describer.there():
            self._describer.say([keys[0] for _, keys in where],
                                [{**payload, **group} for group in self._groups[states]])

    def take(self) -> List[Any]:
        until = time.monotonic() + STEP_S
        while self._plans and time.monotonic() < until:
            request, blocks, where, states = self._plans[0]
            block = next(blocks, None)
            if block is None:
                self._plans.popleft()
            else:
                self._describe(request, block, where(block), states)
        late, self._late = self._late, []
        self._describer.flush()
        return late + self._said(self._events.take())

    def close(self) -> None:
        self._describer.close()

    def reset(self) -> None:
        self._plans.clear()
        self._late += self._said(self._events.clear())

    def _said(self, events: Sequence[Event]) -> List[Any]:
        """The events in vLLM's words."""
        ret = []
        for stored, (payload, states), tiers in events:
            kind = kv_events.BlockStored if stored else kv_events.BlockRemoved
            where = {"medium": _medium(tiers), "locality": "REMOTE" if tiers & Tier.REDIS else "LOCAL"}
            for group in self._groups[states]:
                said = {**payload, **where, **group}
                ret.append(kind(**{name: said[name] for name in kind.__struct_fields__ if name in said}))
        return ret


def _extra_keys(request: Any, first: int, end: int) -> Any:
    """What the hash of the block with these tokens has beside its tokens: adapter, images, salt."""
    if generate_block_hash_extra_keys is None:
        return None
    return to_event_extra_keys([generate_block_hash_extra_keys(request, first, end, 0)[0]])


def _group(number: int, spec: Any) -> Dict[str, Any]:
    if generate_block_hash_extra_keys is None:
        return {"group_idx": number}
    return {"group_idx": number, "kv_cache_spec_kind": get_kv_cache_spec_kind(spec).value,
            "kv_cache_spec_sliding_window": get_kv_cache_spec_sliding_window(spec)}


def events_of(vllm_config: Any, kv_cache_config: Any, describer: Describer) -> _VllmEvents:
    wanted = getattr(vllm_config, "kv_events_config", None)
    tokens = vllm_config.cache_config.block_size
    groups: Tuple[List[Dict[str, Any]], ...] = ([], [])
    for i, group in enumerate(getattr(kv_cache_config, "kv_cache_groups", None) or ()):
        groups[is_state(type(group.kv_cache_spec))].append(_group(i, group.kv_cache_spec))
    return _VllmEvents(tokens, getattr(kv_cache_config, "hash_block_size", None) or tokens,
                       groups if groups[0] else ([{"group_idx": 0}], []),
                       bool(wanted and wanted.enable_kv_cache_events), describer)
