# SPDX-License-Identifier: Apache-2.0
"""An engine in Python whose tensor lies in many allocations, as torch's expandable segments do. The
driver is whichever libcuda.so.1 the loader finds. Arguments: the daemon's socket."""
import ctypes as C
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "client" / "python"))

import kvtier  # noqa: E402
from kvtier import BLOCK_OK, Dtype, Geometry, Kind, Segment  # noqa: E402

PARTS, PAGES = 40, 320
TOKENS, LAYERS, HEADS, DIM = 16, 2, 2, 64
ROW, PAGE = HEADS * DIM * 2, 256 << 10
VERSIONS = {"cuInit": 2000, "cuDevicePrimaryCtxRetain": 7000, "cuCtxSetCurrent": 4000, "cuMemAddressReserve": 10020,
            "cuMemCreate": 10020, "cuMemMap": 10020, "cuMemSetAccess": 10020, "cuMemUnmap": 10020,
            "cuMemRelease": 10020, "cuMemAddressFree": 10020, "cuMemcpyHtoDAsync": 3020, "cuMemcpyDtoHAsync": 3020,
            "cuStreamCreateWithPriority": 5050, "cuStreamSynchronize": 2000, "cuDevicePrimaryCtxRelease": 11000,
            "cuStreamDestroy": 4000, "cuMemGetAllocationGranularity": 10020}


class Prop(C.Structure):
    _fields_ = [("type", C.c_uint), ("handle_types", C.c_uint), ("location", C.c_uint), ("id", C.c_int),
                ("meta", C.c_void_p), ("flags", C.c_ubyte * 8)]


class Access(C.Structure):
    _fields_ = [("location", C.c_uint), ("id", C.c_int), ("flags", C.c_uint)]


class Driver:
    """Its calls by name; a result that is not 0 is an error."""

    def __init__(self):
        self.library = C.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        found, state = C.c_void_p(), C.c_uint()
        assert self.library.cuGetProcAddress_v2(name.encode(), C.byref(found), VERSIONS[name], C.c_uint64(0),
                                                C.byref(state)) == 0 and found.value, name
        entry = C.CFUNCTYPE(C.c_int)(found.value)

        def call(*arguments):
            result = entry(*arguments)
            assert result == 0, f"{name}: {result}"
        return call


class Tensor:
    """What torch_region() asks of a tensor: [page][byte], of FP16."""
    is_cuda, shape = True, (PAGES, PAGE // 2)

    def __init__(self, driver):
        prop, access = Prop(1, 1, 1, 0), Access(1, 0, 3)
        unit, self.base = C.c_size_t(), C.c_uint64()
        driver.cuMemGetAllocationGranularity(C.byref(unit), C.byref(prop), 0)
        self.bytes, self.handles = PARTS * unit.value, [C.c_uint64() for _ in range(PARTS)]
        assert self.bytes >= PAGES * PAGE
        driver.cuMemAddressReserve(C.byref(self.base), C.c_size_t(self.bytes), C.c_size_t(0), C.c_uint64(0),
                                   C.c_uint64(0))
        for i, handle in enumerate(self.handles):
            driver.cuMemCreate(C.byref(handle), unit, C.byref(prop), C.c_uint64(0))
            driver.cuMemMap(C.c_uint64(self.base.value + i * unit.value), unit, C.c_size_t(0), handle, C.c_uint64(0))
        driver.cuMemSetAccess(self.base, C.c_size_t(self.bytes), C.byref(access), C.c_size_t(1))

    def free(self, driver):
        driver.cuMemUnmap(self.base, C.c_size_t(self.bytes))
        for handle in self.handles:
            driver.cuMemRelease(handle)
        driver.cuMemAddressFree(self.base, C.c_size_t(self.bytes))

    def stride(self):
        return PAGE // 2, 1

    def element_size(self):
        return 2

    def data_ptr(self):
        return self.base.value


def segments():
    plane = TOKENS * ROW
    return [Segment(kind, (2 * layer + i) * plane, PAGE, layer=layer, head_stride=2 * DIM, token_stride=ROW)
            for layer in range(LAYERS) for i, kind in enumerate((Kind.K, Kind.V))]


def main():
    driver, context, stream = Driver(), C.c_void_p(), C.c_void_p()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(C.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    driver.cuStreamCreateWithPriority(C.byref(stream), 1, 0)
    tensor = Tensor(driver)
    used = 2 * LAYERS * TOKENS * ROW
    image = (C.c_ubyte * used)(*[(7 * i) % 61 if i % 2 else 0 for i in range(used)])
    back = (C.c_ubyte * used)()
    to, source = PAGES - 1, 0
    driver.cuMemcpyHtoDAsync(C.c_uint64(tensor.data_ptr()), image, C.c_size_t(used), stream)
    driver.cuStreamSynchronize(stream)
    geometry = Geometry("expandable@1", "test", Dtype.FP16, LAYERS, HEADS, DIM, DIM, TOKENS, codec=kvtier.Codec.RAW)
    with kvtier.Client(sys.argv[1], timeout_ms=20000) as client:
        with client.open_space(geometry, [kvtier.torch_region(tensor)], segments()) as space:
            print(space.memory)
            assert space.memory.startswith(f"CUDA descriptor of {PARTS} allocations"), space.memory
            keys = space.keys(list(range(TOKENS)))
            assert client.wait(space.store(keys, [source])).blocks == [BLOCK_OK]
            assert client.wait(space.load(keys, [to])).blocks == [BLOCK_OK]
    driver.cuMemcpyDtoHAsync(back, C.c_uint64(tensor.data_ptr() + to * PAGE), C.c_size_t(used), stream)
    driver.cuStreamSynchronize(stream)
    assert bytes(back) == bytes(image)
    tensor.free(driver)
    driver.cuStreamDestroy(stream)
    driver.cuDevicePrimaryCtxRelease(0)


main()
