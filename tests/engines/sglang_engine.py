# SPDX-License-Identifier: Apache-2.0
"""sglang_engine.py FD FD SOCKET ORDER - a process that answers prompts by SGLang's own HiCacheController on the CPU.

engine_process.py says how it is asked. SOCKET is "": it begins without a storage. Its host pool, its page hashes and
its threads of queries, prefetches and backups are SGLang's; kvtier.sglang is loaded as its `dynamic` storage. This file
plays what SGLang needs a GPU for: the scheduler, and a forward whose KV of a page depends on the page's hash, that is
on all tokens up to its end. ORDER is the order of the values in the host pool; "mla/..." has those of MLA.

After each prompt the whole host pool is filled with one byte. A page that changes until the next prompt was written
after its call was answered: `late`.
"""
import itertools
import sys
import threading

import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.utils import get_hash_str
from sglang.srt.runtime_context import get_parallel

from engine_process import serve

PAGE, LAYERS, HEADS, DIM, LATENT, ROPE, HOST_TOKENS = 32, 4, 4, 64, 128, 32, 12288
PATIENT_S = 120
FREE = 0x55
ALONE = dict(attn_dcp_size=1, attn_dcp_rank=0, tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_tp_rank=0,
             attn_tp_size=1, attn_dp_rank=0, attn_dp_size=1, dp_size=1)
PERMUTED = {"layer_first": (0, 1, 2, 3, 4), "page_first": (0, 2, 1, 3, 4), "page_first_direct": (0, 1, 2, 3, 4),
            "page_head": (0, 3, 2, 1, 4)}      # from [K|V, layer, token, head, value]


def make_pools(order: str):
    """SGLang's pools: that of the device, which is the CPU here, and that of the host."""
    common = dict(size=1024, page_size=PAGE, dtype=torch.bfloat16, layer_num=LAYERS, device="cpu",
                  enable_memory_saver=False)
    how = dict(pin_memory=False, device_capacity_tokens=1024, start_layer=0, end_layer=LAYERS,
               host_token_capacity=HOST_TOKENS)
    if order.startswith("mla/"):
        device = MLATokenToKVPool(kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, **common)
        return device, MLATokenToKVPoolHost(device._mla_buffer_info(), 2.0, 0, PAGE, order[4:], target_layer_num=LAYERS,
                                            **how)
    device = MHATokenToKVPool(head_num=HEADS, head_dim=DIM, **common)
    return device, MHATokenToKVPoolHost(device._mha_buffer_info(), 2.0, 0, PAGE, order, **how)


def computed(digest: str, order: str) -> torch.Tensor:
    """The values that a forward gives for a page, in the pool's order."""
    numbers = torch.Generator().manual_seed(int(digest[:15], 16))
    mla = order.startswith("mla/")
    shape = (1, LAYERS, PAGE, 1, LATENT + ROPE) if mla else (2, LAYERS, PAGE, HEADS, DIM)
    values = torch.randn(shape, generator=numbers).to(torch.bfloat16)
    return values.permute(PERMUTED[order.removeprefix("mla/")]).flatten()


def storage(socket: str, **options) -> dict:
    return {"backend_name": "kvtier", "module_path": "kvtier.sglang", "class_name": "KvtierStorage", "interface_v1": 1,
            "socket": socket, "codec": "raw", "timeout_ms": 2000, **options}


class Engine:
    def __init__(self, socket: str, order: str) -> None:
        self.order, self.numbers = order, itertools.count()
        device, self.host = make_pools(order)
        allocator = type("Allocator", (), {"get_kvcache": lambda _: device})()
        how = dict(storage_backend="dynamic", storage_backend_extra_config=storage(socket)) if socket else {}
        self.cache = HiCacheController(allocator, self.host, PAGE, None, threading.Event(), model_name="tiny", **how)
        self.host.kv_buffer.view(torch.uint8).fill_(FREE)

    def prefetched(self, tokens: list) -> tuple:
        """Prefetches like the scheduler. Returns pages of the host, and how many of the leading ones came."""
        cache = self.cache
        cache.prefetch(f"r{next(self.numbers)}", tokens, None, [])
        operation = cache.prefetch_hit_queue.get(timeout=PATIENT_S)
        found, came = operation.storage_hit_count // PAGE, 0
        operation.host_indices = self.host.alloc(found * PAGE)
        if found == 0:
            return operation.host_indices, 0
        cache.prefetch_buffer.put(operation)
        while True:
            ack = cache.ack_prefetch_queue.get(timeout=PATIENT_S)
            came = came if ack.completed_tokens is None else ack.completed_tokens // PAGE
            if ack.completed_req:
                return operation.host_indices, came

    def attached(self, options: dict) -> dict:
        """Attaches a storage at run time, as the server does it between requests, or ({}) detaches it."""
        if options:
            self.cache.attach_storage_backend("dynamic", model_name="tiny", storage_backend_extra_config=options)
        else:
            self.cache.detach_storage_backend()
        return {"attached": self.cache.enable_storage}

    def answer(self, question: dict) -> dict:
        if "attach" in question:
            return self.attached(question["attach"])
        late = int((self.host.kv_buffer.view(torch.uint8) != FREE).sum())
        generator = torch.Generator().manual_seed(question["seed"])
        tokens = torch.randint(3, 1000, (question["pages"] * PAGE,), generator=generator).tolist()
        names = get_hash_str(tokens, None, page_size=PAGE)
        place, loaded = self.prefetched(tokens)
        wrong = sum(not torch.equal(self.host.get_data_page(int(place[i * PAGE])), computed(names[i], self.order))
                    for i in range(loaded))
        rest = self.host.alloc((len(names) - loaded) * PAGE)
        for i, name in enumerate(names[loaded:]):
            self.host.set_from_flat_data_page(int(rest[i * PAGE]), computed(name, self.order))
        stored = 0
        if len(rest):
            self.cache.write_storage(rest, tokens, names[loaded:], prefix_keys=names[:loaded])
            stored = self.cache.ack_backup_queue.get(timeout=PATIENT_S).completed_tokens // PAGE
        for indices in (place, rest):
            self.host.free(indices)
        self.host.kv_buffer.view(torch.uint8).fill_(FREE)
        threads = (self.cache.prefetch_thread, self.cache.prefetch_io_aux_thread, self.cache.backup_thread)
        return {"loaded": loaded, "stored": stored, "wrong": wrong, "late": late,
                "errors": getattr(self.cache.storage_backend, "counts", {}).get("errors", 0),
                "alive": all(thread.is_alive() for thread in threads)}


def main() -> None:
    torch.set_num_threads(1)
    with get_parallel().override(**ALONE):
        engine = Engine(*sys.argv[3:5])
        serve(engine.answer)


if __name__ == "__main__":
    main()
