# SPDX-License-Identifier: Apache-2.0
"""The engine of gpu_torch.sh: KV tensors of two layouts, stored from one and loaded into the other.

    torch_engine.py BUILD cuda|cpu|emulated

cuda: tensors of torch on this machine's GPU. cpu: of torch without one, which tries this program. emulated: stand-ins
for tensors, in the memory of the emulated driver, which torch itself cannot use. With $KVTIER_SOCKET
the daemon is the one there; else the program starts one.
"""
import array
import contextlib
import ctypes as C
import errno
import os
import struct
import sys
import tempfile
import unittest
from math import prod
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "client" / "examples"), str(TREE / "client" / "python")]

import kvtier  # noqa: E402
from kvtier import Codec, Dtype, Geometry, Kind, Segment  # noqa: E402
from llama_demo import Daemon  # noqa: E402

LAYERS, HEADS, DIM, TOKENS, PAGES, BLOCKS = 2, 2, 64, 16, 8, 5
ROW, PLANE = 2 * DIM, 2 * DIM * HEADS * TOKENS
POISON = b"\xa5"
CONFIG = """[host]
bytes = 64M
slab_bytes = 2M
huge_pages = no
[nvme]
bytes = 0
[gpu]
devices = {devices}
staging_bytes = 8M
"""


class Together:
    """vLLM's FlashAttention: [K, V][page][token][head][dim], a tensor a layer."""
    shape = (2, PAGES, TOKENS, HEADS, DIM)

    @staticmethod
    def segments():
        return [Segment(kind, kv * PAGES * PLANE, PLANE, layer=layer, region=layer, head_stride=ROW,
                        token_stride=ROW * HEADS)
                for layer in range(LAYERS) for kv, kind in enumerate((Kind.K, Kind.V))]

    @staticmethod
    def row(kv, page, token, head):
        """Where in a layer's tensor a row of DIM values begins."""
        return ROW * (((kv * PAGES + page) * TOKENS + token) * HEADS + head)


class HeadMajor:
    """FlashInfer's HND: [page][K, V][head][token][dim], a tensor a layer."""
    shape = (PAGES, 2, HEADS, TOKENS, DIM)

    @staticmethod
    def segments():
        return [Segment(kind, kv * PLANE, 2 * PLANE, layer=layer, region=layer, head_stride=ROW * TOKENS,
                        token_stride=ROW)
                for layer in range(LAYERS) for kv, kind in enumerate((Kind.K, Kind.V))]

    @staticmethod
    def row(kv, page, token, head):
        return ROW * (((page * 2 + kv) * HEADS + head) * TOKENS + token)


class Torch:
    """Tensors of torch, on a GPU or without one."""

    def __init__(self, device: str) -> None:
        import torch
        self.torch, self.device = torch, torch.device(device)
        self.stream = torch.cuda.Stream() if device == "cuda" else None
        self.kept = []      # what is being copied from

    def _on_stream(self):
        return self.torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def make(self, shape):
        return self.torch.empty(shape, dtype=self.torch.bfloat16, device=self.device)

    def write(self, tensor, data: bytes) -> None:
        """Put into the stream: it may not have happened yet when this returns."""
        host = self.torch.frombuffer(bytearray(data), dtype=self.torch.bfloat16).reshape(tensor.shape)
        if self.stream:
            host = host.pin_memory()
        self.kept.append(host)
        with self._on_stream():
            tensor.copy_(host, non_blocking=True)

    def read(self, tensor):
        """Likewise; the bytes are in what it returns, once settle() has returned."""
        host = self.torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.stream is not None)
        with self._on_stream():
            host.copy_(tensor, non_blocking=True)
        return lambda: array.array("h", host.view(self.torch.int16).flatten().tolist()).tobytes()

    def settle(self) -> None:
        if self.stream:
            self.stream.synchronize()
        self.kept.clear()

    def close(self) -> None:
        pass


