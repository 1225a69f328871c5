# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=20
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: KvtierStorage and KvtierLinker keep their contract with SGLang: pages come back as they were given, in every
layout; what is wrong (options, pools, calls, a daemon) is False, one line and a count; nothing raises, nothing hangs.
Method: kvtier.sglang over doubles of torch and of SGLang's classes and layouts (sglang_double.py), a kvtierd of its
own, memory of the CPU. The real SGLang: make test-engines.
"""
import errno
import json
import os
import signal
import tempfile
import threading
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import sglang_double

sglang_double.install()

from kvtier import Codec, Error, Region, sglang as adapter  # noqa: E402
from kvtier.adapters import sglang_core  # noqa: E402
from kvtier.adapters.sglang_core import Pool, Store, geometry_of  # noqa: E402
from sglang_double import (DevicePool, HiCacheStorageConfig, HiCacheStorageExtraInfo, HostPool,  # noqa: E402
                           PoolHitPolicy, PoolName, PoolTransfer)
from sys_python_engines_sglang import TOKENS, names  # noqa: E402
from torch_double import Numbers  # noqa: E402
from world import PATIENT_S, World  # noqa: E402

LOG = "sglang.kvtier"


def slots(*pages: int) -> Numbers:
    return Numbers([page * TOKENS + token for page in pages for token in range(TOKENS)])


class HiCache(World):
    def options(self, extra=()) -> dict:
        return {"interface_v1": 1, "socket": str(self.daemon.socket), "codec": "raw", "timeout_ms": 2000,
                "prefetch_ms": 0, "model": "tiny", **dict(extra)}

    def config(self, extra=(), rank: int = 0, size: int = 1, mla: bool = False) -> HiCacheStorageConfig:
        return HiCacheStorageConfig(rank, size, 0, 1, 0, 1, mla, False, False, "served",
                                    extra_config=self.options(extra))

    def storage(self, pool, extra=(), **how):
        storage = adapter.KvtierStorage(self.config(extra, **how))
        self.addCleanup(storage.close)
        storage.register_mem_pool_host(pool)
        storage.register_mem_host_pool_v2(pool, PoolName.KV)
        return storage

    def linker(self, pool, extra=(), params=()):
        params = SimpleNamespace(**{**dict(
            token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool), page_size=TOKENS, pp_rank=0,
            pp_size=1, attn_cp_rank=0, attn_cp_size=1, tp_cache_group=None, req_to_token_pool=None), **dict(params)})
        linker = adapter.KvtierLinker(SimpleNamespace(model_path="tiny"), params, components=(),
                                      extra_config=self.options(extra))
        self.addCleanup(linker.close)
        return linker

    def kept(self, storage, pool, pages, first: int = 0) -> list:
        for i, name in enumerate(pages):
            pool.fill(first + i, name)
        return storage.batch_set_v1(pages, slots(*range(first, first + len(pages))))


class OfStorage(HiCache):
    def test_pages_of_one_engine_come_into_another_in_every_order(self):
        for number, giver in enumerate(("layer_first", "page_first", "page_first_direct", "page_head")):
            pages, pool = names(4, giver), HostPool(giver)
            storage = self.storage(pool)
            self.assertEqual(storage.batch_exists(pages), 0)
            self.assertEqual(self.kept(storage, pool, pages), [True] * 4)
            for taker in ("layer_first", "page_head"):
                into = HostPool(taker)
                other = self.storage(into)
                self.assertEqual((other.batch_exists([*pages, "more"]), other.exists(pages[0]), other.exists("no")),
                                 (4, True, False))
                self.assertEqual(other.batch_get_v1([*pages, "more"], slots(9, 8, 7, 6, 5)), [True] * 4 + [False])
                self.assertEqual([into.content(9 - i) for i in range(4)], [pool.content(i) for i in range(4)])
                self.assertEqual((other.counts["loaded"], other.counts["missed"], other.counts["errors"]), (4, 1, 0))

    def test_a_batch_goes_on_where_the_one_before_ended(self):
        pool = HostPool("page_first")
        storage, pages = self.storage(pool), names(8)
        self.kept(storage, pool, pages[:5])
        for i in range(5, 8):
            pool.fill(i, pages[i])
        before = HiCacheStorageExtraInfo(pages[:5])
        self.assertEqual(storage.batch_set_v1(pages[5:], slots(5, 6, 7), before), [True] * 3)
        self.assertEqual(storage.batch_exists(pages), 8)

    def test_pools_beside_the_kv_limit_a_prefix(self):
        kv, side, window = (HostPool("page_first") for _ in range(3))
        storage, pages = self.storage(kv), names(8)
        storage.register_mem_host_pool_v2(side, PoolName.INDEXER)
        storage.register_mem_host_pool_v2(window, PoolName.SWA)
        self.kept(storage, kv, pages)
        for i in range(8):
            side.fill(i, f"side {i}")
            window.fill(i, f"window {i}")
        trailing = dict(hit_policy=PoolHitPolicy.TRAILING_PAGES)
        self.assertEqual(storage.batch_set_v2([
            PoolTransfer(PoolName.INDEXER, slots(*range(6)), keys=pages[:6]),
            PoolTransfer(PoolName.SWA, slots(3, 4), keys=pages[3:5], **trailing)]),
            {"indexer": [True] * 6, "swa": [True] * 2})
        found = storage.batch_exists_v2(pages, [PoolTransfer(PoolName.INDEXER),
                                                PoolTransfer(PoolName.SWA, keys=pages[:2], **trailing)])
        self.assertEqual((found.kv_hit_pages, found.restorable_prefix_pages, found.extra_pool_hit_pages),
                         (5, [5], {"kv": 8, "indexer": 6, "swa": 5}))
        before = window.content(3)
        window.fill(3, "other")
        self.assertEqual(storage.batch_get_v2([PoolTransfer(PoolName.SWA, slots(3), keys=pages[3:4], **trailing),
                                               PoolTransfer(PoolName.MAMBA, slots(0), keys=pages[:1])]),
                         {"swa": [True], "mamba": [False]})
        self.assertEqual(window.content(3), before)
        self.assertEqual(storage.batch_exists_v2(pages, [PoolTransfer(PoolName.MAMBA)]).kv_hit_pages, 0)

    def test_batches_are_in_the_engines_metrics_once(self):
        pool, pages = HostPool("page_first"), names(5)
        storage = self.storage(pool)
        self.kept(storage, pool, pages[:4])
        storage.batch_get_v1(pages[:2], slots(0, 1))
        storage.batch_get_v2([PoolTransfer(PoolName.KV, slots(0, 1, 2), keys=pages[2:])])
        storage.batch_get_v1(pages[4:], slots(0))       # it is not there
        got = storage.get_stats()
        self.assertEqual((got.backup_pgs, got.prefetch_pgs), ([4], [2, 2]))
        self.assertEqual((len(got.backup_bandwidth), len(got.prefetch_bandwidth)), (1, 2))
        self.assertGreater(min(got.backup_bandwidth + got.prefetch_bandwidth), 0)
        self.assertEqual(storage.get_stats().prefetch_pgs, [])

    def test_a_storage_that_is_detached_and_attached_again_goes_on(self):
        """As SGLang's server does it at run time: a storage that is closed, and another one in the same process."""
        pool, pages = HostPool("page_first"), names(3)
        first = self.storage(pool)
        self.kept(first, pool, pages)
        first.close()
        self.assertEqual((first.batch_exists(pages), self.storage(pool).batch_get_v1(pages, slots(4, 5, 6))),
                         (3, [True] * 3))
        self.assertEqual([pool.content(4 + i) for i in range(3)], [pool.content(i) for i in range(3)])

    def test_ranks_keep_pages_of_their_own(self):
        pool, pages = HostPool("page_first"), names(3)
        ranks = [self.storage(pool, rank=rank, size=2) for rank in range(2)]
        self.assertEqual(self.kept(ranks[1], pool, pages), [True] * 3)
        self.assertEqual([rank.batch_exists(pages) for rank in ranks], [0, 3])

    def test_weights_that_a_hubs_name_stands_for_now_are_others(self):
        def of(commit, revision=None, **extra):
            settings = SimpleNamespace(model_path="hub/tiny", revision=revision, dtype="auto")
            if commit:
                settings.get_model_config = lambda: SimpleNamespace(hf_config=SimpleNamespace(_commit_hash=commit))
            with mock.patch.object(adapter, "_settings", lambda: settings):
                return self.storage(pool, {"model": None, **extra})

        pool, pages, old, new = HostPool("page_first"), names(3), "a" * 40, "b" * 40
        self.assertEqual(self.kept(of(old), pool, pages), [True] * 3)
        self.assertEqual([of(new).batch_exists(pages), of(old, "main").batch_exists(pages)], [0, 3])
        self.assertEqual([of(None).batch_exists(pages), of(None, old).batch_exists(pages)], [0, 3])
        self.assertEqual(self.kept(of(old, model="mine"), pool, pages), [True] * 3)
        self.assertEqual(of(new, model="mine").batch_exists(pages), 3)      # its user says which weights it means
        models = {space["model"] for space in json.loads(self.daemon.ctl("spaces", "--json"))["spaces"]}
        self.assertLessEqual({f"hub/tiny@{old}", "mine"}, models)

    def test_a_model_that_sees_images_is_refused(self):
        settings = SimpleNamespace(model_path="hub/eyes", get_model_config=lambda: SimpleNamespace(is_multimodal=True))
        with mock.patch.object(adapter, "_settings", lambda: settings), self.assertLogs(LOG, "WARNING") as log:
            pool, pages = HostPool("page_first"), names(3)
            self.assertEqual(self.kept(self.storage(pool), pool, pages), [False] * 3)
        self.assertIn("by 30 bits of its digest", log.output[0])

    def test_weights_of_adapters_are_part_of_the_name(self):
        pool, pages, work = HostPool("page_first"), names(3), tempfile.TemporaryDirectory(prefix="kvtier-test-")
        self.addCleanup(work.cleanup)
        own, hub = Path(work.name) / "own", Path(work.name) / "hub" / "models--org--a"
        own.mkdir()

        def of(path):
            settings = SimpleNamespace(model_path="hub/tiny", lora_paths=[SimpleNamespace(lora_path=path)])
            with (mock.patch.object(adapter, "_settings", lambda: settings),
                  mock.patch.object(adapter, "began", lambda: 2.0 ** 33),       # after the files were written
                  mock.patch.dict(os.environ, {"HF_HUB_CACHE": str(hub.parent)})):
                return self.storage(pool, {"model": None})

        def download(commit):
            for made in (hub / "refs", hub / "snapshots" / commit):
                made.mkdir(parents=True, exist_ok=True)
            (hub / "refs" / "main").write_text(commit)

        def replace(weights):
            (own / "adapter_model.safetensors").write_text(weights)

        for path, change, old, new in (("org/a", download, "a" * 40, "b" * 40), (str(own), replace, "1", "22")):
            change(old)
            self.assertEqual(self.kept(of(path), pool, pages), [True] * 3)
            self.assertEqual(of(path).batch_exists(pages), 3)
            change(new)
            self.assertEqual(of(path).batch_exists(pages), 0)
        with self.assertLogs(LOG, "WARNING") as log:
            self.assertEqual(self.kept(of("org/unseen"), pool, pages), [False] * 3)
        self.assertIn("adapter org/unseen: the commit that SGLang has loaded is not known", log.output[0])

    def test_calls_that_are_wrong_are_false_and_counted(self):
        storage, pages = self.storage(HostPool("page_first")), names(2)
        wrong = (Numbers(range(1, 2 * TOKENS + 1)), Numbers(range(5)), None, slots(900, 901))
        with self.assertLogs(LOG, "WARNING") as log:
            for indices in wrong:
                self.assertEqual((storage.batch_set_v1(pages, indices), storage.batch_get_v1(pages, indices)),
                                 ([False] * 2, [False] * 2))
            self.assertEqual(storage.batch_get_v2([PoolTransfer(PoolName.KV, None, keys=pages)]), {"kv": [False] * 2})
            self.assertEqual(storage.batch_set_v2([PoolTransfer(PoolName.KV, None, keys=pages)]), {"kv": [False] * 2})
            self.assertEqual((storage.batch_exists(None), storage.exists(None), storage.batch_exists(5)), (0, False, 0))
            self.assertEqual(storage.batch_exists_v2(5).kv_hit_pages, 0)
        self.assertEqual(storage.counts["errors"], 2 * len(wrong) + 2 + 3)
        self.assertGreater(len(log.output), 2)      # each sort in a line of its own
        self.assertEqual((storage.get("a"), storage.batch_get(pages), storage.set("a"), storage.batch_set(pages),
                          storage.clear()), (None, [None] * 2, False, False, False))

    def test_a_daemon_that_dies_or_stands_still_costs_pages_alone(self):
        pool, pages = HostPool("page_first"), names(4)
        storage = self.storage(pool)
        self.kept(storage, pool, pages)
        for act, undo in ((lambda: self.daemon.process.send_signal(signal.SIGSTOP),
                           lambda: self.daemon.process.send_signal(signal.SIGCONT)),
                          (self.daemon.kill, self.daemon.start)):
            act()
            self.assertEqual((storage.batch_get_v1(pages, slots(0, 1, 2, 3)), storage.batch_set_v1(pages, slots(
                0, 1, 2, 3)), storage.batch_exists(["none"])), ([False] * 4, [False] * 4, 0))
            undo()
            self.until(lambda: all(self.kept(storage, pool, pages)))
        self.assertEqual(storage.batch_exists(pages), 4)


