# SPDX-License-Identifier: Apache-2.0
"""sglang_test.py - kvtier.sglang under the real SGLang on the CPU: its HiCacheController with its threads, its host
pools, hashes and failure injector, and its factories of storages and linkers. No model runs here: SGLang's kernels
between host and device need a GPU, so sglang_engine.py plays the forward and the scheduler."""
import argparse
import json
import os
import signal
import time
import unittest
from pathlib import Path

import torch
from sglang.srt.mem_cache.hicache_storage import (HiCacheStorageConfig, HiCacheStorageExtraInfo,
                                                  HiCacheStorageFailureInjector, PoolHitPolicy, PoolName, PoolTransfer)
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool
from sglang.srt.mem_cache.storage import StorageBackendFactory

import sglang_engine
from engine_process import Engine, commands
from sglang_engine import PAGE, computed, make_pools, storage
from world import Waits, host, started

ENGINE = Path(__file__).with_name("sglang_engine.py")
ORDERS = ("layer_first", "page_first", "page_first_direct", "page_head")
LATENT = ("mla/layer_first", "mla/page_first", "mla/page_first_direct")


class OneDaemon(Waits):
    @classmethod
    def setUpClass(cls) -> None:
        cls.work, cls.daemon = started(cls.addClassCleanup, host(512))

    def setUp(self) -> None:
        """Begins without what an earlier test left."""
        self.daemon.process.send_signal(signal.SIGCONT)
        if self.daemon.process.poll() is not None:
            self.daemon.start()


class Threads(OneDaemon):
    """SGLang's threads query, prefetch and back up pages with kvtier."""

    def engine(self, order: str = "page_first", **environment: str) -> Engine:
        engine = Engine(ENGINE, self.daemon.socket, order, **environment)
        self.addCleanup(engine.kill)
        return engine

    def ask(self, engine: Engine, seed: int, pages: int = 150) -> dict:
        """Asks for a prompt; 150 pages are two batches of SGLang's."""
        return self.good(engine.ask(seed=seed, pages=pages))

    def good(self, answer: dict) -> dict:
        self.assertEqual((answer["wrong"], answer["late"], answer["alive"]), (0, 0, True), answer)
        return answer

    def until_kept(self, engine: Engine, seed: int) -> None:
        self.until(lambda: self.ask(engine, seed)["loaded"] == 150)

    def test_a_prefix_outlives_its_engine_in_every_order(self):
        for seed, orders in enumerate((ORDERS, LATENT)):
            cold = self.engine(orders[0])
            first = self.ask(cold, seed)
            self.assertEqual((first["loaded"], first["stored"]), (0, 150))
            cold.kill()
            for order in orders:
                warm = self.engine(order)
                second = self.ask(warm, seed)
                self.assertEqual((second["loaded"], second["stored"]), (150, 0), order)
                warm.kill()
        self.assertGreaterEqual(self.daemon.stats()["tiers"]["host"]["hit_blocks_total"], 7 * 150)

    def test_a_longer_prompt_goes_on_where_a_shorter_one_ended(self):
        engine = self.engine()
        self.assertEqual(self.ask(engine, 10, 40)["stored"], 40)
        longer = self.ask(engine, 10, 60)
        self.assertEqual((longer["loaded"], longer["stored"]), (40, 20))
        self.assertEqual(self.ask(engine, 10, 60)["loaded"], 60)

    def test_a_storage_that_is_attached_at_run_time(self):
        """By the request that client/python/README.md shows, with the object of its first command in a file."""
        first, _, request = commands("SGLang")
        body = json.loads(request[request.index("-d") + 1])
        file = self.work / Path(body["hicache_storage_backend_extra_config_json"][1:]).name
        file.write_text(first[first.index("--hicache-storage-backend-extra-config") + 1])
        self.assertEqual(body, {"hicache_storage_backend": "dynamic",
                                "hicache_storage_backend_extra_config_json": f"@/etc/{file.name}"})
        options, *_ = HybridCacheController.parse_storage_backend_extra_config(f"@{file}")
        options.update(socket=self.daemon.socket, model="tiny", codec="raw")
        engine = Engine(ENGINE, "", "page_first")
        self.addCleanup(engine.kill)
        for loaded in (0, 150):
            self.assertEqual(engine.ask(attach=options), {"attached": True})
            answer = self.ask(engine, 80)
            self.assertEqual((answer["loaded"], answer["stored"]), (loaded, 150 - loaded))
            self.assertEqual(engine.ask(attach={}), {"attached": False})

    def test_a_daemon_that_is_killed_costs_hits_alone(self):
        engine = self.engine()
        for turn, delay in enumerate((0.0, 0.02, 0.1)):
            for seed in (20, 30 + turn):        # a load that is under way, and a store
                self.until_kept(engine, 20)
                engine.begin(seed=seed, pages=150)
                time.sleep(delay)
                self.daemon.kill()
                self.good(engine.read())
                self.daemon.start()

    def test_a_daemon_that_stands_still_costs_hits_alone(self):
        engine = self.engine()
        for turn, delay in enumerate((0.01, 0.06)):
            for seed in (40, 50 + turn):
                self.until_kept(engine, 40)
                before = self.ask(engine, 40)["errors"]
                engine.begin(seed=seed, pages=150)
                time.sleep(delay)
                self.daemon.process.send_signal(signal.SIGSTOP)
                answer = self.good(engine.read())
                self.assertGreater(answer["errors"], before)       # it was in a load or a store
                self.ask(engine, seed)
                self.daemon.process.send_signal(signal.SIGCONT)
        self.until_kept(engine, 40)

    def test_an_engine_that_starts_first_finds_the_daemon_later(self):
        self.daemon.kill()
        engine = self.engine()
        self.assertEqual(self.ask(engine, 60)["loaded"], 0)
        self.daemon.start()
        self.until_kept(engine, 60)

    def test_failures_that_sglang_injects(self):
        engine = self.engine(SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE="0.3",
                             SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY="0.02")
        some = [self.ask(engine, 70 + turn % 2)["loaded"] for turn in range(30)]
        self.assertGreater(max(some), 0)
        self.assertGreater(len(set(some)), 1)


