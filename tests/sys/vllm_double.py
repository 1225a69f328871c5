# SPDX-License-Identifier: Apache-2.0
"""vllm_double.py - the classes of vLLM 0.32.0 that kvtier.vllm builds on, and an engine that calls a connector as vLLM
does: scheduler, worker and paged KV in one process, without torch. The real vLLM: make test-engines.
"""
import abc
import contextlib
import enum
import itertools
import logging
import random
import time
import zlib
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch_double
from torch_double import module

PATIENT_S = 60


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata(abc.ABC):
    pass


class KVConnectorHandshakeMetadata(abc.ABC):
    pass


class KVConnectorWorkerMetadata(abc.ABC):
    @abc.abstractmethod
    def aggregate(self, other): ...


@dataclass
class KVConnectorTransferResults:
    """A request whose load failed is in both of the last two."""
    finished_sending: set = field(default_factory=set)
    finished_recving: set = field(default_factory=set)
    failed_recving: set = field(default_factory=set)


class SupportsHMA(abc.ABC):
    @abc.abstractmethod
    def request_finished_all_groups(self, request, block_ids):
        raise NotImplementedError


class KVConnectorBase_V1(abc.ABC):
    def __init__(self, vllm_config, role, kv_cache_config) -> None:
        self._connector_metadata = None
        self._vllm_config, self._role, self._kv_cache_config = vllm_config, role, kv_cache_config
        self._kv_transfer_config = vllm_config.kv_transfer_config

    def bind_kv_cache_manager(self, kv_cache_manager) -> None:
        self.manager = kv_cache_manager

    def bind_connector_metadata(self, metadata) -> None:
        self._connector_metadata = metadata

    def clear_connector_metadata(self) -> None:
        self._connector_metadata = None

    def _get_connector_metadata(self):
        assert self._connector_metadata is not None, "vLLM binds metadata in a step alone"
        return self._connector_metadata

    @abc.abstractmethod
    def start_load_kv(self, forward_context, **kwargs): ...

    @abc.abstractmethod
    def wait_for_layer_load(self, layer_name): ...

    @abc.abstractmethod
    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs): ...

    @abc.abstractmethod
    def wait_for_save(self): ...

    @abc.abstractmethod
    def get_num_new_matched_tokens(self, request, num_computed_tokens): ...

    @abc.abstractmethod
    def update_state_after_alloc(self, request, blocks, num_external_tokens): ...

    @abc.abstractmethod
    def build_connector_meta(self, scheduler_output): ...


class KVConnectorFactory:
    registered: dict = {}

    @classmethod
    def register_connector(cls, name: str, module_path: str, class_name: str) -> None:
        if name in cls.registered:
            raise ValueError(f"Connector '{name}' is already registered.")
        cls.registered[name] = module_path, class_name


@dataclass
class KVConnectorStats:
    data: dict = field(default_factory=dict)


class KVConnectorPromMetrics:
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues) -> None:
        self.per_engine_labelvalues = per_engine_labelvalues


class Event:
    __struct_fields__ = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
                         "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
                         "locality")

    def __init__(self, **said) -> None:
        self.__dict__.update(said)


class BlockStored(Event):
    pass


class BlockRemoved(Event):
    __struct_fields__ = ("block_hashes", "medium", "group_idx", "locality")


class CacheHitSource(enum.Enum):
    DEVICE = 1
    HOST = 2
    DISK = 3
    EXTERNAL_UNSPECIFIED = 4


class KVChecksumCarrier(enum.Enum):
    """Of a vLLM newer than 0.32.0."""
    KV_TRANSFER_PARAMS = 1
    CONNECTOR = 2


class FullAttentionSpec:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size


class SlidingWindowSpec(FullAttentionSpec):
    sliding_window = 16


class MambaSpec:
    mamba_cache_mode, shapes, dtypes = "align", ((3, 8), (2, 4)), ("float32", "float32")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size


