# SPDX-License-Identifier: Apache-2.0
"""The engine of gpu_vllm.sh: vLLM's double of tests/sys, with its KV in a GPU's memory."""
import ctypes as C
import functools
import signal
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

from sys_python_engines_vllm import Vllm        # first: it puts the doubles in their places
import torch_double
import vllm_double
from expandable import Access, Prop
from kvtier.adapters import vllm_core
from torch_engine import Emulated
from world import host


class Row:
    """Bytes in the GPU's memory. The engine's stream writes them: that may not have happened when the call returns."""
    driver = None

    def __init__(self, address: int, n: int) -> None:
        self.address, self.shape, self.n = address, (n // 2,), n

    def __len__(self) -> int:
        return self.n

    def __setitem__(self, _, data: bytes) -> None:
        self.driver.write(self, data)


class Tensor(torch_double.Tensor):
    """memory: a Row."""
    is_cuda, device = True, torch_double.Device("cuda:0")

    def data_ptr(self) -> int:
        return self.memory.address + self.offset * self.dtype.size

    def untyped_storage(self) -> SimpleNamespace:
        return SimpleNamespace(data_ptr=lambda: self.memory.address, nbytes=lambda: self.memory.n)

    def view(self, dtype, shape, strides=None, offset: int = 0) -> "Tensor":
        return Tensor(self.memory, dtype, shape, strides, offset)

    def bytes_at(self, value: int, n: int) -> Row:
        return Row(self.memory.address + (self.offset + value) * self.dtype.size, n * self.dtype.size)


class Gate:
    """Work of the engine's stream that is not done until the gate is opened."""

    def __init__(self, driver) -> None:
        word, at = C.c_void_p(), C.c_uint64()
        driver.call("cuMemHostAlloc", 2020, C.byref(word), C.c_size_t(8), C.c_uint(2))      # mapped for the GPU
        driver.call("cuMemHostGetDevicePointer", 3020, C.byref(at), word, C.c_uint(0))
        self._word = C.c_uint64.from_address(word.value)
        self._word.value = 0
        driver.pinned.append(word)
        driver.call("cuStreamWaitValue64", 11070, C.c_void_p(driver.stream), at, C.c_uint64(1), C.c_uint(1))

    def open(self) -> None:
        self._word.value = 1


class Allocator:
    """vLLM's CuMemAllocator: memory that no other process can open, at addresses that stay when it goes."""

    def __init__(self, driver, size: int) -> None:
        self._call, self._settle, self._prop, unit = driver.call, driver.settle, Prop(1, 0, 1, 0), C.c_size_t()
        self._call("cuMemGetAllocationGranularity", 10020, C.byref(unit), C.byref(self._prop), C.c_int(0))
        self._size = C.c_size_t(-(-size // unit.value) * unit.value)
        self.base, self._handle = C.c_uint64(), C.c_uint64()
        self._call("cuMemAddressReserve", 10020, C.byref(self.base), self._size, C.c_size_t(0), C.c_uint64(0),
                   C.c_uint64(0))
        self.wake_up()

    def wake_up(self, tags=None) -> None:
        if tags and "kv_cache" not in tags:
            return
        access = Access(1, 0, 3)
        self._call("cuMemCreate", 10020, C.byref(self._handle), self._size, C.byref(self._prop), C.c_uint64(0))
        self._call("cuMemMap", 10020, self.base, self._size, C.c_size_t(0), self._handle, C.c_uint64(0))
        self._call("cuMemSetAccess", 10020, self.base, self._size, C.byref(access), C.c_size_t(1))

    def sleep(self, offload_tags=None) -> None:
        self._settle()
        self._call("cuMemUnmap", 10020, self.base, self._size)
        self._call("cuMemRelease", 10020, self._handle)

    def discard(self, tags) -> None:
        if "kv_cache" in tags:
            self.sleep()

    def close(self) -> None:
        self.sleep()
        self._call("cuMemAddressFree", 10020, self.base, self._size)


class Engine(vllm_double.Engine):
    BLOCKS, LAYERS, DEVICE = 64, 2, "cuda"

    def _raw(self, size: int) -> Tensor:
        assert self.worker.get_mem_pool_context() is None, "memory that the daemon maps is a CPU's"
        address = Row.driver.make((size // 2,)).address
        return Tensor(Row(address, size), torch_double.int8, [size])

    def holds(self, tokens, block: int, group: int, page: int) -> bool:
        rows = self._rows(page, group)
        reads = [Row.driver.read(row) for row in rows]
        Row.driver.settle()
        return all(read() == self._computed(tokens, block, group, i, len(row))
                   for i, (row, read) in enumerate(zip(rows, reads)))


class OnGpu(Vllm):
    settings = host(16) + "[gpu]\ndevices = required\nstaging_bytes = 8M\n"
    tokens = list(range(43))        # five full blocks
    kind = functools.partial(Engine, dtype=torch_double.bfloat16)

    def test_another_engine_continues_where_one_stopped(self):
        for layout in ("blocks", "kv", *vllm_double.TOGETHER):
            with self.subTest(layout):
                cold, warm = (self.engine({"extras": layout}, layout=layout) for _ in range(2))
                self.assertEqual(cold.answer(self.tokens), 0)
                self.assertEqual([warm.answer(self.tokens + [7] * 9), warm.answer(self.tokens + [7] * 9)], [5, 6])
                space = warm.worker._worker._line.got[1][0]
                print(f"{layout}: pages are reached by {space.memory!r}")
                self.assertIn("CUDA", space.memory)

    def test_latents_and_their_rope_part(self):
        rope = 16
        mla = {"use_mla": True, "hf_text_config": SimpleNamespace(qk_rope_head_dim=rope)}
        cold, warm = (self.engine(layout="latents", model=mla) for _ in range(2))
        self.assertEqual([cold.answer(self.tokens), warm.answer(self.tokens)], [0, 5])
        geometry = warm.worker._geometries[0]
        self.assertEqual((geometry.head_dim_k, geometry.head_dim_v, geometry.opaque_bytes),
                         (2 * Engine.HEADS * Engine.DIM - rope, 0, 2 * rope * Engine.TOKENS * Engine.LAYERS))

    def test_groups_lie_in_one_memory(self):
        cold, warm = self.engine(groups=2), self.engine(groups=2)
        self.assertEqual([cold.answer(self.tokens), warm.answer(self.tokens)], [0, 5])

    def test_states_beside_blocks(self):
        cold, warm = (self.engine(**vllm_double.hybrid()) for _ in range(2))
        cold.computes_states(self.tokens, 3)
        cold.until(lambda *_: not cold.scheduler.has_pending_push_work())
        self.assertTrue(warm.loads_states(self.tokens, 3))

    def test_pages_go_and_come_in_vllms_sleep_mode(self):
        """The emulated driver tells of memory that is touched while it is not there."""
        allocators = []

        def raw(_, size: int) -> Tensor:
            allocators.append(Allocator(Row.driver, size))
            return Tensor(Row(allocators[0].base.value, size), torch_double.int8, [size])

        module = SimpleNamespace(CuMemAllocator=SimpleNamespace(get_instance=lambda: allocators[0]))
        with mock.patch.object(Engine, "_raw", raw), mock.patch.dict(sys.modules, {
                "vllm.device_allocator.cumem": module}):
            engine = self.engine(model={"enable_sleep_mode": True})
        allocator, sleeps = allocators[0], ({"offload_tags": ("weights",)}, {"tags": ("kv_cache",)})
        self.assertEqual(engine.answer(self.tokens), 0)
        for n, (name, how) in enumerate(zip(("sleep", "discard"), sleeps), 1):
            request, pages = engine.request([n] * 43), [engine.take(6)]
            engine.scheduler.get_num_new_matched_tokens(request, 0)
            engine.step(new=[(request, 0, 43, tuple(pages))],       # its save is under way
                        forward=lambda: [engine.put([n] * 43, i, 0, pages[0][i]) for i in range(5)])
            engine.finish(request, pages)
            getattr(allocator, name)(**how)
            self.assertTrue(engine.manager.reset_prefix_cache())
            allocator.wake_up(["weights"])
            engine.worker.get_finished(set())
            self.assertIsNone(engine.worker._worker._line.got)
            allocator.wake_up(["kv_cache"])
            for tokens in (self.tokens, [n] * 43):
                self.until(lambda: engine.answer(tokens) == 5)
        engine.scheduler.shutdown()
        engine.worker.shutdown()
        allocator.close()

    def test_blocks_are_held_while_the_daemon_may_write(self):
        self.engine().answer(self.tokens)
        engine = self.engine({"timeout_ms": 6000})      # the op is seen in the daemon before it ends
        request, pages = engine.request(self.tokens), [engine.take(6)]
        matched, _ = engine.scheduler.get_num_new_matched_tokens(request, 0)
        engine.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: tuple(pages)), matched)
        named, gate = set(), Gate(Row.driver)
        self.addCleanup(gate.open)
        engine.step()
        self.until(lambda: self.daemon.stats()["ops"]["outstanding"] == 1)      # it waits for the stream
        self.daemon.process.send_signal(signal.SIGSTOP)
        with mock.patch.object(vllm_core, "LENT_LOOK_S", 0):
            engine.until(lambda got, invalid: named.update(invalid) or request.request_id in got.failed_recving)
            engine.give_back(pages)         # it is computed from the beginning, in other blocks
            gate.open()
            for _ in range(20):
                engine.step()
            self.assertEqual((named, set(pages[0][:5]) & set(engine.pool.free)), (set(), set()))
            self.daemon.process.send_signal(signal.SIGCONT)
            engine.until(lambda *_: set(pages[0]) <= set(engine.pool.free))
        # a load waits for the stream: first for what answers without the daemon have put there
        self.until(lambda: Row.driver.settle() or engine.answer(self.tokens) == 5)


def main() -> None:
    Row.driver = Emulated(late=10, waits=1)     # as a driver does: what frees memory waits for all streams
    stream = SimpleNamespace(cuda_stream=Row.driver.stream)
    sys.modules["torch"].cuda.current_stream = lambda: stream
    result = unittest.main(exit=False, verbosity=2).result
    Row.driver.close()
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
