# SPDX-License-Identifier: Apache-2.0
"""An engine in Python whose tensor lies in many allocations, as torch's expandable segments do. The
driver is whichever libcuda.so.1 the loader finds. Arguments: the daemon's socket."""
import ctypes as C
import sys

from torch_engine import Emulated       # first: it says where kvtier is
import kvtier
from kvtier import BLOCK_OK, Dtype, Geometry, Kind, Segment

PARTS, PAGES = 40, 320
TOKENS, LAYERS, HEADS, DIM = 16, 2, 2, 64
ROW, PAGE = HEADS * DIM * 2, 256 << 10
USED = 2 * LAYERS * TOKENS * ROW


class Prop(C.Structure):
    _fields_ = [("type", C.c_uint), ("handle_types", C.c_uint), ("location", C.c_uint), ("id", C.c_int),
                ("meta", C.c_void_p), ("flags", C.c_ubyte * 8)]


class Access(C.Structure):
    _fields_ = [("location", C.c_uint), ("id", C.c_int), ("flags", C.c_uint)]


class Tensor(Emulated.Tensor):
    """[page][byte], of FP16."""

    def __init__(self, driver):
        prop, access = Prop(1, 1, 1, 0), Access(1, 0, 3)
        unit, base = C.c_size_t(), C.c_uint64()
        driver.call("cuMemGetAllocationGranularity", 10020, C.byref(unit), C.byref(prop), C.c_int(0))
        self.bytes, self.handles = C.c_size_t(PARTS * unit.value), [C.c_uint64() for _ in range(PARTS)]
        assert self.bytes.value >= PAGES * PAGE
        driver.call("cuMemAddressReserve", 10020, C.byref(base), self.bytes, C.c_size_t(0), C.c_uint64(0),
                    C.c_uint64(0))
        for i, handle in enumerate(self.handles):
            at = C.c_uint64(base.value + i * unit.value)
            driver.call("cuMemCreate", 10020, C.byref(handle), unit, C.byref(prop), C.c_uint64(0))
            driver.call("cuMemMap", 10020, at, unit, C.c_size_t(0), handle, C.c_uint64(0))
        driver.call("cuMemSetAccess", 10020, base, self.bytes, C.byref(access), C.c_size_t(1))
        super().__init__((PAGES, PAGE // 2), base.value)

    def page(self, i):
        return Emulated.Tensor((USED // 2,), self.address + i * PAGE)

    def free(self, driver):
        driver.call("cuMemUnmap", 10020, C.c_uint64(self.address), self.bytes)
        for handle in self.handles:
            driver.call("cuMemRelease", 10020, handle)
        driver.call("cuMemAddressFree", 10020, C.c_uint64(self.address), self.bytes)


def segments():
    plane = TOKENS * ROW
    return [Segment(kind, (2 * layer + i) * plane, PAGE, layer=layer, head_stride=2 * DIM, token_stride=ROW)
            for layer in range(LAYERS) for i, kind in enumerate((Kind.K, Kind.V))]


def main():
    driver = Emulated(late=1)
    tensor, to = Tensor(driver), PAGES - 1
    image = bytes((7 * i) % 61 if i % 2 else 0 for i in range(USED))
    driver.write(tensor.page(0), image)
    driver.settle()
    geometry = Geometry("expandable@1", "test", Dtype.FP16, LAYERS, HEADS, DIM, DIM, TOKENS, codec=kvtier.Codec.RAW)
    with kvtier.Client(sys.argv[1], timeout_ms=20000) as client:
        with client.open_space(geometry, [kvtier.torch_region(tensor)], segments()) as space:
            print(space.memory)
            assert space.memory.startswith(f"CUDA descriptor of {PARTS} allocations"), space.memory
            keys = space.keys(list(range(TOKENS)))
            assert client.wait(space.store(keys, [0])).blocks == [BLOCK_OK]
            assert client.wait(space.load(keys, [to])).blocks == [BLOCK_OK]
    back = driver.read(tensor.page(to))
    driver.settle()
    assert back() == image
    tensor.free(driver)
    driver.close()


if __name__ == "__main__":
    main()