class Refused(HiCache):
    """The engine runs uncached; one line says why."""

    def says(self, words: str, make):
        with self.subTest(words), self.assertLogs(LOG, "WARNING") as log:
            made = make()
        self.assertEqual(len([line for line in log.output if "runs uncached" in line]), 1, log.output)
        self.assertIn(words, log.output[0])
        self.assertEqual(made.counts["refused"], 1)
        return made

    def storage_says(self, words: str, pool=None, config=None, **extra) -> None:
        def make():
            storage = adapter.KvtierStorage(config or self.config(extra))
            storage.register_mem_pool_host(pool or HostPool("page_first"))
            storage.register_mem_host_pool_v2(pool or HostPool("page_first"), PoolName.KV)
            return storage

        storage, pages = self.says(words, make), names(2)
        self.assertEqual((storage.batch_set_v1(pages, slots(0, 1)), storage.batch_get_v1(pages, slots(0, 1)),
                          storage.batch_exists(pages), storage.exists("a"), storage.batch_exists_v2(pages).kv_hit_pages,
                          storage.batch_get_v2([PoolTransfer(PoolName.KV, slots(0), keys=["a"])])),
                         ([False] * 2, [False] * 2, 0, False, 0, {"kv": [False]}))
        storage.close()

    def test_a_storage_with_wrong_options(self):
        for name, least in (("timeout_ms", 1), ("prefetch_ms", 0)):
            for wrong in ("soon", None, -1, [1], True, float("inf")):
                self.storage_says(f"option {name} is {wrong!r}, must be a number of milliseconds, {least} or more",
                                  **{name: wrong})
        for wrong in ("zip", ["raw"], None):
            self.storage_says(f"option codec is {wrong!r}, must be 'fp8' or 'raw' or 'int8' or 'q4' or "
                               "'int8v4' or 'lossless'", codec=wrong)
        self.storage_says("interface_v1", interface_v1=0)
        self.storage_says("no option ttl: the options are backend_name, ", ttl=60)
        for wrong in (5, "text"):
            config = self.config()
            config.extra_config = wrong
            self.storage_says("", config=config)
        self.storage_says("AttributeError", config=SimpleNamespace(extra_config=self.options()))

    def test_a_storage_whose_pool_is_not_known(self):
        spiral = HostPool("page_first")
        spiral.layout = "page_spiral"
        spiral.get_page_buffer_meta = lambda indices: ([0], [0])
        self.storage_says("page_spiral", pool=spiral)
        self.storage_says("pool kv", pool=SimpleNamespace(page_size=TOKENS))

    def test_a_linker_that_cannot_be_linked(self):
        class Strange:
            layer_num = 3

        def broken():
            raise RuntimeError("no pool yet")

        scaled = DevicePool()
        scaled.k_scale_buffer = [1]
        for words, pool, extra, params in (
                ("option timeout_ms is 'soon'", DevicePool(), {"timeout_ms": "soon"}, {}),
                ("option codec is 'zip'", DevicePool(), {"codec": "zip"}, {}),
                ("a pool that SGLang links to nothing", Strange(), {}, {}),
                ("a KV cache with scales beside it", scaled, {}, {}),
                ("pool kv: unsupported operand", DevicePool(), {}, {"page_size": None}),
                ("RuntimeError: no pool yet", DevicePool(), {},
                 {"token_to_kv_pool_allocator": SimpleNamespace(get_kvcache=broken)})):
            linker = self.says(words, lambda: self.linker(pool, extra, params))
            kv = [PoolTransfer(PoolName.KV, device_indices=slots(0), keys=["a"])]
            self.assertEqual((linker.lookup("r", kv), linker.load("r", kv), linker.start_layer_wise_loading(),
                              linker.finish_layer_wise_loading(0), linker.cancel_queued_load("r"), linker.offload(kv),
                              linker.num_completed_offloads(), linker.pop_completed_offload()),
                             ([], False, -1, False, False, False, 0, False))
            linker.reset()
            linker.close()
            self.assertFalse(linker._thread.is_alive())

    def test_a_library_that_is_missing(self):
        with mock.patch.object(adapter, "Client", side_effect=OSError("libkvtier cannot be loaded")):
            storage = self.storage(HostPool("page_first"))
            self.assertEqual((storage.batch_exists(names(2)), storage.batch_set_v1(names(2), slots(0, 1))),
                             (0, [False] * 2))
        self.assertEqual(storage.counts["errors"], 2)