class Calls(OneDaemon):
    """Each call of a storage, made by SGLang's factory."""

    def config(self, name: str = "tiny", rank: int = 0, size: int = 1, mla: bool = False, pp: int = 0, **options):
        return HiCacheStorageConfig(tp_rank=rank, tp_size=size, pp_rank=pp, pp_size=2, attn_cp_rank=0, attn_cp_size=1,
                                    is_mla_model=mla, enable_storage_metrics=False, is_page_first_layout=False,
                                    model_name=name, extra_config=storage(self.daemon.socket, **options))

    def storage(self, host, config):
        backend = StorageBackendFactory.create_backend("dynamic", config, host)
        self.addCleanup(backend.close)
        backend.register_mem_pool_host(host)
        backend.on_host_pools_registered()
        return backend

    def fill(self, host, order: str, names) -> torch.Tensor:
        indices = host.alloc(len(names) * PAGE)
        for i, name in enumerate(names):
            host.set_from_flat_data_page(int(indices[i * PAGE]), computed(name, order))
        return indices

    def names(self, n: int) -> list:
        return [f"{self.id().encode().hex()[-14:]}{i:02x}".rjust(64, "0")[-64:][::-1] for i in range(n)]

    def test_ranks_keep_pages_of_their_own_and_mla_is_kept_once(self):
        for mla, order in ((False, "page_first"), (True, "mla/page_first")):
            _, host = make_pools(order)
            names = [name[::-1] if mla else name for name in self.names(3)]
            indices = self.fill(host, order, [f"{i:064x}" for i in range(3)])
            backends = {(rank, pp): self.storage(host, self.config(rank=rank, size=2, mla=mla, pp=pp))
                        for rank in range(2) for pp in range(2)}
            before = self.daemon.stats()["store"]["blocks_total"]
            self.assertEqual(backends[1, 0].batch_set_v1(names, indices), [True] * 3)   # MLA: the first rank keeps it
            self.assertEqual(self.daemon.stats()["store"]["blocks_total"] - before, 0 if mla else 3)
            self.assertEqual(backends[0, 0].batch_exists(names), 0)
            self.assertEqual(backends[0, 0].batch_set_v1(names, indices), [True] * 3)
            found = {key: backend.batch_exists(names) for key, backend in backends.items()}
            self.assertEqual(found, {(0, 0): 3, (1, 0): 3, (0, 1): 0, (1, 1): 0})

    def test_its_batches_are_in_the_metrics_of_sglang(self):
        from prometheus_client import REGISTRY
        from sglang.srt.observability.metrics_collector import StorageMetricsCollector
        collector, (_, host) = StorageMetricsCollector({"model_name": "tiny"}), make_pools("page_first")
        backend, names = self.storage(host, self.config()), self.names(3)
        indices = self.fill(host, "page_first", [f"{i:064x}" for i in range(3)])
        self.assertEqual(backend.batch_set_v1(names, indices) + backend.batch_get_v1(names, indices), [True] * 6)
        for _ in range(2):      # a batch is counted once
            collector.log_storage_metrics(backend.get_stats())
            self.assertEqual([REGISTRY.get_sample_value(f"sglang:{what}_{part}", {"model_name": "tiny"})
                              for what in ("backup_pgs", "prefetch_pgs") for part in ("sum", "count")], [3, 1, 3, 1])
        for what in ("backup", "prefetch"):
            self.assertGreater(REGISTRY.get_sample_value(f"sglang:{what}_bandwidth_sum", {"model_name": "tiny"}), 0)

    def test_pools_beside_the_kv(self):
        """A hybrid model has pools of all pages, pools of the last ones, and a KV pool that has only numbers."""
        order, names = "page_first", self.names(8)
        _, side = make_pools(order)
        window = make_pools("layer_first")[1]
        logical = LogicalHostPool(sglang_engine.HOST_TOKENS, PAGE)
        backend = self.storage(logical, self.config())
        for pool, name in ((logical, PoolName.KV), (side, PoolName.INDEXER), (window, PoolName.SWA)):
            backend.register_mem_host_pool_v2(pool, name)
        kv = logical.alloc(8 * PAGE)
        indices = self.fill(side, order, [f"{i:064x}" for i in range(8)])
        last = self.fill(window, "layer_first", ["a", "b"])
        self.assertEqual(backend.batch_set_v1(names, kv), [True] * 8)
        info = HiCacheStorageExtraInfo(prefix_keys=[])
        kept = backend.batch_set_v2([
            PoolTransfer(PoolName.INDEXER, indices[:6 * PAGE], keys=names[:6]),
            PoolTransfer(PoolName.SWA, last, keys=names[3:5], hit_policy=PoolHitPolicy.TRAILING_PAGES)], info)
        self.assertEqual(kept, {"indexer": [True] * 6, "swa": [True] * 2})
        ask = [PoolTransfer(PoolName.INDEXER),
               PoolTransfer(PoolName.SWA, keys=names[:2], hit_policy=PoolHitPolicy.TRAILING_PAGES)]
        result = backend.batch_exists_v2(names, ask, info)
        self.assertEqual((result.kv_hit_pages, result.restorable_prefix_pages, result.extra_pool_hit_pages),
                         (5, [5], {"kv": 8, "indexer": 6, "swa": 5}))
        window.kv_buffer.zero_()
        got = backend.batch_get_v2([PoolTransfer(PoolName.SWA, last, keys=names[3:5],
                                                 hit_policy=PoolHitPolicy.TRAILING_PAGES),
                                    PoolTransfer(PoolName.INDEXER, indices[:8 * PAGE], keys=names)], info)
        self.assertEqual(got, {"swa": [True] * 2, "indexer": [True] * 6 + [False] * 2})
        for i, name in enumerate("ab"):
            self.assertTrue(torch.equal(window.get_data_page(int(last[i * PAGE])), computed(name, "layer_first")))
        self.assertEqual(backend.batch_exists_v2(names, [PoolTransfer(PoolName.MAMBA)], info).kv_hit_pages, 0)

    def test_nothing_raises_into_the_engine(self):
        _, host = make_pools("page_first")
        backend, names = self.storage(host, self.config()), self.names(2)
        shifted = torch.arange(2 * PAGE) + 1
        for wrong in (shifted, torch.arange(5), None, torch.arange(2 * PAGE) + 10 * sglang_engine.HOST_TOKENS):
            self.assertEqual(backend.batch_set_v1(names, wrong), [False] * 2)
            self.assertEqual(backend.batch_get_v1(names, wrong), [False] * 2)
        self.assertEqual(backend.batch_get_v2([PoolTransfer(PoolName.SWA, None, keys=names)]), {"swa": [False] * 2})
        self.assertEqual(backend.counts["errors"], 8)
        self.assertEqual((backend.get("a"), backend.batch_get(names), backend.set("a"), backend.batch_set(names),
                          backend.clear()), (None, [None] * 2, False, False, False))

    def test_what_is_not_served_runs_uncached_and_says_so(self):
        _, host = make_pools("page_first")
        strange = make_pools("page_first")[1]
        strange.layout = "page_spiral"
        eight = make_pools("page_first")[1]
        eight.kv_buffer = eight.kv_buffer.view(torch.uint8)[..., ::2].clone()
        eight.size_per_token //= 2
        for pool, config, words in ((strange, self.config(), "page_spiral"),
                                    (eight, self.config(), "values of 8 bits"),
                                    (host, self.config(codec="zip"), "codec"),
                                    (host, self.config(""), "has no name"),
                                    (host, self.config(interface_v1=0), "interface_v1")):
            with self.assertLogs("sglang.kvtier", "WARNING") as log:
                backend = self.storage(pool, config)
            self.assertIn(words, log.output[-1])
            names, indices = self.names(2), torch.arange(2 * PAGE)
            self.assertEqual((backend.batch_set_v1(names, indices), backend.batch_exists(names)), ([False] * 2, 0))

    def test_another_order_of_the_device_is_no_order_of_heads(self):
        """The rows of a host pool are not the heads of a token then, so such pages are kept apart, as they are."""
        from kvtier.sglang import host_layout
        self.assertEqual(host_layout(make_pools("page_first")[1]).order, "")
        os.environ["SGLANG_USE_HND_KVCACHE"] = "1"
        self.addCleanup(os.environ.pop, "SGLANG_USE_HND_KVCACHE")
        _, host = make_pools("page_first")
        layout = host_layout(host)
        self.assertIn("/hnd/", layout.order)
        self.assertEqual(layout.opaque_bytes, host.size_per_token * PAGE)

    def test_the_failure_injector_is_in_front_of_it(self):
        os.environ["SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE"] = "1"
        self.addCleanup(os.environ.pop, "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE")
        _, host = make_pools("page_first")
        backend = self.storage(host, self.config())
        self.assertIsInstance(backend, HiCacheStorageFailureInjector)
        self.assertEqual(backend.batch_exists(self.names(2)), 0)


