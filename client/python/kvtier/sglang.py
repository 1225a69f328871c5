# SPDX-License-Identifier: Apache-2.0
"""kvtier.sglang - keeps pages of SGLang's KV in kvtierd, as HiCache's storage or linked to the pools of the device.

    python -m sglang.launch_server --model M --page-size 64 --enable-hierarchical-cache \\
        --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
            "backend_name": "kvtier", "module_path": "kvtier.sglang", "class_name": "KvtierStorage", "interface_v1": 1,
            "hicache_storage_pass_prefix_keys": true}'

    python -m sglang.launch_server --model M --page-size 64 --enable-unified-cache-external-linker \\
        --unified-cache-external-linker-backend dynamic \\
        --unified-cache-external-linker-config '{"linker": "KvtierLinker", "linker_module_path": "kvtier.sglang"}'

Either JSON object may have these options; the linker's are in "linker_extra_config":

    socket          path of the daemon's socket
    codec           "fp8", "int8", "q4", "int8v4", "lossless" or "raw"; by default the daemon chooses by the type
    timeout_ms      for a load or store (2000)
    prefetch_ms     how long a lookup waits for a Redis that nodes share (1000)
    model           a name instead of the engine's
    extras          more text in the KV's name

A page of SGLang is a block of kvtier. The layout is taken from the shapes, strides and addresses of the tensors in the
pools that SGLang registers. A pool whose K and V are not known is kept as it is, if its pages are one stride apart. Any
other pool, and an option that is wrong, is refused in one line of the log, and the engine runs uncached.

No call raises into the engine, not even a constructor, as an exception would end its backup thread for good. The answer
for a page that failed is False, and KvtierStorage.counts and `kvtierctl stats` count it.
"""
from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections import Counter
from queue import Empty, Queue
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from sglang.srt.mem_cache.hicache_storage import (HiCacheStorage, HiCacheStorageConfig, HiCacheStorageExtraInfo,
                                                  PoolHitPolicy, PoolName, PoolTransfer, PoolTransferResult)

from . import Client, Dtype
from .block_cache import codec_of, known, milliseconds
from .adapters.sglang_core import Layout, Pool, Store, add_batch, geometry_of
from .adapters.sglang_pools import device_layout, host_layout, places
from .adapters.vllm_adapters import commit_of, is_local
from .adapters.vllm_layout import at_revision, revision_of
from .adapters.weights import Weights, began, space_of

try:
    from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import (DevicePoolEntry, DevicePoolGroup,
                                                                         resolve_hybrid_device_pool_group)
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
    from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker
except ImportError:         # an older SGLang does not have linkers
    UnifiedCacheLinker = None
try:
    from sglang.srt.observability.metrics_collector import StorageMetrics
except ImportError:         # another SGLang keeps it elsewhere
    StorageMetrics = None

__all__ = ["KvtierLinker", "KvtierStorage"] if UnifiedCacheLinker else ["KvtierStorage"]

logger = logging.getLogger("sglang.kvtier")

KV = str(PoolName.KV)
_OPTIONS = ("codec", "extras", "model", "prefetch_ms", "socket", "timeout_ms")
_ENGINES_OPTIONS = ("backend_name", "class_name", "file_storage_path", "hicache_storage_pass_prefix_keys",
                    "interface_v1", "module_path", "prefetch_threshold", "prefetch_timeout_base",
                    "prefetch_timeout_per_ki_token", "tp_lcm_size")     # SGLang's own, in the same JSON object


# --- what both ways have in common ---

def _nobody() -> Client:
    raise OSError("this engine is not served")