class OfLinker(HiCache):
    def offloaded(self, linker, pages, first: int = 0) -> bool:
        kv = PoolTransfer(PoolName.KV, device_indices=slots(*range(first, first + len(pages))), keys=pages)
        self.assertTrue(linker.offload([kv]))
        self.until(lambda: linker.num_completed_offloads() == 1)
        return linker.pop_completed_offload()

    def loaded(self, linker, pages, *places: int) -> bool:
        return linker.load("r", [PoolTransfer(PoolName.KV, device_indices=slots(*places), keys=pages)])

    def test_pages_go_and_come_and_are_a_host_pools_too(self):
        pool, pages = DevicePool(), names(4)
        for i, name in enumerate(pages):
            pool.fill(i, name)
        self.assertTrue(self.offloaded(self.linker(pool), pages))
        into = DevicePool()
        linker = self.linker(into)
        self.assertEqual(linker.lookup("r", [PoolTransfer(PoolName.KV, keys=[*pages, "more"])]), [1, 2, 3, 4])
        self.assertEqual(linker.start_layer_wise_loading(), -1)
        self.assertTrue(self.loaded(linker, pages, 9, 8, 7, 6))
        index = linker.start_layer_wise_loading()
        self.assertTrue(linker.finish_layer_wise_loading(index))
        self.assertEqual([into.content(9 - i) for i in range(4)], [pool.content(i) for i in range(4)])
        host = HostPool("page_head")
        self.assertEqual(self.storage(host).batch_get_v1(pages, slots(0, 1, 2, 3)), [True] * 4)
        self.assertEqual(len(host.content(3)), len(pool.content(3)))

    def test_a_load_that_is_not_whole_is_computed(self):
        pool, pages = DevicePool(), names(3)
        linker = self.linker(pool)
        self.assertTrue(self.offloaded(linker, pages))
        self.assertFalse(self.loaded(linker, [*pages, "none"], 4, 5, 6, 7))
        self.assertEqual(linker.start_layer_wise_loading(), -1)
        self.assertTrue(self.loaded(linker, pages, 4, 5, 6))
        self.assertTrue(linker.cancel_queued_load("r"))
        self.assertFalse(linker.cancel_queued_load("r"))
        self.assertFalse(self.loaded(linker, pages, 4, 5, 600))
        self.assertEqual(linker.counts["errors"], 1)

    def test_with_several_ranks_a_load_that_is_not_whole_fails_its_batch(self):
        linker = self.linker(DevicePool(), params={"pp_size": 2})
        self.assertTrue(self.loaded(linker, ["none"], 4))
        index = linker.start_layer_wise_loading()
        self.assertFalse(linker.finish_layer_wise_loading(index))

    def test_calls_in_a_wrong_order_raise_nothing(self):
        linker = self.linker(DevicePool())
        self.assertEqual((linker.pop_completed_offload(), linker.counts["errors"]), (False, 0))
        with self.assertLogs(LOG, "WARNING"):
            self.assertEqual((linker.pop_completed_offload(), linker.finish_layer_wise_loading(77)), (False, False))
            self.assertEqual((linker.lookup("r", 5), linker.load("r", None), linker.offload(None)), ([], False, False))
        kv = PoolTransfer(PoolName.KV, device_indices=Numbers(range(5)), keys=["a"])
        with self.assertLogs(LOG, "WARNING"):
            self.assertTrue(linker.offload([kv]))           # its thread lives on
            self.until(lambda: linker.num_completed_offloads() == 1)
        self.assertFalse(linker.pop_completed_offload())
        self.assertTrue(linker._thread.is_alive())
        linker.reset()

    def test_a_daemon_that_is_killed_costs_pages_alone(self):
        pool, pages = DevicePool(), names(3)
        linker = self.linker(pool)
        self.assertTrue(self.offloaded(linker, pages))
        self.daemon.kill()
        self.assertEqual((self.loaded(linker, pages, 4, 5, 6), self.offloaded(linker, pages)), (False, False))
        self.daemon.start()
        self.until(lambda: self.offloaded(linker, pages))


