# SPDX-License-Identifier: Apache-2.0
"""kvtier.vllm - a vLLM KV connector that keeps prefixes in kvtierd.

    vllm serve M --kv-transfer-config '{"kv_connector": "KvtierConnector", "kv_role": "kv_both"}'

`kv_connector_extra_config` may have these options, and the environment variables KVTIER_CODEC, KVTIER_TIMEOUT_MS and
so on are the options that it leaves out:

    socket          path of the daemon's socket
    codec           "fp8", "int8", "q4", "int8v4", "lossless" or "raw"; by default the daemon chooses by the type
    timeout_ms      for a load or save (2000)
    prefetch_ms     how long a request waits for a Redis that nodes share, or for a prefill engine's save (1000)
    model           a name instead of the engine's
    extras          more text in the KV's name
    zero_copy       on a CPU the daemon maps the engine's KV (true)
    cross_layers    on a GPU all layers of a block lie together (true)
    requests_name_weights   a request's `weights`, below, is believed (false)

Loads are asynchronous: the engine continues with other requests, and a request begins when its blocks are there. A
block that did not come is computed. Blocks that are being saved are held in vLLM's block pool, and vLLM's requests do
not wait for their saves. Blocks of generated tokens are kept like blocks of prompts. While the daemon is away every
lookup is a miss; a thread looks for it every 5 s, and no step waits for it.

Requests share blocks if their engines have the same model and revision, KV type, block size, rank, order of values in a
block and ISA of a CPU, and the requests have the same tokens, adapter, cache_salt and images. The layout is taken from
the tensors that the engine registers. A layout that is not known is refused in one line; the engine then runs uncached.
Ranks that hold the same KV (latents, few KV heads) share blocks, and one of them saves. States beside attention (Mamba)
are kept bit for bit where vLLM itself continues from them.

A request's `kv_hints` are executed: vllm_hints.py says which actions there are. Its `kv_transfer_params` may have

    max_load_tokens     so many tokens are loaded at most, beyond those that the engine has; 0: none
    max_offload_tokens  so many leading tokens are kept at most; 0: none
    weights             a name of the weights that the engine has now, in place of the model's. Whoever sends requests
                        could keep KV of these weights under a name of others, so an option has to allow it
    do_remote_decode    true: the answer's kv_transfer_params have kvtier_tokens
    kvtier_tokens       so many leading tokens were saved by the engine that answered this; they are waited for

With kv_role kv_producer an engine loads nothing, with kv_consumer it keeps nothing.

vllm_core.py does the work without vLLM. This file knows the names that vLLM gives to things, version by version.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.logger import init_logger

from . import Client, Codec, Geometry, Region, SharedMemory, Tier
from .block_cache import PLANE_CODECS, LayoutError, codec_of, flag, known, milliseconds, named
from .adapters.vllm_adapters import Adapters, is_local
from .adapters.vllm_core import Scheduler, Transfer, Worker, is_named, limits_of, marks_of, root_of
from .adapters.vllm_hints import hints_of
from .adapters.vllm_layout import (Layout, at_revision, geometry_of, is_state, layout_of, layout_of_all, overrides_of,
                                   revision_of, tensor_of, why_no_group, why_no_states)
from .events.describe import Describer, daemon_path, engines_path
from .adapters.vllm_metrics import KvtierMetrics, KvtierStats, events_of
from .adapters.weights import Weights, began, space_of

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:         # an older vLLM does not ask where a hit came from
    CacheHitSource = None
try:
    from vllm.distributed.kv_transfer.kv_checksum.checksum import KVChecksumCarrier
    _CARRIER = KVChecksumCarrier.KV_TRANSFER_PARAMS
except (ImportError, AttributeError):       # an older vLLM has no checksums of KV
    _CARRIER = None

__all__ = ["KvtierConnector"]

logger = init_logger("vllm.kvtier")

_MUCH = 1 << 20         # bytes: a tensor of so many is the KV, not a buffer
_OPTIONS = ("codec", "cross_layers", "extras", "model", "prefetch_ms", "requests_name_weights", "socket", "timeout_ms",
            "zero_copy")
# an older vLLM has no way to say that a load of several groups failed, and refuses their models for such a connector
_FAILS_REQUESTS = hasattr(base, "KVConnectorTransferResults")
_BASES = (KVConnectorBase_V1, base.SupportsHMA) if _FAILS_REQUESTS else (KVConnectorBase_V1,)


@dataclass
class KvtierMetadata(KVConnectorMetadata):
    """What workers load and save in one step of the engine."""
    loads: List[Transfer] = field(default_factory=list)
    saves: List[Transfer] = field(default_factory=list)
    adapters: Dict[str, Tuple[int, str, str]] = field(default_factory=dict)     # number, path, weights, by request


@dataclass
class KvtierHandshake(getattr(base, "KVConnectorHandshakeMetadata", object)):
    """What a worker tells the scheduler about its blocks: a geometry of each group. None: it serves no group."""
    geometries: Optional[List[Tuple]] = None


@dataclass
class KvtierOver(getattr(base, "KVConnectorWorkerMetadata", object)):
    """Which transfers are over, and how many workers say so. handshakes: with their first step workers say once more
    what they have, as vLLM takes the handshake of one connector alone in a MultiConnector."""
    numbers: Mapping[int, int]
    handshakes: List[KvtierHandshake] = field(default_factory=list)

    def aggregate(self, other: "KvtierOver") -> "KvtierOver":
        return KvtierOver(Counter(self.numbers) + Counter(other.numbers), self.handshakes + other.handshakes)


def _warn(text: str) -> None:
    logger.warning("kvtier: %s", text)


def _parameters(request: Any) -> Dict[str, Any]:
    """The request's kv_transfer_params, which vLLM does not look at."""
    said = getattr(request, "kv_transfer_params", None)
    return said if isinstance(said, dict) else {}