def extra_keys_of(request, first: int, end: int, image: int) -> tuple:
    """What the hash of a block has beside its tokens, with its source: here the salt, in the first block alone."""
    salt = getattr(request, "cache_salt", None)
    return ((("cache_salt", salt),) if salt and first == 0 else None), image


def install() -> None:
    torch_double.install()
    above = "vllm.distributed.kv_transfer.kv_connector.v1"
    base = dict(KVConnectorBase_V1=KVConnectorBase_V1, KVConnectorMetadata=KVConnectorMetadata,
                KVConnectorRole=KVConnectorRole, KVConnectorHandshakeMetadata=KVConnectorHandshakeMetadata,
                KVConnectorWorkerMetadata=KVConnectorWorkerMetadata, SupportsHMA=SupportsHMA,
                KVConnectorTransferResults=KVConnectorTransferResults)
    module("vllm.v1.metrics.cache_hit_source", CacheHitSource=CacheHitSource)
    module(f"{above}.base", **base)
    module(f"{above}.metrics", KVConnectorStats=KVConnectorStats, KVConnectorPromMetrics=KVConnectorPromMetrics)
    module("vllm.distributed.kv_events", BlockStored=BlockStored, BlockRemoved=BlockRemoved, MEDIUM_CPU="CPU")
    module("vllm.v1.core.kv_cache_utils", maybe_convert_block_hash=lambda hash_bytes: hash_bytes,
           generate_block_hash_extra_keys=extra_keys_of,
           to_event_extra_keys=lambda keys: [k and tuple(value for _, value in k) for k in keys])
    module("vllm.v1.kv_cache_interface", get_kv_cache_spec_kind=lambda spec: SimpleNamespace(value=type(spec).__name__),
           get_kv_cache_spec_sliding_window=lambda spec: getattr(spec, "sliding_window", None))
    module("vllm.distributed.kv_transfer.kv_checksum.checksum", KVChecksumCarrier=KVChecksumCarrier)
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.distributed.kv_transfer.kv_connector.factory", KVConnectorFactory=KVConnectorFactory)
    module("prometheus_client", Counter=type("Counter", (), {}))


class Extra:
    """vLLM's KVTransferConfig, as far as a connector asks it. more: fields of it."""

    def __init__(self, extra: dict, more=()) -> None:
        self.kv_connector_extra_config = extra
        self.__dict__.update(more)


class Pool:
    """vLLM's BlockPool. A block is free when neither its request nor the connector uses it. emptied: told of blocks
    that others may use."""

    def __init__(self, blocks: int, emptied) -> None:
        self.blocks = [SimpleNamespace(block_id=i, ref_cnt=0) for i in range(blocks)]
        self.free, self._left, self._emptied = list(range(1, blocks)), [], emptied

    def take(self, n: int) -> list:
        self.others()
        taken = self.free[:n]
        self.touch([self.blocks[block] for block in taken])
        return taken

    def touch(self, blocks) -> None:
        for block in blocks:
            if not block.ref_cnt:
                self.free.remove(block.block_id)
            block.ref_cnt += 1

    def others(self) -> None:
        """From now on others may use what is free."""
        left, self._left = self._left, []
        for block in left:
            if not self.blocks[block].ref_cnt:
                self._emptied(block)

    def free_blocks(self, blocks) -> None:
        for block in blocks:
            block.ref_cnt -= 1
            assert block.ref_cnt >= 0, f"block {block.block_id} is given back twice"
            if not block.ref_cnt:
                self._left.append(block.block_id)
                self.free.append(block.block_id)

    def reset_prefix_cache(self) -> bool:
        return len(self.free) == len(self.blocks) - 1


class Backend:
    """An attention backend of which vLLM asks where the axis of layers lies. order: of the axes in memory."""

    def __init__(self, order) -> None:
        self._order = order

    def get_kv_cache_stride_order(self, include_num_layers_dimension: bool = False):
        assert include_num_layers_dimension
        if self._order is None:
            raise NotImplementedError
        return self._order