class Lent(unittest.TestCase):
    """Pages of a GPU that a daemon which stands still may yet write."""

    def wait(self, lent, said) -> tuple:
        pool = HostPool("page_first")
        layout = adapter.host_layout(pool)._replace(regions=[Region(4096, cuda=4096)])

        def stands_still(op, timeout_ms):
            raise Error(errno.ETIMEDOUT, "no answer")

        store = Store(lambda: None, 1, 0, said.append)
        got = SimpleNamespace(client=SimpleNamespace(wait=stands_still, close=lambda: None))
        kv = Pool(layout, geometry_of(layout, "m", {}, TOKENS, 0, 1, Codec.RAW))
        with mock.patch.object(sglang_core, "lent", lent), mock.patch.object(sglang_core, "LENT_S", 0.2):
            ended = threading.Event()

            def load() -> None:
                with self.assertRaises(Error) as error:
                    store._wait(got, [SimpleNamespace(id=7)], kv)
                self.assertEqual(error.exception.errno, errno.ETIMEDOUT)
                ended.set()

            threading.Thread(target=load, daemon=True).start()
            self.assertTrue(ended.wait(PATIENT_S), "it waits for ever")
        return store.counts["lent"], said

    def test_a_load_waits_until_they_are_free(self):
        answers = [[SimpleNamespace(op=7, daemon=1)], [SimpleNamespace(op=8, daemon=1)]]
        self.assertEqual(self.wait(lambda: answers.pop(0), []), (0, []))
        self.assertEqual(answers, [])

    def test_however_long_and_says_so(self):
        def lent():
            return [SimpleNamespace(op=7, daemon=42), SimpleNamespace(op=8, daemon=1)] if len(said) < 2 else []

        said = []
        count, _ = self.wait(lent, said)
        self.assertEqual((count, len(said)), (1, 2))
        self.assertIn("kill -CONT 42", said[0])