class _Cache:
    """The pages of one rank. After refuse() it has no pages, and one line of the log says why."""

    def __init__(self) -> None:
        self.refused = ""
        self._said: set = set()
        self.store = Store(_nobody, 1, 0)
        self._adapters, self._weights = "", Weights()

    def open(self, config: HiCacheStorageConfig, options: Dict[str, Any], name: str) -> None:
        """Takes the options and makes the store. It refuses options that are wrong, and raises for another config."""
        self.config, self.options, self._settings = config, options, _settings()
        try:
            self.options = options = known(options, _OPTIONS, _ENGINES_OPTIONS)
            timeout_ms = milliseconds(options, "timeout_ms", 2000)
            prefetch_ms = milliseconds(options, "prefetch_ms", 1000, 0)
            self._codec = codec_of(options, "int8", "q4", "int8v4", "lossless")
        except ValueError as error:
            self.refuse(str(error))
            return
        # the configuration has the name under which the model is served, which does not name its weights
        self._model = str(options.get("model") or getattr(self._settings, "model_path", None) or config.model_name or
                          "")
        self._revision = "" if options.get("model") else revision_of(_hf_config(self._settings),
                                                                     getattr(self._settings, "revision", None))
        self.store = Store(lambda: Client(options.get("socket"), name=f"sglang {name}", timeout_ms=timeout_ms),
                           timeout_ms, prefetch_ms, self._say, lambda: self._weights.names())
        self.writes = getattr(config, "is_storage_writer", not config.is_mla_model or config.tp_rank == 0)
        if not self._model:
            self.refuse("the model has no name: option model gives it one")
        elif getattr(_model_config(self._settings), "is_multimodal", False):
            self.refuse("a model that sees images: SGLang names an image by 30 bits of its digest, so two images may "
                        "have one name")
        elif getattr(config, "dcp_size", 1) > 1 or getattr(config, "should_split_heads", False):
            self.refuse("pages that are split over ranks of a decode context, or by tp_lcm_size")
        else:
            self._adapters = self._weights_of_adapters()
            if not options.get("model"):    # else its user says which weights these are
                local = sorted(path for path in _adapter_paths(self._settings) if is_local(path))
                self._weights = Weights(self._model, *local, say=self._say, since=began())
                self._weights.names()       # it begins to read

    def _weights_of_adapters(self) -> str:
        """A text that names the weights of a hub's adapters that the engine began with, as SGLang names a page by their
        names and paths alone. It refuses an adapter whose weights are not known."""
        weights = set()
        for path in _adapter_paths(self._settings):
            if is_local(path):
                continue
            commit = commit_of(path, math.inf)      # they were loaded before there was a cache
            if not commit:
                self.refuse(f"adapter {path}: the commit that SGLang has loaded is not known")
            weights.add(f"{path}={commit}")
        return ",".join(sorted(weights))

    @staticmethod
    def _say(text: str) -> None:
        logger.info("kvtier: %s", text)

    def refuse(self, why: str) -> None:
        """Stops serving. The first reason is logged, and counted as `refused`."""
        if not self.refused:
            self.refused = why
            self.store.count(refused=1)
            logger.warning("kvtier: this engine is not served, it runs uncached: %s", why)

    def refuse_for(self, error: Exception) -> None:
        """Refuses for a constructor that could not finish, for example in an engine of another version."""
        text = str(error) if isinstance(error, (ValueError, NotImplementedError)) else ""
        self.refuse(text or f"{type(error).__name__}: {error}")

    def failed(self, where: str, error: Exception) -> None:
        self.store.count(errors=1)
        said = f"{where}: {type(error).__name__}: {error}"
        if said not in self._said and len(self._said) < 100:
            self._said.add(said)
            logger.warning("kvtier: %s (said once; the engine computes what it asked for)", said)

    def add(self, name: str, pool: Any, layout_of: Callable[[Any], Layout]) -> None:
        """Adds a pool to the store, if it is served. Without the pool of KV no other pool is served."""
        try:
            layout = layout_of(pool)
        except Exception as error:      # LayoutError, or the pool lacks what others have
            if name == KV:
                self.refuse(f"pool {name}: {error or type(error).__name__}")
            else:
                logger.warning("kvtier: pool %s is not served, nor any prompt that needs it: %s", name, error)
            return
        c, settings = self.config, [str(getattr(self._settings, name, "")) for name in _SETTINGS]
        if self._revision:
            settings[_SETTINGS.index("revision")] = ""      # the model's name has the revision
        if not any(settings) and layout.dtype == Dtype.INT8 and not layout.order and not self.options.get("extras"):
            self.refuse(f"pool {name} has values of 8 bits: option extras must say of which type")
            return
        sharded = not c.is_mla_model or name == str(PoolName.MAMBA) or layout.dim_v > 0
        extras = {"pool": "" if name == KV else name,
                  "pp": f"{c.pp_rank}/{c.pp_size}" if c.pp_size > 1 else "",
                  "cp": f"{c.attn_cp_rank}/{c.attn_cp_size}" if c.attn_cp_size > 1 else "",
                  "adapters": self._adapters,
                  "engine": ",".join(settings) if any(settings) else "",
                  "format": getattr(pool, "storage_format_tag", None),
                  "own": self.options.get("extras", "")}
        kind = getattr(_hf_config(self._settings), "model_type", None)
        model = "" if self.options.get("model") else space_of(self._model, kind)
        self.store.add(name, Pool(layout, geometry_of(layout, model or at_revision(self._model, self._revision), extras,
                                                      pool.page_size,
                                                      c.tp_rank if sharded else 0, c.tp_size if sharded else 1,
                                                      self._codec)))

    def is_written(self, name: str) -> bool:
        """Whether this rank writes the pool. MLA's KV is the same in all ranks, so one of them writes it."""
        return self.writes or self.store[name].geometry.world > 1

    def restorable(self, keys: List[str], transfers: Sequence[PoolTransfer], prefix: Sequence[str]
                   ) -> Tuple[Dict[str, int], List[int]]:
        """How many leading pages of each pool can be loaded, and each number of pages that all pools can load."""
        n = self.store.exists(KV, keys, prefix) if KV in self.store else len(keys)
        hits: Dict[str, int] = {PoolName.KV: n} if n else {}
        good = set(range(1, n + 1))
        for transfer in transfers:
            name = str(transfer.name)
            if name == KV or transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:     # these never limit the KV
                continue
            if name not in self.store:
                mine = set()
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                there, window = self.store.present(name, keys[:n]), max(1, len(transfer.keys or ()))
                mine = {end for end in range(1, n + 1) if all(there[max(0, end - window):end])}
            else:
                mine = set(range(1, self.store.exists(name, keys[:n], prefix) + 1))
            if mine:
                hits[transfer.name] = max(mine)
            good &= mine
        return hits, sorted(good)

    def move(self, load: bool, transfer: PoolTransfer, prefix: Sequence[str], stream: Any = None) -> List[bool]:
        name, keys = str(transfer.name), transfer.keys or []
        if name not in self.store or not keys:
            return [False] * len(keys)
        if not load and not self.is_written(name):
            return [True] * len(keys)
        pool = self.store[name]
        into = places(transfer.host_indices, len(keys), pool.geometry.block_tokens, pool.layout.pages)
        alone = transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES
        if load:
            return self.store.get(name, keys, into, () if alone else prefix, stream)
        return self.store.set(name, keys, into, () if alone else prefix, alone, stream)


