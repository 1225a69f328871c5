# SPDX-License-Identifier: Apache-2.0
"""sglang_double.py - the classes of SGLang 0.5.23 that kvtier.sglang builds on, and pools in its layouts, without
torch. The real SGLang: make test-engines.

HostPool is a HostKVCache in one of SGLang's orders; DevicePool an MHATokenToKVPool whose memory is the CPU's. Their
bytes lie in a KvPool of sys_python_engines_sglang.py, which fills and compares pages.
"""
import abc
import ctypes as C
import dataclasses
import enum
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, List, Optional

import torch_double
from sys_python_engines_sglang import DIM, HEADS, LAYERS, PAGES, TOKENS, KvPool, Memory
from torch_double import Numbers, Tensor, module


@dataclass
class HiCacheStorageConfig:
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    attn_cp_rank: int
    attn_cp_size: int
    is_mla_model: bool
    enable_storage_metrics: bool
    is_page_first_layout: bool
    model_name: Optional[str]
    should_split_heads: bool = False
    extra_config: Optional[dict] = None


@dataclass
class HiCacheStorageExtraInfo:
    prefix_keys: Optional[List[str]] = None


class PoolName(str, enum.Enum):
    KV = "kv"
    MAMBA = "mamba"
    SWA = "swa"
    INDEXER = "indexer"

    def __str__(self) -> str:
        return self.value


class PoolHitPolicy(str, enum.Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclass
class PoolTransfer:
    name: PoolName
    host_indices: Any = None
    device_indices: Any = None
    keys: Optional[List[str]] = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


@dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict
    restorable_prefix_pages: list = dataclasses.field(default_factory=list)

    @classmethod
    def empty(cls):
        return cls(0, {})


@dataclass
class StorageMetrics:
    prefetch_pgs: List[int] = dataclasses.field(default_factory=list)
    backup_pgs: List[int] = dataclasses.field(default_factory=list)
    prefetch_bandwidth: List[float] = dataclasses.field(default_factory=list)
    backup_bandwidth: List[float] = dataclasses.field(default_factory=list)


class HiCacheStorage(abc.ABC):
    @abc.abstractmethod
    def get(self, key, target_location=None, target_sizes=None): ...

    @abc.abstractmethod
    def batch_get(self, keys, target_locations=None, target_sizes=None): ...

    @abc.abstractmethod
    def set(self, key, value=None, target_location=None, target_sizes=None): ...

    @abc.abstractmethod
    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None): ...

    @abc.abstractmethod
    def exists(self, key): ...


class UnifiedCacheLinker(abc.ABC):
    """The abstract methods of 0.5.23."""


for _name in ("lookup", "load", "start_layer_wise_loading", "finish_layer_wise_loading",
              "cancel_queued_load", "offload", "num_completed_offloads", "pop_completed_offload", "reset", "close"):
    setattr(UnifiedCacheLinker, _name, abc.abstractmethod(lambda self: None))
abc.update_abstractmethods(UnifiedCacheLinker)


class LayerWiseLoadCounter:
    def __init__(self, num_layers: int) -> None:
        self.num_layers, self.producer, self.done = num_layers, -1, {}

    def update_producer(self) -> int:
        self.producer += 1
        self.done[self.producer] = [None] * self.num_layers
        return self.producer

    def complete(self, index: int, layer: int) -> None:
        self.done[index][layer] = True

    def fail(self, index: int, error: BaseException) -> None:
        self.done[index] = [error] * self.num_layers

    def finish(self, index: int) -> bool:
        return all(done is True for done in self.done.pop(index))

    def reset(self) -> None:
        self.done.clear()