class Emulated:
    """The emulated driver's memory in tensors that have what kvtier.torch_region() asks for."""

    class Tensor:
        is_cuda = True

        def __init__(self, shape, address: int) -> None:
            self.shape, self.address = shape, address

        def stride(self):
            return [prod(self.shape[i + 1:]) for i in range(len(self.shape))]

        def element_size(self) -> int:
            return 2

        def data_ptr(self) -> int:
            return self.address

    def __init__(self, late: int = 40, waits: int = 0) -> None:
        library = C.CDLL("libcuda.so.1")
        self._find = library.cuGetProcAddress_v2
        context, stream = C.c_void_p(), C.c_void_p()
        self.made, self.pinned = [], []
        settings = os.environ.get("KVTIER_EMU", "")
        # what forgets to wait for this stream is too early
        os.environ["KVTIER_EMU"] = f"{settings} late={late} waits={waits}"
        self.call("cuInit", 2000, C.c_uint(0))
        os.environ["KVTIER_EMU"] = settings                 # the daemon's
        self.call("cuDevicePrimaryCtxRetain", 7000, C.byref(context), C.c_int(0))
        self.call("cuCtxSetCurrent", 4000, context)
        self.call("cuStreamCreateWithPriority", 5050, C.byref(stream), C.c_uint(1), C.c_int(0))
        self.stream = stream.value

    def call(self, name: str, version: int, *arguments) -> None:
        address, status = C.c_void_p(), C.c_int()
        code = self._find(name.encode(), C.byref(address), C.c_int(version), C.c_uint64(0), C.byref(status))
        assert code == 0 and status.value == 0, (name, code, status.value)
        code = C.CFUNCTYPE(C.c_int)(address.value)(*arguments)
        assert code == 0, (name, code)

    def _pin(self, n: int) -> C.c_void_p:
        host = C.c_void_p()
        self.call("cuMemHostAlloc", 2020, C.byref(host), C.c_size_t(n), C.c_uint(0))
        self.pinned.append(host)
        return host

    def make(self, shape):
        address = C.c_uint64()
        self.call("cuMemAlloc", 3020, C.byref(address), C.c_size_t(2 * prod(shape)))
        self.made.append(address)
        return self.Tensor(shape, address.value)

    def write(self, tensor, data: bytes) -> None:
        host = self._pin(len(data))
        C.memmove(host, data, len(data))
        self.call("cuMemcpyHtoDAsync", 3020, C.c_uint64(tensor.address), host, C.c_size_t(len(data)),
                  C.c_void_p(self.stream))

    def read(self, tensor):
        n = 2 * prod(tensor.shape)
        host = self._pin(n)
        self.call("cuMemcpyDtoHAsync", 3020, host, C.c_uint64(tensor.address), C.c_size_t(n),
                  C.c_void_p(self.stream))
        return lambda: C.string_at(host, n)

    def settle(self) -> None:
        self.call("cuStreamSynchronize", 2000, C.c_void_p(self.stream))

    def close(self) -> None:
        self.settle()
        for host in self.pinned:
            self.call("cuMemFreeHost", 2000, host)
        for address in self.made:
            self.call("cuMemFree", 3020, address)
        self.call("cuStreamDestroy", 4000, C.c_void_p(self.stream))
        self.call("cuDevicePrimaryCtxRelease", 11000, C.c_int(0))


def content(chain: int, block: int, layer: int, kv: int, token: int, head: int) -> bytes:
    """A row: whole numbers from -8 to 8, which FP8 holds exactly."""
    seed = (((chain * 31 + block) * 37 + layer) * 2 + kv) * 1009 + token * 101 + head * 53
    return b"".join(struct.pack("<f", (seed + 7 * d) % 17 - 8)[2:] for d in range(DIM))


class Pages:
    """A space over the KV tensors of one layout."""

    def __init__(self, memory, client, layout, geometry) -> None:
        self.memory, self.layout = memory, layout
        self.tensors = [memory.make(layout.shape) for _ in range(LAYERS)]
        self.data = [POISON * (2 * prod(layout.shape))] * LAYERS
        self.poison()
        self.space = client.open_space(geometry, [kvtier.torch_region(t) for t in self.tensors],
                                       layout.segments())

    def poison(self) -> None:
        for tensor, data in zip(self.tensors, self.data):
            self.memory.write(tensor, POISON * len(data))
        self.memory.settle()

    def rows(self, pages):
        return [(block, layer, kv, token, head, self.layout.row(kv, page, token, head))
                for block, page in enumerate(pages) for layer in range(LAYERS) for kv in range(2)
                for token in range(TOKENS) for head in range(HEADS)]

    def expected(self, chain: int, pages):
        """A tensor's bytes for each layer: the blocks of the chain in these pages, poison everywhere else."""
        ret = [bytearray(POISON * len(data)) for data in self.data]
        for block, layer, kv, token, head, at in self.rows(pages):
            ret[layer][at:at + ROW] = content(chain, block, layer, kv, token, head)
        return [bytes(data) for data in ret]

    def fill(self, chain: int, pages) -> None:
        for tensor, data in zip(self.tensors, self.expected(chain, pages)):
            self.memory.write(tensor, data)