_SETTINGS = ("quantization", "revision", "dtype", "kv_cache_dtype", "json_model_override_args")


def _settings() -> Any:
    """The engine's settings. None: this is no engine, or the engine keeps its settings elsewhere."""
    try:
        from sglang.srt.runtime_context import get_server_args
        return get_server_args()
    except Exception:
        return None


def _model_config(settings: Any) -> Any:
    """What SGLang says of the model. None: it is not known."""
    try:
        return settings.get_model_config()
    except Exception:       # no settings, those of an older SGLang, or a model that transformers does not know
        return None


def _hf_config(settings: Any) -> Any:
    """What transformers says of the model. None: it is not known."""
    return getattr(_model_config(settings), "hf_config", None)


def _adapter_paths(settings: Any) -> List[str]:
    """The paths of the LoRA adapters: directories, or names of a hub."""
    listed = getattr(settings, "lora_paths", None) or ()
    paths = []
    for one in listed.values() if isinstance(listed, dict) else listed:
        if isinstance(one, str):
            paths.append(one if isinstance(listed, dict) else one.split("=", 1)[-1])    # NAME=PATH, as it was given
        else:
            paths.append(str(one.get("lora_path") if isinstance(one, dict) else one.lora_path))
    return paths


def _none_of(keys: Optional[Sequence[str]], *_: Any, **__: Any) -> List[bool]:
    return [False] * len(keys or ())