class Linked(OneDaemon):
    """A linker that SGLang's factory made over SGLang's device pools, which are in the CPU's memory."""

    CONFIG = {"linker": "KvtierLinker", "linker_module_path": "kvtier.sglang"}

    def linker(self, device, timeout_ms: int = 2000, model: str = "tiny", backend: str = "dynamic", config=CONFIG):
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
        from sglang.srt.mem_cache.unified_cache.linker_factory import create_unified_cache_linker
        allocator = type("Allocator", (), {"get_kvcache": lambda _: device})()
        params = CacheInitParams(disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=allocator,
                                 page_size=PAGE)
        options = {"socket": self.daemon.socket, "codec": "raw", "timeout_ms": timeout_ms, "model": model}
        linker = create_unified_cache_linker(
            type("Arguments", (), {"model_path": model})(), params, backend=backend, components={ComponentType.FULL},
            config={**config, "linker_extra_config": {**config.get("linker_extra_config", {}), **options}})
        self.addCleanup(linker.close)
        return linker

    def offload(self, linker, names, indices) -> bool:
        self.assertTrue(linker.offload([PoolTransfer(PoolName.KV, device_indices=indices, keys=names)]))
        self.until(lambda: linker.num_completed_offloads() == 1)
        return linker.pop_completed_offload()

    def test_the_commands_of_the_readme_lead_here(self):
        """SGLang's own parser and factories read them. A server is not started, as no model runs."""
        from sglang.srt.server_args import ServerArgs
        parser = argparse.ArgumentParser()
        ServerArgs.add_cli_args(parser)
        given = []
        for command in commands("SGLang")[:2]:
            self.assertEqual(command[:3], ["python", "-m", "sglang.launch_server"])
            given.append(parser.parse_args(command[3:]))
        storage, linker = given
        self.assertTrue(storage.enable_hierarchical_cache)
        options, *_ = HybridCacheController.parse_storage_backend_extra_config(
            storage.hicache_storage_backend_extra_config)
        device, host = make_pools("page_first")
        config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "x",
                                      extra_config={**options, "socket": self.daemon.socket})
        backend = StorageBackendFactory.create_backend(storage.hicache_storage_backend, config, host)
        self.addCleanup(backend.close)
        backend.register_mem_pool_host(host)
        self.assertEqual((type(backend).__name__, backend.batch_set_v1(["a"], torch.arange(PAGE))),
                         ("KvtierStorage", [True]))
        self.assertTrue(linker.enable_unified_cache_external_linker)
        made = self.linker(device, backend=linker.unified_cache_external_linker_backend,
                           config=linker.unified_cache_external_linker_config)
        self.assertEqual((type(made).__name__, self.offload(made, ["b"], torch.arange(PAGE))), ("KvtierLinker", True))

    def test_pages_go_and_come(self):
        for order in ("page_first", "mla/page_first"):
            device, _ = make_pools(order)
            tensors = device.kv_buffer if order.startswith("mla") else [*device.k_buffer, *device.v_buffer]
            for tensor in tensors:
                tensor.copy_(torch.randn(tensor.shape))
            before = [tensor.clone() for tensor in tensors]
            names, place = [f"{order}-{i}" for i in range(6)], torch.arange(2 * PAGE, 8 * PAGE)
            self.assertTrue(self.offload(self.linker(device, model=order), names, place))
            linker = self.linker(device, model=order)
            kv = PoolTransfer(PoolName.KV, keys=[*names, "more"])
            self.assertEqual(linker.lookup("r", [kv]), [1, 2, 3, 4, 5, 6])
            for tensor in tensors:
                tensor.zero_()
            to = torch.arange(10 * PAGE, 16 * PAGE)
            self.assertEqual(linker.start_layer_wise_loading(), -1)
            self.assertTrue(linker.load("r", [PoolTransfer(PoolName.KV, device_indices=to, keys=names)]))
            index = linker.start_layer_wise_loading()
            linker.layer_done_counter.set_consumer(index)
            linker.layer_done_counter.wait_until(sglang_engine.LAYERS - 1)
            self.assertTrue(linker.finish_layer_wise_loading(index))
            for tensor, was in zip(tensors, before):
                self.assertTrue(torch.equal(tensor[to], was[place]))
                tensor[to] = 0
                self.assertEqual(int(tensor.count_nonzero()), 0)

    def test_host_pools_and_device_pools_share_pages(self):
        device, host = make_pools("page_first")
        for layer, (k, v) in enumerate(zip(device.k_buffer, device.v_buffer)):
            k.copy_(torch.randn(k.shape))
            v.copy_(torch.randn(v.shape))
        names, place = [f"shared-{i}" for i in range(3)], torch.arange(PAGE, 4 * PAGE)
        self.assertTrue(self.offload(self.linker(device, model="shared"), names, place))
        config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "x",
                                      extra_config=storage(self.daemon.socket, model="shared"))
        backend = StorageBackendFactory.create_backend("dynamic", config, host)
        self.addCleanup(backend.close)
        backend.register_mem_pool_host(host)
        self.assertEqual(backend.batch_get_v1(names, torch.arange(3 * PAGE)), [True] * 3)
        for layer in range(sglang_engine.LAYERS):
            self.assertTrue(torch.equal(host.k_data_refs[layer][:3 * PAGE], device.k_buffer[layer][place]))
            self.assertTrue(torch.equal(host.v_data_refs[layer][:3 * PAGE], device.v_buffer[layer][place]))

    def test_a_daemon_that_is_away_or_stands_still_costs_hits_alone(self):
        device, _ = make_pools("page_first")
        linker, names, place = self.linker(device), [f"away-{i}" for i in range(4)], torch.arange(4 * PAGE)
        load = [PoolTransfer(PoolName.KV, device_indices=place, keys=names)]
        self.until(lambda: self.offload(linker, names, place))
        self.until(lambda: linker.load("r0", load) and linker.cancel_queued_load("r0"))
        for act, undo in ((lambda: self.daemon.process.send_signal(signal.SIGSTOP),
                           lambda: self.daemon.process.send_signal(signal.SIGCONT)),
                          (self.daemon.kill, self.daemon.start)):
            act()
            self.assertFalse(linker.load("r", load))       # refused: SGLang computes it
            self.assertFalse(self.offload(linker, names, place))
            self.assertEqual((linker.lookup("r", load), linker.start_layer_wise_loading()), ([], -1))
            undo()
            self.until(lambda: self.offload(linker, names, place))


if __name__ == "__main__":
    with sglang_engine.get_parallel().override(**sglang_engine.ALONE):
        unittest.main(verbosity=2)