def _isa() -> str:
    """The ISA of this CPU, which the packing of its KV depends on."""
    capability = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", lambda: "?")()
    return f"{platform.machine()}/{capability}"


class KvtierConnector(*_BASES):
    """vLLM makes a connector in its scheduler and one in each worker. Requests are named by their ids, blocks by vLLM's
    block numbers, and lengths are in tokens. No method raises because a daemon is away, slow or dead, or because a
    model or an option is not served: the engine then runs uncached, and one line of the log says why."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        """vllm_config: a VllmConfig. kv_cache_config: a KVCacheConfig, whose groups and num_blocks are used. It does
        not connect yet."""
        super().__init__(vllm_config, role, kv_cache_config)
        self._block_tokens = vllm_config.cache_config.block_size
        self._options = dict(getattr(self._kv_transfer_config, "kv_connector_extra_config", None) or {})
        self._scheduler: Optional[Scheduler] = None
        self._worker: Optional[Worker] = None
        self._geometries: Optional[List[Geometry]] = None   # one of each group of the worker; None: it serves no group
        self._pool: Any = None                              # the scheduler's BlockPool
        self._shared: Optional[SharedMemory] = None         # where the engine's KV lies, if the daemon can map it
        self._adapters = Adapters(_warn)
        self._adapter_of: Dict[str, Tuple[int, str, str]] = {}      # its number, path and weights, by request
        self._in_use: Set[Tuple[int, str]] = set()          # adapters that vLLM has computed with
        self._counted: Dict[str, float] = {}                # of the worker's counts, what vLLM was told
        self._refused, self._whole, self._groups = "", False, 1
        self._states: Dict[int, str] = {}                   # which groups have states, and what these are made of
        self._said = False                                  # the worker has said what it has
        self._fails_closed, self._exact = False, False      # vLLM must prove each load; each space keeps every bit
        self._codec, self._timeout_ms, self._prefetch_ms = Codec.DEFAULT, 0, 0
        self._zero_copy = self._cross_layers = True
        self._requests_name_weights = self._said_unbelieved = False
        # vLLM fails a request whose load failed, unless it is told otherwise; its scheduler looks after this
        self._kv_transfer_config.kv_load_failure_policy = "recompute"
        try:
            self._look_at_options()
            self._look_at_groups(getattr(kv_cache_config, "kv_cache_groups", None) or ())
        except (LayoutError, ValueError) as error:
            self._refuse(str(error))
        describer = Describer(engines_path(daemon_path(str(self._options.get("socket") or ""))))
        self._events = events_of(vllm_config, kv_cache_config, describer)
        self._weights: Optional[Weights] = None     # of a local directory, which are in the keys
        if role == KVConnectorRole.SCHEDULER and not self._refused and not self._options.get("model"):
            self._weights = Weights(vllm_config.model_config.model, since=began(),
                                    say=lambda text: logger.info("kvtier: %s", text))
            self._weights.names()       # it begins to read

    def _look_at_options(self) -> None:
        """Checks the options. ValueError: one is not known, or has a value that it may not have."""
        self._options = known(self._options, _OPTIONS)
        self._timeout_ms = milliseconds(self._options, "timeout_ms", 2000)
        self._prefetch_ms = milliseconds(self._options, "prefetch_ms", 1000, 0)
        if getattr(self._kv_transfer_config, "kv_checksum_fail_closed", False):
            self._fails_closed = True
            if _CARRIER is None:
                raise ValueError("kv_checksum_fail_closed: kvtier knows no checksums of this vLLM")
        self._codec = codec_of(self._options, "int8", "q4", "int8v4", "lossless")
        self._zero_copy = flag(self._options, "zero_copy", True)
        self._cross_layers = flag(self._options, "cross_layers", True)
        self._requests_name_weights = flag(self._options, "requests_name_weights", False)
        for name in ("socket", "model", "extras"):
            if not isinstance(self._options.get(name), (str, type(None))):
                raise ValueError(f"option {name} is {self._options[name]!r}, must be a text")

    def _look_at_groups(self, groups: Any) -> None:
        self._groups = max(1, len(groups))
        parallel = self._vllm_config.parallel_config
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if getattr(parallel, name, 1) != 1:
                raise LayoutError(f"{name} {getattr(parallel, name)}: a block of tokens lies on one rank only with 1")
        attention = not all(is_state(type(group.kv_cache_spec)) for group in groups)
        for i, group in enumerate(groups):
            spec = group.kv_cache_spec
            why = why_no_group(type(spec), len(groups) > 1)
            if is_state(type(spec)):
                why = why_no_states(spec, attention, bool(getattr(self._vllm_config, "speculative_config", None)))
                self._states[i] = f"{spec.shapes} {spec.dtypes}"
            if why or not getattr(group, "enable_kv_transfer", True):
                raise LayoutError(why or "a KV cache group that is not to be transferred")
            if spec.block_size != self._block_tokens:
                raise LayoutError(f"a KV cache group with blocks of {spec.block_size} tokens; others have "
                                  f"{self._block_tokens}")
            names = [b.__name__ for b in type(spec).__mro__]
            self._whole |= len(groups) > 1 or not {"FullAttentionSpec", "UniformTypeKVCacheSpecs"}.intersection(names)
        latents = getattr(self._vllm_config.model_config, "use_mla", False)
        continues = getattr(self._vllm_config.scheduler_config, "enable_chunked_prefill", False)
        if latents and self._on_cpu() and not continues:
            raise LayoutError("latents (MLA) on a CPU: this vLLM computes a prompt from its beginning alone")
        sleeps = getattr(self._vllm_config.model_config, "sleep_mode_backend", "cumem")
        if self._sleeps() and sleeps != "cumem":
            raise LayoutError(f"sleep_mode_backend {sleeps}: kvtier sees a GPU's pages go and come with cumem only")
        if self._whole and not _FAILS_REQUESTS:
            raise LayoutError(f"{len(groups)} KV cache groups, or a window: this vLLM cannot hear that such a load "
                              "failed")

    @property
    def requires_kv_delivery(self) -> bool:
        """False, as a save that is dropped is only a miss later."""
        return False

    def _sleeps(self) -> bool:
        """Whether a GPU's pages may lose their memory and get other memory at the same addresses."""
        model = self._vllm_config.model_config
        return not self._on_cpu() and any(getattr(model, f"enable_{name}", False)
                                          for name in ("sleep_mode", "cumem_allocator"))

    def _on_cpu(self) -> bool:
        return getattr(self._vllm_config.device_config, "device_type", "") == "cpu"

    def _open(self, name: str, open_spaces: Any) -> Tuple[Client, Any]:
        client = Client(self._options.get("socket"), name=f"vllm {name}", timeout_ms=self._timeout_ms)
        try:
            got = open_spaces(client)
        except BaseException:
            client.close()
            raise
        return client, got

    def _refuse(self, why: str) -> None:
        self._refused = why
        logger.warning("kvtier: this model is not served, the engine runs uncached: %s", why)

    # --- worker ---

    def get_mem_pool_context(self) -> Any:
        """On a CPU: a context in which the engine allocates its KV in memory that the daemon maps, so that no copy is
        needed. None: the engine allocates as ever. It depends on how vLLM allocates (one torch.zeros() of bytes): if
        it does so in another way, or there is no such memory, libkvtier copies."""
        return self._shared_zeros() if self._on_cpu() and not self._refused and self._zero_copy else None

    @contextlib.contextmanager
    def _shared_zeros(self) -> Iterator[None]:
        zeros = torch.zeros

        def shared_zeros(*size: Any, **how: Any) -> torch.Tensor:
            wanted = (len(size) == 1 and isinstance(size[0], int) and size[0] >= _MUCH and self._shared is None and
                      set(how) == {"dtype", "device"} and how["dtype"] == torch.int8 and
                      torch.device(how["device"]).type == "cpu")
            shared = self._share(size[0]) if wanted else None
            return zeros(*size, **how) if shared is None else shared

        torch.zeros = shared_zeros
        try:
            yield
        finally:
            torch.zeros = zeros

    def _share(self, length: int) -> Optional[torch.Tensor]:
        """length bytes that the daemon can map, alive as long as a tensor shows them. None: there is no such
        memory."""
        try:
            self._shared = memory = SharedMemory(length, "kvtier-vllm")
        except OSError as error:
            logger.warning("kvtier: worker: the KV is copied, as no memory can be shared: %s", error)
            return None
        array = (ctypes.c_int8 * length).from_address(memory.address)
        weakref.finalize(array, memory.close)
        return torch.frombuffer(array, dtype=torch.int8)

    def register_kv_caches(self, kv_caches: Dict[str, torch.Tensor]) -> None:
        """kv_caches: the tensors by layer's name, [blocks, ...] or [2, blocks, ...] (K and V apart), all of one dtype
        (BF16, FP16, FP32, FP8, 8-bit integers). They are views of the engine's memory, on a GPU or not. Another layout
        is refused."""
        self._register(kv_caches, lambda: self._layouts(kv_caches))

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        """True on a GPU, unless option cross_layers says no. If all layers are alike, vLLM then allocates them in one
        tensor, where all layers of a block lie side by side."""
        return (getattr(self._vllm_config.device_config, "device_type", "") == "cuda" and self._groups == 1 and
                not self._refused and self._cross_layers)

    def register_cross_layers_kv_cache(self, kv_cache: torch.Tensor, attn_backend: Any) -> None:
        """Called instead of register_kv_caches(). kv_cache: the KV of all layers, as it lies in memory. attn_backend:
        its get_kv_cache_stride_order() says which axis is that of the layers; by default the first one is."""
        def layouts() -> List[Layout]:
            tensor = tensor_of("all layers", kv_cache)
            try:
                order = list(attn_backend.get_kv_cache_stride_order(include_num_layers_dimension=True))
            except (AttributeError, NotImplementedError, TypeError):
                order = list(range(len(tensor.shape)))
            return [layout_of_all(tensor, order, self._kv_cache_config.num_blocks, self._block_tokens, self._rope(),
                                  self._codec in PLANE_CODECS)]

        self._register(kv_cache, layouts)

    def _register(self, keep: Any, layouts_of: Callable[[], List[Layout]]) -> None:
        """keep: the tensors. layouts_of: gives the layout of each group, or raises."""
        if self._refused:
            return
        try:
            layouts = layouts_of()
            self._geometries = [self._geometry_of(layout, i) for i, layout in enumerate(layouts)]
            if self._fails_closed and not _are_exact(self._geometries):
                raise LayoutError("kv_checksum_fail_closed: no load would be proven, as only codecs 'raw' and "
                                  "'lossless' give back the values that vLLM has summed")
        except (LayoutError, KeyError, ValueError) as error:
            self._geometries = None
            self._refuse(str(error))
            return
        self._keep = keep       # the daemon's view of it ends with the space
        cuda, geometries, shared = bool(layouts[0].regions[0].cuda), self._geometries, self._shared
        if shared and any(layout.regions != [Region(shared.length, base=shared.address)] for layout in layouts):
            shared = None       # as some of the KV lies elsewhere

        def open_spaces() -> Tuple[Client, Any]:
            return self._open("worker", lambda client: [
                client.open_space(geometry, [shared.region()] if shared else layout.regions, layout.segments)
                for geometry, layout in zip(geometries, layouts)])

        rank, _, saves = self._place()
        self._worker = Worker(open_spaces, self._timeout_ms / 1000,
                              (lambda: torch.cuda.current_stream()) if cuda else (lambda: None),
                              lambda text: logger.info("kvtier: worker: %s", text), rank, saves, self._whole)
        if self._sleeps():
            self._follow_sleep()

    def _follow_sleep(self) -> None:
        """vLLM tells no connector that its pages go and come: here each call of its allocator does so."""
        from vllm.device_allocator.cumem import CuMemAllocator
        allocator, connector = CuMemAllocator.get_instance(), weakref.ref(self)

        def follow(name: str) -> None:
            inner = getattr(allocator, name, None)      # an older vLLM has no discard()

            def followed(*tags: Any, **named: Any) -> Any:
                said = next(iter((*tags, *named.values())), None)
                of, ours = connector(), name == "sleep" or said is None or "kv_cache" in said
                worker = of._worker if of and ours else None
                if worker and name != "wake_up":
                    worker.close()
                ret = inner(*tags, **named)
                if worker and name == "wake_up":
                    worker.open()
                return ret

            setattr(allocator, name, followed)

        for name in ("sleep", "discard", "wake_up"):
            follow(name)

    def _layouts(self, kv_caches: Dict[str, torch.Tensor]) -> List[Layout]:
        """The layout of each group."""
        apart = next((name for name, t in kv_caches.items() if isinstance(t, (list, tuple))), None)
        if apart is not None:
            raise LayoutError(f"{apart}: a layer with several tensors")
        tensors = {name: tensor_of(name, t) for name, t in kv_caches.items()}
        groups = [group.layer_names for group in getattr(self._kv_cache_config, "kv_cache_groups", None) or ()]
        if len(groups) < 2:
            groups = [list(tensors)]
        return [layout_of([tensors[name] for name in names if name in tensors], self._kv_cache_config.num_blocks,
                          self._block_tokens, 0 if i in self._states else self._rope(),
                          planes=self._codec in PLANE_CODECS and i not in self._states)
                for i, names in enumerate(groups)]

    def _rope(self) -> int:
        """How many values of a token's latent (MLA) must not be rounded."""
        model = self._vllm_config.model_config
        if not getattr(model, "use_mla", False):
            return 0
        return getattr(getattr(model, "hf_text_config", None), "qk_rope_head_dim", 0) or 0

    def _place(self) -> Tuple[int, int, bool]:
        """Rank and number of ranks whose KV differs, and whether this one saves it."""
        parallel = self._vllm_config.parallel_config
        same = max(1, getattr(self._kv_cache_config, "kv_tp_replicas", None) or
                   (parallel.tensor_parallel_size if getattr(self._vllm_config.model_config, "use_mla", False) else 1))
        if parallel.tensor_parallel_size % same:
            same = 1
        rank, world = parallel.rank % max(1, parallel.world_size), max(1, parallel.world_size)
        return rank // same, world // same, rank % same == 0

    def _geometry_of(self, layout: Layout, group: int) -> Geometry:
        model = self._vllm_config.model_config
        first = next(iter(layout.segments))
        own, asked = self._options.get("model"), getattr(model, "revision", None)
        revision = revision_of(getattr(model, "hf_config", None), asked)
        name = (str(own) if own else        # a user says which weights
                space_of(model.model, getattr(getattr(model, "hf_config", None), "model_type", None)) or
                at_revision(str(model.model), revision))
        extras = {"revision": asked if own else "",
                  "quantization": getattr(model, "quantization", None),
                  "overrides": overrides_of(getattr(model, "hf_overrides", None)),
                  "kv_dtype": self._vllm_config.cache_config.cache_dtype,
                  "layout": getattr(self._kv_cache_config, "kv_cache_layout", None), "runs": layout.runs,
                  "order": layout.order,
                  "group": f"{group}/{self._groups}" if self._groups > 1 else "", "states": self._states.get(group),
                  "isa": "" if layout.regions[first.region].cuda else _isa(), "own": self._options.get("extras", "")}
        text = ";".join(f"{key}={value}" for key, value in extras.items() if value)
        codec = Codec.RAW if group in self._states else self._codec
        if codec == Codec.DEFAULT and not layout.regions[first.region].cuda and layout.dtype.name == "FP32":
            codec = Codec.RAW
        rank, world, _ = self._place()
        layers = sum(segment.kind == first.kind for segment in layout.segments)
        return geometry_of(layout, named(name), named(text), self._block_tokens, layers, rank, world, codec)

    def get_handshake_metadata(self) -> Any:
        """What the scheduler has to know of this worker: a Geometry of each group. None: it serves no group."""
        return KvtierHandshake([tuple(g) for g in self._geometries] if self._geometries else None)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begins the loads of this step's metadata, and returns. On a GPU they wait for the stream's work."""
        if self._worker:
            self._worker.load(self._get_connector_metadata().loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing, as loads are over before their request is computed."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Does nothing, as wait_for_save() saves blocks with all their layers."""

    def wait_for_save(self) -> None:
        """Begins the saves of this step's metadata. Their blocks are held until build_connector_worker_meta() has named
        them."""
        if self._worker:
            meta = self._get_connector_metadata()
            # by now vLLM has loaded all adapters of the step, perhaps with other weights than the request's keys say
            others = {name for name, (number, path, weights) in meta.adapters.items()
                      if self._adapters.weights(number, path) != weights}
            self._worker.save(meta.saves, others)

    def get_finished(self, finished_req_ids: Set[str]) -> Tuple[Optional[Set[str]], Optional[Set[str]]]:
        """(None, requests whose loads are over, failed or were aborted). Each request is named once, and an empty set
        is None. It makes no system call before an op has ended."""
        return None, self._worker.received() or None if self._worker else None

    def build_connector_worker_meta(self) -> Optional[KvtierOver]:
        """The transfers that are over since the last call, and in the first call the handshake. None: there are
        none."""
        over = self._worker.over() if self._worker else []
        said = [self.get_handshake_metadata()] if self._worker and not self._said else []
        self._said |= bool(said)
        return KvtierOver(Counter(over), said) if over or said else None

    def get_transfer_results(self, finished_req_ids: Set[str]) -> Any:
        """get_finished(), and the requests that must be computed from the beginning, in other blocks: those of a model
        with several groups whose load was not whole, and those into whose blocks a daemon may yet write."""
        received = self.get_finished(finished_req_ids)[1] or set()
        failed = self._worker.failed_requests(received) if self._worker else set()
        return base.KVConnectorTransferResults(set(), received, failed)

    def get_block_ids_with_load_errors(self) -> Set[int]:
        """The block numbers that loads did not fill since the last call: all from the first bad block of a request
        on."""
        return self._worker.failed_blocks() if self._worker else set()

    def get_kv_connector_stats(self) -> Optional[KvtierStats]:
        """What vllm_core.COUNTS (blocks, ops, seconds) grew by since the last call. None: they are the same."""
        if not self._worker or self._worker.counts == self._counted:
            return None
        counts, before, self._counted = self._worker.counts, self._counted, dict(self._worker.counts)
        return KvtierStats({name: n - before.get(name, 0) for name, n in counts.items()})

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[Dict[str, Any]] = None) -> KvtierStats:
        """The statistics that a worker sent as data."""
        return KvtierStats(dict(data or {}))

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: List[str],
                           per_engine_labelvalues: Dict[int, List[object]]) -> KvtierMetrics:
        """Counters for Prometheus: vllm:kvtier_*."""
        return KvtierMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # --- scheduler ---

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Called with vLLM's KVCacheManager before any other method of the scheduler. vLLM resets its prefix cache only
        while no block is in use. A reset gives no block to anybody, so those of saves that are under way in any of the
        ranks need not be waited for."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._pool, inner = kv_cache_manager.block_pool, kv_cache_manager.reset_prefix_cache
        kv_cache_manager.reset_prefix_cache = lambda: (self._scheduler.without_holds(inner) if self._scheduler else
                                                       inner())

    def _hold(self, blocks: List[int]) -> None:
        self._pool.touch([self._pool.blocks[block] for block in blocks])

    def _give_back(self, blocks: List[int]) -> None:
        self._pool.free_blocks([self._pool.blocks[block] for block in reversed(blocks)])    # the end is evicted first

    def has_pending_push_work(self) -> bool:
        """Whether vLLM should make steps without a request, so that blocks which were saved become free and known."""
        return bool(self._scheduler and (self._scheduler.busy or self._events.busy))

    def set_xfer_handshake_metadata(self, metadata: Dict[Any, Any]) -> None:
        """metadata: what the workers' get_handshake_metadata() gave, by any numbers. If a rank is missing, the engine
        runs uncached."""
        ranks: Dict[int, List[Geometry]] = {}
        for m in metadata.values():
            if self._refused or not getattr(m, "geometries", None):
                return
            geometries = [Geometry(*g) for g in m.geometries]
            ranks[geometries[0].rank] = geometries
        if self._pool is None:
            self._refuse("this vLLM does not let a connector hold blocks")
            return
        if sorted(ranks) != list(range(len(ranks))):
            self._refuse(f"workers with the ranks {sorted(ranks)}: each one is needed")
            return
        self._exact = all(_are_exact(geometries) for geometries in ranks.values())

        def open_spaces() -> Tuple[Client, Any]:
            return self._open("scheduler", lambda client: [[client.open_space(g) for g in ranks[rank]]
                                                           for rank in sorted(ranks)])

        self._scheduler = Scheduler(self._block_tokens, open_spaces, self._hold, self._give_back,
                                    lambda text: logger.info("kvtier: scheduler: %s", text), self._groups,
                                    len(metadata), self._events.planned,
                                    self._prefetch_ms / 1000, self._timeout_ms / 1000, self._states)

    set_xfer_handshake_metadata_pp_aware = set_xfer_handshake_metadata      # each rank says itself which one it is

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Tuple[Optional[int], bool]:
        """(how many tokens kvtierd has behind the first num_computed_tokens, a multiple of the block size; whether
        there are any, as they are always loaded asynchronously). These may be all tokens of the request. It reads
        shared memory, and makes no plan. (None, False): Redis is being asked for what this node lacks, and vLLM asks
        again in its next step."""
        if not self._scheduler or not is_named(request):
            return 0, False
        self._add(request)
        if not self._scheduler.knows(request.request_id):
            return 0, False
        # If the block of the last token is loaded, vLLM computes this token once more, as the next one comes from its
        # logits. It may need a block that vLLM then sees in front of a window. To load that block alone saves no step.
        alone = 0 < num_computed_tokens == request.num_tokens - self._block_tokens
        n = self._scheduler.matched(request.request_id, num_computed_tokens,
                                    request.num_tokens - (self._whole or alone))
        return n, bool(n)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> Dict[Any, int]:
        """The tokens of the last match by CacheHitSource. All count for the place of the last block."""
        if not num_external_tokens or not self._scheduler:
            return {}
        tier = self._scheduler.tier(request.request_id)
        source = (CacheHitSource.DEVICE if tier & Tier.GPU else CacheHitSource.HOST if tier & Tier.HOST else
                  CacheHitSource.DISK if tier & Tier.NVME else CacheHitSource.EXTERNAL_UNSPECIFIED)
        return {source: num_external_tokens}

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plans the load of num_external_tokens tokens into blocks (KVCacheBlocks). 0: no block is loaded."""
        if self._scheduler and num_external_tokens > 0:
            self._scheduler.allocated(request.request_id, blocks.get_block_ids(), num_external_tokens)

    def kv_checksum_carrier(self, request: Any, receiving: bool = False) -> Any:
        """Says how vLLM's checksums of a request's KV reach the request that loads it: in the kv_transfer_params of the
        answer, which the client hands on. None: this request has no checksums, because its blocks are not kept, its
        space may not give back every bit, or they are not asked for."""
        if _CARRIER is None or not self._exact or not self._scheduler or not self._scheduler.knows(request.request_id):
            return None
        if receiving:
            return _CARRIER if self._fails_closed or "kv_checksums" in _parameters(request) else None
        return _CARRIER if getattr(self._kv_transfer_config, "enable_kv_checksum", False) else None

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """The loads of this step, and the saves of the blocks that are full after it, and of the states that vLLM
        offers, as it keeps them itself."""
        meta = KvtierMetadata()
        if not self._scheduler:
            return meta
        meta.loads = self._scheduler.take_loads()
        self._scheduler.preempted(getattr(scheduler_output, "preempted_req_ids", None) or ())
        scheduled = scheduler_output.num_scheduled_tokens
        for new in scheduler_output.scheduled_new_reqs:
            if self._scheduler.knows(new.req_id):
                self._scheduler.step(new.req_id, new.num_computed_tokens, scheduled[new.req_id], new.block_ids, True,
                                     meta.saves)
        cached = scheduler_output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            if self._scheduler.knows(name):
                self._scheduler.step(name, cached.num_computed_tokens[i], scheduled[name], cached.new_block_ids[i],
                                     name in cached.resumed_req_ids, meta.saves)
        state = getattr(scheduler_output, "kv_connector_block_state", None)
        for name, states in (state.boundary_state_offloads if state else {}).items():
            if self._scheduler.knows(name):
                self._scheduler.offered(name, states, meta.saves)
        saved = {transfer.request for transfer in meta.saves}
        meta.adapters = {name: adapter for name, adapter in self._adapter_of.items() if name in saved}
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        """connector_output: the KVConnectorOutput of all workers together."""
        over = getattr(connector_output, "kv_connector_worker_meta", None)
        if over and over.handshakes and not self._scheduler:
            self.set_xfer_handshake_metadata(dict(enumerate(over.handshakes)))
        if self._scheduler:
            self._scheduler.over(over.numbers if over else {})
            self._scheduler.loaded(connector_output.finished_recving or (), connector_output.invalid_block_ids or (),
                                   getattr(connector_output, "failed_recving", None) or ())

    def request_finished(self, request: Any, block_ids: List[int]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        """(False, as blocks that are being saved are held apart from their request; the answer's kv_transfer_params: a
        dict that vLLM's checksums are added to, and the tokens that another engine finds in kvtierd, if the request
        goes on there, or None)."""
        parameters: Optional[Dict[str, Any]] = None if self.kv_checksum_carrier(request) is None else {}
        if self._scheduler and _parameters(request).get("do_remote_decode"):
            parameters = {**(parameters or {}), "kvtier_tokens": self._scheduler.kept(request.request_id)}
        adapter = self._adapter_of.pop(request.request_id, None)
        if adapter and request.num_output_tokens:
            self._in_use.add(adapter[:2])
        self._events.forget(request.request_id)
        if self._scheduler:
            self._scheduler.finished(request.request_id)
        return False, parameters

    def request_finished_all_groups(self, request: Any, block_ids: Tuple[List[int], ...]) -> \
            Tuple[bool, Optional[Dict[str, Any]]]:
        """request_finished() for a model with several groups."""
        return self.request_finished(request, [])

    def take_events(self) -> Iterable[Any]:
        """The events BlockStored and BlockRemoved since the last call; none without --kv-events-config."""
        return self._events.take()

    def reset_cache(self) -> Optional[bool]:
        """Called when vLLM has other weights, or wants to compute all again: no block that was kept until now is used
        any more. True: done."""
        if self._scheduler:
            self._scheduler.reset()
            self._events.reset()
        return True

    def _weights_of(self, request: Any) -> Optional[str]:
        """The name that the request gives to the engine's weights. None: it has none, or may give none: such a request
        is served all the same, as an answer without a hit is right, and a client cannot fill the log."""
        said = _parameters(request).get("weights")
        if said is None:
            return None
        if not self._requests_name_weights:
            if not self._said_unbelieved:
                _warn("kv_transfer_params: weights is left out in all requests, as option requests_name_weights is "
                      "false")
            self._said_unbelieved = True
            return None
        if said and isinstance(said, str):
            return said
        _warn(f"kv_transfer_params: weights is {said!r}, must be a text; it is left out")
        return None

    def _add(self, request: Any) -> None:
        """Adds a request to the plan, unless its adapter's weights are not known."""
        if self._scheduler.knows(request.request_id):
            return
        lora = getattr(request, "lora_request", None)
        limits = limits_of(_parameters(request), getattr(self._kv_transfer_config, "kv_role", None), _warn)
        adapters: List[Any] = [None]
        if lora:
            weights = self._adapters.weights(lora.lora_int_id, lora.lora_path)
            if weights is None:
                return
            adapters = self._adapters.names(lora.lora_int_id, lora.lora_name, lora.lora_path, weights)
            self._adapter_of[request.request_id] = lora.lora_int_id, lora.lora_path, weights
            # until vLLM has loaded an adapter of a hub, the next download may bring another commit
            if not is_local(lora.lora_path) and (lora.lora_int_id, lora.lora_path) not in self._in_use:
                limits = limits._replace(load=0)
        weights = self._weights_of(request)
        models: List[Any] = [weights] if weights else self._weights.names() if self._weights else [None]
        # by the best names, and by those that were known first
        images = [(f.identifier, f.mm_position.offset, f.mm_position.length)
                  for f in getattr(request, "mm_features", None) or ()]
        # a decoder behind an encoder looks at all of its images from the first token on
        whole = images if getattr(self._vllm_config.model_config, "is_encoder_decoder", False) else None
        root, older = [root_of({"weights" if weights else "model": models[i], "lora": adapters[i],
                                "salt": getattr(request, "cache_salt", None), "images": whole}) for i in (0, -1)]
        self._scheduler.add(request.request_id, functools.partial(getattr, request, "all_token_ids"), root,
                            hints_of(getattr(request, "kv_hints", None), _warn), limits,
                            older if older != root else None, {} if whole else marks_of(images, self._block_tokens),
                            bool(weights))
        self._events.add(request)

    def shutdown(self) -> None:
        """Waits for the loads and saves that are under way, for about timeout_ms at most, and closes the connection.
        Later calls find no block."""
        for part in (self._worker, self._scheduler):
            if part:
                part.close()
        self._worker = self._scheduler = None
        self._events.close()


def _are_exact(geometries: Iterable[Geometry]) -> bool:
    """Whether spaces of these geometries keep every bit. If the daemon chooses the codec it is False, as the choice is
    not known here."""
    return all(geometry.codec in (Codec.RAW, Codec.LOSSLESS) for geometry in geometries)