# of [layers, blocks, heads, tokens, K and V of a head], or of [layers, 2, blocks, tokens, heads, values of a head]
TOGETHER = {"NHD": (1, 0, 3, 2, 4), "HND": (1, 2, 0, 3, 4), "layers": None, "KV": (2, 0, 1, 3, 4, 5)}


def hybrid() -> dict:
    """What Engine() is told: a group of states beside one of blocks."""
    kinds = iter([MambaSpec, FullAttentionSpec])
    return {"groups": 2, "spec": lambda tokens: next(kinds)(tokens)}


class Engine:
    """One rank. Its KV of a block depends on all tokens up to the block's end. Every call of the connector is one that
    vLLM makes, in vLLM's order; what a load brought is compared with what the engine would have computed.
    groups: KV cache groups, each with its own pages of the same tensors. layout: of a layer's tensor, "blocks", "kv"
    ([2, blocks, ...]) or "latents" (a row for each token); with one of TOGETHER, as on a GPU, all layers are one tensor
    where the connector prefers that.
    model: more of vLLM's ModelConfig. transfer: more of its KVTransferConfig. parameters: of the last answer, the
    kv_transfer_params. handshake: False, as beside another connector whose handshake vLLM takes. compared: blocks of
    the last load that were compared with the sums that its request brought, and those of them that are others; None:
    nothing was compared. events: of the connector."""
    BLOCKS, TOKENS, HEADS, DIM, LAYERS = 320, 8, 2, 16, 4
    DEVICE = "cpu"

    def __init__(self, connector_class, extra: dict, groups: int = 1, layout: str = "blocks", events: bool = False,
                 spec=FullAttentionSpec, dtype=None, handshake: bool = True, model=(), transfer=()) -> None:
        self.dtype, self.layout, self.groups = dtype or torch_double.float32, layout, groups
        self.names = [f"layer.{i}" for i in range(self.LAYERS)]
        self.numbers, self.results = itertools.count(), []
        self.transfer = Extra({**extra}, {"engine_id": f"engine {id(self)}", **dict(transfer)})
        self.pool = Pool(self.BLOCKS, self._empty)
        self.manager = SimpleNamespace(block_pool=self.pool, reset_prefix_cache=self.pool.reset_prefix_cache)
        config = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=self.TOKENS, cache_dtype="auto"),
            model_config=SimpleNamespace(**{**dict(model="tiny", revision=None, quantization=None, hf_overrides=None),
                                            **dict(model)}),
            parallel_config=SimpleNamespace(tensor_parallel_size=1, rank=0, world_size=1),
            scheduler_config=SimpleNamespace(enable_chunked_prefill=True),
            device_config=SimpleNamespace(device_type="cuda" if layout in TOGETHER else self.DEVICE),
            kv_transfer_config=self.transfer,
            kv_events_config=SimpleNamespace(enable_kv_cache_events=True) if events else None)
        each = self.LAYERS // groups
        kv = SimpleNamespace(num_blocks=self.BLOCKS, kv_cache_groups=[
            SimpleNamespace(kv_cache_spec=spec(self.TOKENS), layer_names=self.names[i * each:i * each + each])
            for i in range(groups)])
        self.scheduler = connector_class(config, KVConnectorRole.SCHEDULER, kv)
        self.worker = connector_class(config, KVConnectorRole.WORKER, kv)
        self.scheduler.bind_kv_cache_manager(self.manager)
        self.together = layout in TOGETHER and self.worker.prefer_cross_layer_blocks
        self.tensors = self._allocate()
        if self.together:
            self.worker.register_cross_layers_kv_cache(self.tensors[0], Backend(TOGETHER[layout]))
        else:
            self.worker.register_kv_caches(dict(zip(self.names, self.tensors)))
        if handshake:
            self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): self.worker.get_handshake_metadata()})
        self.parameters, self.compared, self.events = None, None, []

    def connected(self) -> "Engine":
        """Waits until both roles have found their daemon, or not: threads connect."""
        end = time.monotonic() + PATIENT_S
        for part in filter(None, (self.worker._worker, self.scheduler._scheduler)):
            while not part._line.get() and not part._line.why:
                assert time.monotonic() < end, "a thread connects for ever"
                time.sleep(0.001)
        return self

    def _allocate(self) -> list:
        """A view of the same memory for each layer, or of all layers."""
        values = self.HEADS * self.TOKENS * 2 * self.DIM
        raw = self._raw(self.LAYERS * self.BLOCKS * values * self.dtype.size)
        if self.together:
            axes = ((self.LAYERS, 2, self.BLOCKS, self.TOKENS, self.HEADS, self.DIM) if self.layout == "KV" else
                    (self.LAYERS, self.BLOCKS, self.HEADS, self.TOKENS, 2 * self.DIM))
            return [raw.view(self.dtype, [axes[i] for i in TOGETHER[self.layout] or range(len(axes))])]
        shape = {"kv": (2, self.BLOCKS, self.HEADS, self.TOKENS, self.DIM),
                 "latents": (self.BLOCKS, self.TOKENS, 2 * self.HEADS * self.DIM)}.get(
                     self.layout, (self.BLOCKS, self.HEADS, self.TOKENS, 2 * self.DIM))
        return [raw.view(self.dtype, shape, offset=i * self.BLOCKS * values) for i in range(self.LAYERS)]

    def _raw(self, size: int):
        """As vLLM on a CPU: one torch.zeros() of bytes."""
        import torch
        with self.worker.get_mem_pool_context() or contextlib.nullcontext():
            return torch.zeros(size, dtype=torch.int8, device="cpu")

    # --- KV ---

    def _rows(self, page: int, group: int) -> list:
        """The bytes of a page, in each tensor of the group."""
        if self.together:
            n = 2 * self.HEADS * self.TOKENS * self.DIM
            if TOGETHER[self.layout] is None:
                return [self.tensors[0].bytes_at((i * self.BLOCKS + page) * n, n) for i in range(self.LAYERS)]
            return [self.tensors[0].bytes_at(page * self.LAYERS * n, self.LAYERS * n)]
        each, n = self.LAYERS // self.groups, self.HEADS * self.TOKENS * self.DIM
        ret = []
        for tensor in self.tensors[group * each:group * each + each]:
            if self.layout == "kv":
                ret += [tensor.bytes_at((half * self.BLOCKS + page) * n, n) for half in range(2)]
            else:
                ret.append(tensor.bytes_at(2 * page * n, 2 * n))
        return ret

    def _computed(self, tokens, block: int, group: int, row: int, size: int) -> bytes:
        seed = repr((group, row, list(tokens[:(block + 1) * self.TOKENS])))
        return random.Random(seed).randbytes(size)

    def put(self, tokens, block: int, group: int, page: int) -> None:
        for i, row in enumerate(self._rows(page, group)):
            row[:] = self._computed(tokens, block, group, i, len(row))

    def holds(self, tokens, block: int, group: int, page: int) -> bool:
        return all(row == self._computed(tokens, block, group, i, len(row))
                   for i, row in enumerate(self._rows(page, group)))

    def sums(self, pages) -> list:
        """Of each block, over all groups."""
        return [sum(zlib.crc32(row) for group, page in enumerate(block) for row in self._rows(page, group))
                for block in zip(*pages)]

    def proven(self, request, pages, loaded: int) -> bool:
        """Compares a load with the sums that its request brought, as vLLM does: of all blocks in common. Whether the
        request goes on with the load."""
        carrier, self.compared = self.scheduler.kv_checksum_carrier(request, receiving=True), None
        if carrier is None or not loaded:
            return True
        assert carrier == KVChecksumCarrier.KV_TRANSFER_PARAMS
        brought = (request.kv_transfer_params or {}).get("kv_checksums", [])
        pairs = list(zip(brought, self.sums([own[:loaded] for own in pages])))
        others = [i for i, (a, b) in enumerate(pairs) if a != b]
        self.compared = (len(pairs), others)
        return bool(pairs and not others) or not getattr(self.transfer, "kv_checksum_fail_closed", False)

    def take(self, n: int) -> list:
        return self.pool.take(n)

    def give_back(self, pages) -> None:
        """Their request does not need them any more."""
        for own in pages:
            self.pool.free_blocks([self.pool.blocks[page] for page in own])

    def _empty(self, page: int) -> None:
        """It is other requests' now."""
        for group in range(self.groups):
            for row in self._rows(page, group):
                row[:] = bytes(len(row))

    # --- steps ---

    def request(self, tokens, **more) -> SimpleNamespace:
        tokens = list(tokens)
        return SimpleNamespace(**{**dict(
            request_id=f"r{next(self.numbers)}", prompt_token_ids=tokens, prompt_embeds=None, all_token_ids=tokens,
            num_tokens=len(tokens), lora_request=None, cache_salt=None, mm_features=[], kv_hints=None,
            kv_transfer_params=None, num_output_tokens=0,
            block_hashes=[bytes([i]) * 4 for i in range(len(tokens) // self.TOKENS)]), **more})

    def step(self, new=(), cached=(), preempted=(), ended=(), forward=lambda: None, states=()):
        """One step of the engine: the scheduler's plan, the worker's part around the forward, and its word back.
        new: (request, computed, scheduled, pages); cached: (name, computed, scheduled, new pages or None). states: that
        are offered, (group, page, tokens) by request."""
        output = SimpleNamespace(
            kv_connector_block_state=SimpleNamespace(boundary_state_offloads=dict(states)) if states else None,
            preempted_req_ids=set(preempted), num_scheduled_tokens={},
            scheduled_new_reqs=[SimpleNamespace(req_id=r.request_id, num_computed_tokens=computed, block_ids=pages)
                                for r, computed, _, pages in new],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[name for name, *_ in cached], num_computed_tokens=[c for _, c, _, _ in cached],
                new_block_ids=[pages for *_, pages in cached], resumed_req_ids=set()))
        output.num_scheduled_tokens.update({r.request_id: n for r, _, n, _ in new})
        output.num_scheduled_tokens.update({name: n for name, _, n, _ in cached})
        self.pool.others()
        meta = self.scheduler.build_connector_meta(output)
        worker = self.worker
        worker.bind_connector_metadata(meta)
        worker.start_load_kv(None)
        for name in self.names:
            worker.wait_for_layer_load(name)
        forward()
        for name, tensor in zip(self.names, self.tensors):
            worker.save_kv_layer(name, tensor, None)
        worker.wait_for_save()
        got = worker.get_transfer_results(set(ended))
        invalid, over = worker.get_block_ids_with_load_errors(), worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        self.scheduler.update_connector_output(SimpleNamespace(
            finished_sending=got.finished_sending, finished_recving=got.finished_recving, invalid_block_ids=invalid,
            failed_recving=got.failed_recving, kv_connector_worker_meta=over))
        self.events += self.scheduler.take_events()
        return got, invalid

    def said(self) -> list:
        """The events since the last call."""
        self.step()
        ret, self.events = self.events, []
        return ret

    def until(self, holds, **how) -> None:
        """Steps without a request, as vLLM makes while only loads and saves are under way."""
        end = time.monotonic() + PATIENT_S
        while True:
            got, invalid = self.step(**how)
            how.pop("ended", None)
            if holds(got, invalid):
                return
            assert time.monotonic() < end, "vLLM waits for ever"
            time.sleep(0.001)

    def load(self, request, pages, matched: int) -> int:
        """The asynchronous load of a request: how many of its leading blocks are good."""
        name, bad = request.request_id, set()
        self.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: tuple(pages)), matched)
        failed = set()

        def received(got, invalid) -> bool:
            bad.update(invalid)
            failed.update(got.failed_recving)
            return name in got.finished_recving

        self.until(received)
        n = matched // self.TOKENS
        if name in failed:
            return 0
        return next((i for i in range(n) if any(own[i] in bad for own in pages)), n)

    def matched(self, request) -> int:
        """As vLLM asks: once more in each step, until there is an answer."""
        end = time.monotonic() + PATIENT_S
        while True:
            matched, later = self.scheduler.get_num_new_matched_tokens(request, 0)
            assert later == bool(matched), "nothing is never loaded later"
            if matched is not None:
                return matched
            assert time.monotonic() < end, "the request waits for ever"
            self.step()
            time.sleep(0.001)

    def answer(self, tokens, **more) -> int:
        """A request from its arrival until its blocks are free again: how many blocks were loaded."""
        request = self.request(tokens, **more)
        name, n = request.request_id, -(-len(request.all_token_ids) // self.TOKENS)
        matched = self.matched(request)
        pages = [self.take(n) for _ in range(self.groups)]
        loaded = self.load(request, pages, matched) if matched else 0
        if not self.proven(request, pages, loaded):
            assert self.matched(request) == 0, "a load that was refused is promised once more, and so for ever"
            loaded = 0
        for group, own in enumerate(pages):
            for block in range(loaded):
                assert self.holds(request.all_token_ids, block, group, own[block]), f"block {block} is another one"
        computed = min(loaded * self.TOKENS, len(request.all_token_ids) - 1)    # the last token is computed again

        def forward() -> None:
            for group, own in enumerate(pages):
                for block in range(loaded, len(request.all_token_ids) // self.TOKENS):
                    self.put(request.all_token_ids, block, group, own[block])

        self.step(new=[(request, computed, len(request.all_token_ids) - computed, tuple(pages))], forward=forward)
        carrier = self.scheduler.kv_checksum_carrier(request, receiving=False)
        request.num_output_tokens = 1
        sums = None if carrier is None else self.sums(pages)
        self.finish(request, pages)
        self.until(lambda *_: not self.scheduler.has_pending_push_work())
        if sums is not None and self.parameters is not None:
            self.parameters["kv_checksums"] = sums
        return loaded

    def computes_states(self, tokens, block: int) -> None:
        """A prompt in a hybrid() engine, which keeps its state at the end of a block."""
        request, n = self.request(tokens), -(-len(tokens) // self.TOKENS)
        pages = [[0] * block + self.take(1) + [0] * (n - block - 1), self.take(n)]
        assert self.matched(request) == 0
        self.step(new=[(request, 0, len(tokens), pages)],
                  states={request.request_id: [(0, pages[0][block], (block + 1) * self.TOKENS)]},
                  forward=lambda: [self.put(tokens, block, group, own[block]) for group, own in enumerate(pages)])

    def loads_states(self, tokens, block: int) -> bool:
        """Whether a prompt continues from the state at the end of a block, and from no other one."""
        request, pages, n = self.request(tokens), [[0] * block + self.take(1), self.take(block + 1)], block + 1
        return (self.matched(request) == n * self.TOKENS and self.load(request, pages, n * self.TOKENS) == n and
                self.holds(tokens, block, 0, pages[0][block]))

    def finish(self, request, pages) -> None:
        if self.groups > 1:
            later, self.parameters = self.scheduler.request_finished_all_groups(request, tuple(pages))
        else:
            later, self.parameters = self.scheduler.request_finished(request, pages[0])
        assert set(self.parameters or ()) <= {"kvtier_tokens"}
        assert not later
        self.give_back(pages)
        self.step(ended={request.request_id})

    def close(self) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()