def _none_of_pools(transfers: Optional[Sequence[PoolTransfer]], *_: Any, **__: Any) -> Dict[str, List[bool]]:
    return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers or ()}


def _never(instead: Callable[..., Any], refused: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps a method that SGLang calls, so that it never raises. instead: gives its answer when it failed. refused:
    the method is also called when the engine is not served."""
    def of(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def guarded(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if refused or not self._cache.refused:
                try:
                    return method(self, *arguments, **keywords)
                except Exception as error:
                    self._cache.failed(method.__name__, error)
            return instead(*arguments, **keywords)
        return guarded
    return of


def _prefix(extra_info: Optional[HiCacheStorageExtraInfo]) -> List[str]:
    return getattr(extra_info, "prefix_keys", None) or []


# --- HiCache's storage ---

class KvtierStorage(HiCacheStorage):
    """SGLang's threads for queries, prefetches and backups call it. Keys are names of pages, in a prompt's order.
    Indices are slots of the host pool: a tensor of integers, with page_size consecutive ones for each key. An answer is
    True for each page that was moved. A call never raises: if it fails, its pages are False, and a line of the log says
    why. It takes about twice timeout_ms at most."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Any = None) -> None:
        """storage_config.extra_config: the options of the file's head. It does not connect, and never raises."""
        self._cache, self.registered_pools, self._metrics = _Cache(), {}, StorageMetrics and StorageMetrics()
        try:
            options = dict(storage_config.extra_config or {})
            self._cache.open(storage_config, options, f"hicache tp{storage_config.tp_rank} pp{storage_config.pp_rank}")
            if not options.get("interface_v1"):
                self._cache.refuse('the backend\'s extra config must have "interface_v1": 1')
        except Exception as error:
            self._cache.refuse_for(error)

    @property
    def counts(self) -> Counter:
        """Counts of pages: hit, loaded, missed, stored, unstored. errors counts calls that ended with an error. refused
        is 1 if the engine runs uncached."""
        return self._cache.store.counts

    @_never(lambda pool: None)
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Registers the host pool of the KV (HostKVCache). A pool whose layout is not known is refused."""
        self.mem_pool_host = mem_pool_host
        self._cache.add(KV, mem_pool_host, host_layout)

    @_never(lambda pool, name: None)
    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Registers a host pool by its name (PoolName): that of the KV, or one beside it."""
        self.registered_pools[host_pool_name] = host_pool
        if host_pool is not getattr(self, "mem_pool_host", None) or str(host_pool_name) != KV:
            self._cache.add(str(host_pool_name), host_pool, host_layout)

    @_never(lambda keys, *_, **__: 0)
    def batch_exists(self, keys: List[str], extra_info: Optional[HiCacheStorageExtraInfo] = None) -> int:
        """How many leading pages of the KV can be loaded. It waits prefetch_ms at most for pages of other nodes."""
        return self._cache.store.exists(KV, keys, _prefix(extra_info))

    @_never(lambda key: False)
    def exists(self, key: str) -> bool:
        """Whether this page of the KV can be loaded."""
        return self._cache.store.exists(KV, [key]) == 1

    @_never(_none_of)
    def batch_get_v1(self, keys: List[str], host_indices: torch.Tensor,
                     extra_info: Optional[HiCacheStorageExtraInfo] = None) -> List[bool]:
        """Loads pages of the KV into their slots. If a page is False, its slots may hold a part of it."""
        return self._move(True, PoolTransfer(PoolName.KV, host_indices, keys=keys), extra_info)

    @_never(_none_of)
    def batch_set_v1(self, keys: List[str], host_indices: torch.Tensor,
                     extra_info: Optional[HiCacheStorageExtraInfo] = None) -> List[bool]:
        """Stores pages of the KV. Returns when their slots were read."""
        return self._move(False, PoolTransfer(PoolName.KV, host_indices, keys=keys), extra_info)

    @_never(lambda *_, **__: PoolTransferResult.empty())
    def batch_exists_v2(self, keys: List[str], pool_transfers: Optional[List[PoolTransfer]] = None,
                        extra_info: Optional[HiCacheStorageExtraInfo] = None) -> PoolTransferResult:
        """How many leading pages can be loaded of the KV, of each pool of pool_transfers, and of all together."""
        hits, restorable = self._cache.restorable(keys, pool_transfers or (), _prefix(extra_info))
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    @_never(_none_of_pools)
    def batch_get_v2(self, transfers: List[PoolTransfer],
                     extra_info: Optional[HiCacheStorageExtraInfo] = None) -> Dict[str, List[bool]]:
        """batch_get_v1() for several pools. The results are by pool."""
        return {transfer.name: self._move(True, transfer, extra_info) for transfer in transfers}

    @_never(_none_of_pools)
    def batch_set_v2(self, transfers: List[PoolTransfer],
                     extra_info: Optional[HiCacheStorageExtraInfo] = None) -> Dict[str, List[bool]]:
        """batch_set_v1() for several pools. The results are by pool."""
        return {transfer.name: self._move(False, transfer, extra_info) for transfer in transfers}

    def _move(self, load: bool, transfer: PoolTransfer, extra_info: Optional[HiCacheStorageExtraInfo]) -> List[bool]:
        begun, good = time.monotonic(), self._cache.move(load, transfer, _prefix(extra_info))
        if self._metrics and any(good) and (load or self._cache.is_written(str(transfer.name))):
            add_batch(self._metrics, load, sum(good), self._cache.store[str(transfer.name)], time.monotonic() - begun)
        return good

    def get_stats(self) -> Any:
        """The StorageMetrics of the batches since the last call. None: this SGLang has none."""
        ret, self._metrics = self._metrics, StorageMetrics and StorageMetrics()
        return ret

    # These belong to the interface that copies each page twice. It is refused when the storage is made.

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> None:
        """None, the answer to a miss."""
        return None

    def batch_get(self, keys: List[str], target_locations: Any = None, target_sizes: Any = None) -> List[None]:
        """A None for each key, the answer to misses."""
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """False: the page is not kept."""
        return False

    def batch_set(self, keys: List[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        """False: the page is not kept."""
        return False

    def clear(self) -> bool:
        """Keeps the pages, as other engines use them, too. `kvtierctl purge` removes them."""
        logger.warning("kvtier: pages in kvtierd stay: kvtierctl purge removes them")
        return False

    @_never(lambda: None, refused=True)
    def close(self) -> None:
        """Closes the connections. No thread may be in a call. It waits for the daemon for timeout_ms at most."""
        if not self._cache.refused:
            logger.info("kvtier: pages: %s", dict(self.counts))
        self._cache.store.close()


# --- the linker: the device's pools, without a host pool in between ---

if UnifiedCacheLinker:

    class KvtierLinker(UnifiedCacheLinker):
        """SGLang's scheduler thread calls it. A load is done when load() returns, as a load that fails later would make
        SGLang abort its request. With several ranks SGLang wants one answer of all, so there a failed load does abort
        its requests. A thread does the stores, after the forward that fills their pages.

        Transfers name pages by keys, and by device_indices: a tensor of integers, with page_size consecutive slots for
        each key. A call never raises: if it fails, its answer is that of a miss, and a line of the log says why."""

        def __init__(self, server_args: Any, params: Any, *, components: Any, extra_config: Optional[dict] = None,
                     forward_stream: Any = None) -> None:
            """extra_config: the options. It does not connect, and never raises; an engine that is not served runs
            uncached."""
            self.forward_stream, self.pools, self._group, self._alone = forward_stream, {}, None, True
            self._cache, self._device, layers = _Cache(), torch.device("cpu"), 0
            try:
                kvcache = params.token_to_kv_pool_allocator.get_kvcache()
                layers = kvcache.layer_num
                self._link(server_args, params, kvcache, components, dict(extra_config or {}))
                layers = self._group.num_layers
            except Exception as error:
                self._cache.refuse_for(error)
            self.layer_done_counter = LayerWiseLoadCounter(layers)
            if PoolName.MAMBA in self.pools:
                params.req_to_token_pool.register_layer_transfer_counter(self.layer_done_counter)
            self._loaded: Dict[str, bool] = {}      # whether all of a request came, since the last start
            self._offloads: Queue = Queue()
            self._done: Queue = Queue()
            self._thread = threading.Thread(target=self._offload_all, daemon=True, name="kvtier-offload")
            self._thread.start()

        def _link(self, server_args: Any, params: Any, kvcache: Any, components: Any, options: Dict[str, Any]) -> None:
            tp_rank, tp_size = _tp_of(params)
            self._alone = tp_size * params.pp_size * params.attn_cp_size == 1
            self._group = _plain_pool(kvcache, params) or resolve_hybrid_device_pool_group(
                kvcache=kvcache, page_size=params.page_size, params=params, components=components)
            self._cache.open(HiCacheStorageConfig(
                tp_rank=tp_rank, tp_size=tp_size, pp_rank=params.pp_rank, pp_size=params.pp_size,
                attn_cp_rank=params.attn_cp_rank, attn_cp_size=params.attn_cp_size,
                is_mla_model=bool(self._group.rank_replicated), enable_storage_metrics=False,
                is_page_first_layout=False, model_name=_model_of(server_args)), options,
                f"linker tp{tp_rank} pp{params.pp_rank}")
            self.pools = self._group.entry_map
            self._device = self._group.entries[0].kv_buffer[0].device
            for name, entry in self.pools.items():
                if not self._cache.refused:
                    self._cache.add(str(name), entry, device_layout)
                    if str(name) not in self._cache.store:
                        self._cache.refuse(f"pool {name}")

        @property
        def counts(self) -> Counter:
            """The same counts as KvtierStorage.counts."""
            return self._cache.store.counts

        @_never(lambda *_: [])
        def lookup(self, rid: str, transfers: List[PoolTransfer]) -> List[int]:
            """The numbers of leading pages, from 1 on, that all pools can load."""
            expanded = self._group.resolve_transfers(transfers)
            kv = next((transfer for transfer in transfers if transfer.name == PoolName.KV), None)
            return self._cache.restorable(list(kv.keys), expanded, ())[1] if expanded and kv else []

        @_never(lambda *_: False)
        def load(self, rid: str, transfers: List[PoolTransfer]) -> bool:
            """Loads pages into their slots. Returns when all are there, after about twice timeout_ms at most. False:
            the request has to be computed."""
            expanded = self._group.resolve_transfers(transfers, allow_partial=True, allow_missing_kv=True)
            if not expanded:
                return False
            try:
                landed = all([all(self._cache.move(True, transfer, (), self._stream())) for transfer in expanded])
            except Exception as error:
                self._cache.failed("load", error)
                landed = False
            if not landed and self._alone:
                return False        # the request is computed
            self._loaded[rid] = landed
            return True

        def _stream(self) -> Any:
            """The stream whose work comes before a transfer."""
            if self._device.type != "cuda":
                return None
            torch.cuda.current_stream(self._device).synchronize()
            return self.forward_stream or torch.cuda.current_stream(self._device)

        @_never(lambda: -1, refused=True)
        def start_layer_wise_loading(self) -> int:
            """The counter's index for the loads since the last call, whose layers are all there. -1: there was no
            load."""
            if not self._loaded:
                return -1
            landed, self._loaded = all(self._loaded.values()), {}
            index = self.layer_done_counter.update_producer()
            if not landed:
                self.layer_done_counter.fail(index, RuntimeError("kvtier: a page did not come"))
            for layer in range(self.layer_done_counter.num_layers if landed else 0):
                self.layer_done_counter.complete(index, layer)
            return index

        @_never(lambda *_: False, refused=True)
        def finish_layer_wise_loading(self, counter_index: int) -> bool:
            """Whether all layers of these loads are there."""
            return self.layer_done_counter.finish(counter_index)

        @_never(lambda *_: False, refused=True)
        def cancel_queued_load(self, rid: str) -> bool:
            """Whether there was a load of this request that start_layer_wise_loading() did not take."""
            return self._loaded.pop(rid, None) is not None

        @_never(lambda *_, **__: False)
        def offload(self, transfers: List[PoolTransfer], session_id: Optional[str] = None) -> bool:
            """Queues pages to be stored after the work that is in the stream now. False: they are not stored."""
            expanded = self._group.resolve_transfers(transfers, allow_partial=True)
            if not expanded:
                return False
            events = self.record_offload_ready() if self._device.type == "cuda" else []
            self._offloads.put((expanded, events))
            return True

        def _offload_all(self) -> None:
            while True:
                task = self._offloads.get()
                if task is None:
                    self._offloads.task_done()
                    return
                kept = False
                try:
                    for event in task[1]:
                        event.synchronize()
                    kept = all([all(self._cache.move(False, transfer, ())) for transfer in task[0]])
                except Exception as error:
                    self._cache.failed("offload", error)
                self._done.put(kept)
                self._offloads.task_done()

        @_never(lambda: 0, refused=True)
        def num_completed_offloads(self) -> int:
            """How many stores have ended and were not popped yet."""
            return self._done.qsize()

        @_never(lambda: False, refused=True)
        def pop_completed_offload(self) -> bool:
            """Whether the oldest of these stores kept all its pages. Without a store it is False, too."""
            try:
                return self._done.get_nowait()
            except Empty:
                return False

        @_never(lambda: None, refused=True)
        def reset(self) -> None:
            """Waits for the queued stores, each for about twice timeout_ms at most, and forgets all loads."""
            self._loaded.clear()
            self._offloads.join()
            while self._done.qsize():
                self._done.get_nowait()
            self.layer_done_counter.reset()

        @_never(lambda: None, refused=True)
        def close(self) -> None:
            """Does reset(), then closes the connections. It may be called twice."""
            self.reset()
            if self._thread.is_alive():
                self._offloads.put(None)
                self._thread.join()
            if not self._cache.refused:
                logger.info("kvtier: pages: %s", dict(self.counts))
            self._cache.store.close()

    def _plain_pool(kvcache: Any, params: Any) -> Any:
        """The pools of a model with full attention alone, which SGLang's own linkers do not serve. None: it is another
        model."""
        draft = getattr(params, "mtp_draft_device_pools", ()) or getattr(params, "sidecar_draft_device_pools", ())
        if type(kvcache) not in (MHATokenToKVPool, MLATokenToKVPool) or draft or kvcache.layer_shard_enabled:
            return None
        mla, layers = type(kvcache) is MLATokenToKVPool, kvcache.layer_num
        if not mla and kvcache.k_scale_buffer is not None:
            raise ValueError("a KV cache with scales beside it")
        entry = DevicePoolEntry(
            name=PoolName.KV, indices_from_pool=PoolName.KV, device_pool=kvcache, page_size=params.page_size,
            components=[list(kvcache.kv_buffer) if mla else [*kvcache.k_buffer, *kvcache.v_buffer]],
            layer_mapping={i: i if mla else (i, layers + i) for i in range(layers)}, rows_are_pages=False)
        return DevicePoolGroup([entry], layers, params.page_size, rank_replicated=mla)

    def _tp_of(params: Any) -> Tuple[int, int]:
        group = getattr(params, "attn_tp_cache_group", None) or params.tp_cache_group
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(group=group), torch.distributed.get_world_size(group=group)
        return 0, 1

    def _model_of(server_args: Any) -> str:
        return str(getattr(server_args, "model_path", "") or "")
