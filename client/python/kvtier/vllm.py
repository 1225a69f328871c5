# SPDX-License-Identifier: Apache-2.0
"""kvtier.vllm - a vLLM KV connector: prefixes come from and go to kvtierd.

    python -m vllm.entrypoints.openai.api_server --model M --kv-transfer-config '{
        "kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute"}'

`kv_connector_extra_config` may have: socket (path of the daemon's socket), codec ("fp8", "raw"; default the daemon's
for the type), timeout_ms (of a load or save, 2000), model (a name instead of the engine's), extras (what else changes
the KV).

Loads are asynchronous: the engine goes on with other requests, and a request begins when its blocks are there. A block
that did not come is computed. Saves are read before the engine frees a block. Blocks of generated tokens are kept as
those of prompts. What is asked of a daemon that is away is a miss; it is looked for again every 5 s.

Which requests share blocks: equal model and revision, KV type, block size, tensor-parallel rank, order of values in a
block, ISA of a CPU; equal tokens, adapter, cache_salt and images. The layout is taken from the tensors that the engine
registers; one that is not known is refused in one line, and the engine runs uncached. So does a model that needs more
than one KV cache group (sliding windows beside full attention, state-space layers).
"""
from __future__ import annotations

import functools
import platform
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorHandshakeMetadata,
                                                               KVConnectorMetadata, KVConnectorRole)
from vllm.logger import init_logger

from . import Client, Codec, Geometry, Tier
from .block_cache import named
from .vllm_core import (Layout, LayoutError, Scheduler, Tensor, Transfer, Worker, files_of, geometry_of, layout_of,
                        root_of)

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:         # an older vLLM asks for no source
    CacheHitSource = None

__all__ = ["KvtierConnector"]

logger = init_logger("vllm.kvtier")

_CODECS = {"": Codec.DEFAULT, "raw": Codec.RAW, "fp8": Codec.FP8}


@dataclass
class KvtierMetadata(KVConnectorMetadata):
    """Of one step of the engine."""
    loads: List[Transfer] = field(default_factory=list)
    saves: List[Transfer] = field(default_factory=list)
    preempted: Set[str] = field(default_factory=set)


@dataclass
class KvtierHandshake(KVConnectorHandshakeMetadata):
    """A worker tells the scheduler what its blocks are. None: it serves none."""
    geometry: Optional[Tuple] = None


def _isa() -> str:
    """What the packing of a CPU's KV depends on."""
    capability = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", lambda: "?")()
    return f"{platform.machine()}/{capability}"


class KvtierConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._block_tokens = vllm_config.cache_config.block_size
        self._scheduler: Optional[Scheduler] = None
        self._worker: Optional[Worker] = None
        self._geometry: Optional[Geometry] = None       # the worker's; None: it serves none
        self._clients: List[Client] = []
        groups = getattr(kv_cache_config, "kv_cache_groups", None)
        self._refused = ""
        if groups is not None and len(groups) != 1:
            self._refuse(f"{len(groups)} KV cache groups: only models with one are served")

    @property
    def requires_kv_delivery(self) -> bool:
        return False        # a save that is dropped is a miss later

    def _option(self, name: str, default: Any) -> Any:
        return self._kv_transfer_config.get_from_extra_config(name, default)

    def _timeout_ms(self) -> int:
        return int(self._option("timeout_ms", 2000))

    def _client(self, name: str) -> Client:
        client = Client(self._option("socket", None), name=f"vllm {name}", timeout_ms=self._timeout_ms())
        self._clients.append(client)
        return client

    def _refuse(self, why: str) -> None:
        self._refused = why
        logger.warning("kvtier: this model is not served, the engine runs uncached: %s", why)

    # --- worker ---

    def register_kv_caches(self, kv_caches: Dict[str, torch.Tensor]) -> None:
        if self._refused:
            return
        try:
            layout = layout_of([_tensor(name, t) for name, t in kv_caches.items()], self._kv_cache_config.num_blocks)
            self._geometry = self._geometry_of(layout, len(kv_caches))
        except (LayoutError, KeyError) as error:
            self._refuse(str(error))
            return
        self._keep = kv_caches      # the daemon's view of it ends with the space
        cuda = bool(layout.regions[0].cuda)

        def open_space():
            client = self._client("worker")
            try:
                return client, client.open_space(self._geometry, layout.regions, layout.segments)
            except BaseException:
                client.close()
                raise

        self._worker = Worker(open_space, self._timeout_ms() / 1000,
                              (lambda: torch.cuda.current_stream()) if cuda else (lambda: None),
                              lambda text: logger.info("kvtier: worker: %s", text))

    def _geometry_of(self, layout: Layout, layers: int) -> Geometry:
        model, parallel = self._vllm_config.model_config, self._vllm_config.parallel_config
        first = next(iter(layout.segments))
        own = self._option("model", None)       # then its user says which weights it names
        extras = {"revision": getattr(model, "revision", None), "files": "" if own else files_of(model.model),
                  "quantization": getattr(model, "quantization", None),
                  "kv_dtype": self._vllm_config.cache_config.cache_dtype,
                  "layout": getattr(self._kv_cache_config, "kv_cache_layout", None), "runs": layout.runs,
                  "isa": "" if layout.regions[first.region].cuda else _isa(), "own": self._option("extras", "")}
        text = ";".join(f"{key}={value}" for key, value in extras.items() if value)
        codec = _CODECS[self._option("codec", "")]
        if codec == Codec.DEFAULT and not layout.regions[first.region].cuda and layout.dtype.name == "FP32":
            codec = Codec.RAW
        return geometry_of(layout, named(str(own or model.model)), named(text), self._block_tokens, layers,
                           parallel.rank % parallel.tensor_parallel_size if parallel.tensor_parallel_size else 0,
                           parallel.tensor_parallel_size, codec)

    def get_handshake_metadata(self) -> Optional[KVConnectorHandshakeMetadata]:
        return KvtierHandshake(tuple(self._geometry) if self._geometry else None)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker:
            self._worker.load(self._get_connector_metadata().loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        return              # loads are over before their request is computed

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        return              # whole blocks, in wait_for_save()

    def wait_for_save(self) -> None:
        if self._worker:
            self._worker.save(self._get_connector_metadata().saves)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        preempted = getattr(kv_connector_metadata, "preempted", None)
        if self._worker and preempted:
            self._worker.wait(preempted)        # their blocks are about to be others'

    def get_finished(self, finished_req_ids: Set[str]) -> Tuple[Optional[Set[str]], Optional[Set[str]]]:
        if not self._worker:
            return None, None
        sent, received = self._worker.finished(finished_req_ids)
        return sent or None, received or None

    def get_block_ids_with_load_errors(self) -> Set[int]:
        return self._worker.failed_blocks() if self._worker else set()

    # --- scheduler ---

    def set_xfer_handshake_metadata(self, metadata: Dict[int, KVConnectorHandshakeMetadata]) -> None:
        geometries = [Geometry(*m.geometry) for _, m in sorted(metadata.items()) if getattr(m, "geometry", None)]
        if self._refused or len(geometries) != len(metadata):
            return

        def open_spaces():
            client = self._client("scheduler")
            try:
                return [client.open_space(geometry) for geometry in geometries]
            except BaseException:
                client.close()
                raise

        self._scheduler = Scheduler(self._block_tokens, open_spaces,
                                    lambda text: logger.info("kvtier: scheduler: %s", text))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Tuple[Optional[int], bool]:
        if not self._scheduler or request.prompt_token_ids is None:
            return 0, False
        self._add(request)
        # a token is left to compute: its logits are the next token's
        n = self._scheduler.matched(request.request_id, num_computed_tokens, request.num_tokens - 1)
        return n, n > 0

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> Dict[Any, int]:
        if not num_external_tokens or not self._scheduler:
            return {}
        tier = self._scheduler.tier(request.request_id)
        source = (CacheHitSource.DEVICE if tier & Tier.GPU else CacheHitSource.HOST if tier & Tier.HOST else
                  CacheHitSource.DISK if tier & Tier.NVME else CacheHitSource.EXTERNAL_UNSPECIFIED)
        return {source: num_external_tokens}

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._scheduler and num_external_tokens > 0:
            self._scheduler.allocated(request.request_id, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        meta = KvtierMetadata()
        if not self._scheduler:
            return meta
        meta.loads = self._scheduler.take_loads()
        meta.preempted = set(getattr(scheduler_output, "preempted_req_ids", None) or ())
        scheduled = scheduler_output.num_scheduled_tokens
        for new in scheduler_output.scheduled_new_reqs:
            if self._scheduler.knows(new.req_id):
                self._scheduler.step(new.req_id, new.num_computed_tokens, scheduled[new.req_id], new.block_ids[0], True,
                                     meta.saves)
        cached = scheduler_output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            if self._scheduler.knows(name):
                pages = cached.new_block_ids[i]
                self._scheduler.step(name, cached.num_computed_tokens[i], scheduled[name], pages[0] if pages else (),
                                     name in cached.resumed_req_ids, meta.saves)
        return meta

    def request_finished(self, request: Any, block_ids: List[int]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        return bool(self._scheduler and self._scheduler.finished(request.request_id)), None

    def _add(self, request: Any) -> None:
        lora = getattr(request, "lora_request", None)
        root = root_of({"lora": (lora.lora_name, lora.lora_path, files_of(lora.lora_path)) if lora else None,
                        "salt": getattr(request, "cache_salt", None),
                        "images": [(f.identifier, f.mm_position.offset, f.mm_position.length)
                                   for f in getattr(request, "mm_features", None) or ()]})
        self._scheduler.add(request.request_id, functools.partial(getattr, request, "all_token_ids"), root)

    def shutdown(self) -> None:
        if self._worker:
            self._worker.wait()
        for client in self._clients:
            client.close()
        self._clients.clear()


def _tensor(name: str, t: torch.Tensor) -> Tensor:
    storage = t.untyped_storage()
    return Tensor(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), tuple(t.stride()),
                  t.data_ptr() - storage.data_ptr(), storage.data_ptr(), storage.nbytes(), t.is_cuda)