class MHATokenToKVPool:
    layer_shard_enabled, k_scale_buffer, kv_cache_layout = False, None, "nhd"

    def __init__(self) -> None:
        self.layer_num, self.k, self.v = LAYERS, *([Memory(name, (PAGES * TOKENS, HEADS, DIM), "shd")
                                                    for _ in range(LAYERS)] for name in "kv")
        self.k_buffer, self.v_buffer = ([_shown(memory) for memory in side] for side in (self.k, self.v))

    def rows(self, page: int):
        """As KvPool.rows()."""
        for side in (self.k, self.v):
            for memory in side:
                for token in range(TOKENS):
                    for head in range(HEADS):
                        yield memory, memory.at(s=page * TOKENS + token, h=head), DIM

    fill, content = KvPool.fill, KvPool.content


class MLATokenToKVPool:
    pass


DevicePool = MHATokenToKVPool


def _shown(memory: Memory) -> Tensor:
    return Tensor(memory.bytes, torch_double.bfloat16, memory.shape)


def _first_slots(indices: Numbers) -> List[int]:
    return [slot for slot in indices.flat() if slot % TOKENS == 0]


@dataclass
class DevicePoolEntry:
    name: PoolName
    indices_from_pool: PoolName
    device_pool: Any
    page_size: int
    components: list
    layer_mapping: dict
    rows_are_pages: bool

    @property
    def kv_buffer(self) -> list:
        return [tensor for component in self.components for tensor in component]

    def get_page_buffer_meta(self, indices: Numbers):
        """(addresses, bytes) of a page, in each tensor."""
        size = self.page_size * HEADS * DIM * 2
        places = [tensor.data_ptr() + slot * HEADS * DIM * 2 for slot in _first_slots(indices)
                  for tensor in self.kv_buffer]
        return places, [size] * len(places)


@dataclass
class DevicePoolGroup:
    entries: list
    num_layers: int
    page_size: int
    rank_replicated: bool = False

    @property
    def entry_map(self) -> dict:
        return {entry.name: entry for entry in self.entries}

    def resolve_transfers(self, transfers, allow_partial: bool = False, allow_missing_kv: bool = False) -> list:
        return [dataclasses.replace(transfer, host_indices=transfer.device_indices) for transfer in transfers]


def resolve_hybrid_device_pool_group(**_):
    raise ValueError("a pool that SGLang links to nothing")


class HostPool(KvPool):
    """layout: the order's name, as SGLang has it; what is stored of it: see KvPool."""
    page_size, page_num, size_per_token = TOKENS, PAGES, LAYERS * HEADS * DIM * 2 * 2
    device_pool = SimpleNamespace(kv_cache_layout="nhd")

    def __init__(self, order: str) -> None:
        super().__init__(order)
        self.layout = order
        self.k_buffer, self.v_buffer = _shown(self.k), _shown(self.v)
        self.kv_buffer = self.k_buffer

    def get_page_buffer_meta(self, indices: Numbers):
        return [C.addressof(self.k.bytes) + slot * self.size_per_token for slot in _first_slots(indices)], [1]


def install() -> None:
    torch_double.install()
    cache = "sglang.srt.mem_cache"
    module("sglang", __version__="0.5.23")
    module(f"{cache}.hicache_storage", HiCacheStorage=HiCacheStorage, HiCacheStorageConfig=HiCacheStorageConfig,
           HiCacheStorageExtraInfo=HiCacheStorageExtraInfo, PoolHitPolicy=PoolHitPolicy, PoolName=PoolName,
           PoolTransfer=PoolTransfer, PoolTransferResult=PoolTransferResult)
    module(f"{cache}.hybrid_cache.linker_pool_assembler", DevicePoolEntry=DevicePoolEntry,
           DevicePoolGroup=DevicePoolGroup, resolve_hybrid_device_pool_group=resolve_hybrid_device_pool_group)
    module(f"{cache}.memory_pool", MHATokenToKVPool=MHATokenToKVPool, MLATokenToKVPool=MLATokenToKVPool)
    module("sglang.srt.observability.metrics_collector", StorageMetrics=StorageMetrics)
    module(f"{cache}.unified_cache.unified_cache_linker", LayerWiseLoadCounter=LayerWiseLoadCounter,
           UnifiedCacheLinker=UnifiedCacheLinker)