class TorchEngine(unittest.TestCase):
    memory = build = None

    def setUp(self):
        path = os.environ.get("KVTIER_SOCKET")
        if not path:
            work = tempfile.TemporaryDirectory(prefix="kvtier-test-")
            self.addCleanup(work.cleanup)
            devices = "auto" if self.memory.stream is None else "required"
            daemon = Daemon(self.build, Path(work.name), CONFIG.format(devices=devices))
            self.addCleanup(daemon.close)
            path = daemon.socket
        self.client = kvtier.Client(path, name="torch")
        self.addCleanup(self.client.close)
        self.options = {} if self.memory.stream is None else {"stream": self.memory.stream}

    def goes(self, chain: int, source: Pages, target: Pages) -> None:
        """A store right behind the work that fills the pages, a load that the reading work waits for; no
        synchronisation by the CPU in between."""
        pages = list(range(1, 1 + BLOCKS))
        turned = pages[::-1]
        keys = source.space.keys([chain * 1000 + i for i in range(BLOCKS * TOKENS)])
        source.fill(chain, pages)
        stored = self.client.wait(source.space.store(keys, pages, **self.options))
        self.assertEqual((stored.status, stored.ok), (0, BLOCKS))
        target.poison()
        op = target.space.load(keys, turned, **self.options)
        waits = bool(self.options)
        try:
            if waits:
                self.client.stream_wait(op, self.memory.stream)
        except kvtier.Error as error:       # the library itself brings the pages: staged
            self.assertEqual(error.errno, errno.EOPNOTSUPP)
            waits = False
        if waits:
            got = [self.memory.read(t) for t in target.tensors]
        loaded = self.client.wait(op)
        self.assertEqual((loaded.status, loaded.ok), (0, BLOCKS))
        if not waits:
            got = [self.memory.read(t) for t in target.tensors]
        self.memory.settle()
        for layer, (read, want) in enumerate(zip(got, target.expected(chain, turned))):
            self.assertTrue(read() == want, f"layer {layer} of {target.layout.__name__} has other bytes")

    def there_and_back(self, codec: Codec) -> None:
        geometry = Geometry("torch", "test", Dtype.BF16, LAYERS, HEADS, DIM, DIM, TOKENS, codec=codec)
        together = Pages(self.memory, self.client, Together, geometry)
        head_major = Pages(self.memory, self.client, HeadMajor, geometry)
        print(f"{codec.name}: pages are reached by {together.space.memory!r}, {head_major.space.memory!r}")
        self.goes(1, together, head_major)
        self.goes(2, head_major, together)
        together.space.close()
        head_major.space.close()

    def test_two_layouts_share_blocks_as_they_are(self):
        self.there_and_back(Codec.RAW)

    def test_two_layouts_share_blocks_in_fp8(self):
        self.there_and_back(Codec.FP8)

    def test_a_tensor_is_a_region(self):
        tensor = self.memory.make(Together.shape)
        region = kvtier.torch_region(tensor)
        self.assertEqual(region.length, 2 * prod(Together.shape))
        self.assertEqual(region.cuda or region.base, tensor.data_ptr())
        self.assertEqual(bool(region.cuda), self.memory.stream is not None)

    def test_a_view_is_a_region_of_its_own(self):
        if isinstance(self.memory, Emulated):
            self.skipTest("a view is torch's own affair")
        tensor = self.memory.make(Together.shape)
        region = kvtier.torch_region(tensor[1, :, ::2])
        self.assertEqual((region.cuda or region.base) - tensor.data_ptr(), PAGES * PLANE)
        self.assertEqual(region.length, PAGES * PLANE - ROW * HEADS)


def main() -> None:
    build, kind = sys.argv[1:3]
    TorchEngine.build = Path(build).resolve()
    TorchEngine.memory = Emulated() if kind == "emulated" else Torch(kind)
    result = unittest.main(argv=sys.argv[:1] + sys.argv[3:], exit=False, verbosity=2).result
    TorchEngine.memory.close()
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
