# SPDX-License-Identifier: Apache-2.0
"""torch_double.py - the part of torch that kvtier.vllm, kvtier.sglang and kvtier.transformers use, over memory of the
standard library.

A Tensor has a dtype, a shape, strides and a place in a memory, and no arithmetic. Numbers are the tensors of indices.
install() puts the double in the place of torch, also where there is a real one.
"""
import contextlib
import ctypes as C
import itertools
import math
import sys
from types import ModuleType, SimpleNamespace


class Dtype(str):
    """Its text is as torch's: "torch.float16"."""
    size = property(lambda self: {"8": 1, "6": 2, "2": 4, "4": 8, "n": 1}[self[-1]])


int8, uint8, int64, float16, bfloat16, float32, float8_e4m3fn = (
    Dtype(f"torch.{name}") for name in ("int8", "uint8", "int64", "float16", "bfloat16", "float32", "float8_e4m3fn"))


class Device(str):
    type = property(lambda self: self.split(":")[0])


def no_truth(values: int) -> bool:
    """What torch says of a tensor in the place of a bool. Of one value: it is not kept here."""
    raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous" if values > 1 else
                       "this double knows no value")


class Tensor:
    is_cuda, is_quantized, device = False, False, Device("cpu")

    def __init__(self, memory, dtype: Dtype, shape, strides=None, offset: int = 0) -> None:
        """memory: a ctypes array, alive as long as a tensor shows it. offset: in values."""
        self.memory, self.dtype, self.shape, self.offset = memory, dtype, tuple(shape), offset
        n, dense = 1, []
        for size in reversed(self.shape):
            dense.insert(0, n)
            n *= size
        self.strides = tuple(strides or dense)

    def __bool__(self) -> bool:
        return no_truth(math.prod(self.shape))

    def stride(self, axis=None):
        return self.strides if axis is None else self.strides[axis]

    def storage_offset(self) -> int:
        return self.offset

    def element_size(self) -> int:
        return self.dtype.size

    def data_ptr(self) -> int:
        return C.addressof(self.memory) + self.offset * self.dtype.size

    def untyped_storage(self) -> SimpleNamespace:
        return SimpleNamespace(data_ptr=lambda: C.addressof(self.memory), nbytes=lambda: C.sizeof(self.memory))

    def view(self, dtype: Dtype, shape=None, strides=None, offset: int = 0) -> "Tensor":
        shape = shape or [self.numel() * self.dtype.size // dtype.size]
        return Tensor(self.memory, dtype, shape, strides, offset)

    def bytes_at(self, value: int, n: int) -> memoryview:
        """n values from this one on, of the memory."""
        size = self.dtype.size
        return memoryview(self.memory).cast("B")[(self.offset + value) * size:(self.offset + value + n) * size]

    # --- other views of the memory ---

    def _seen(self, shape, strides, offset: int = 0) -> "Tensor":
        return Tensor(self.memory, self.dtype, shape, strides, self.offset + offset)

    def __getitem__(self, where) -> "Tensor":
        where = where if isinstance(where, tuple) else (where,)
        if Ellipsis in where:
            i = where.index(Ellipsis)
            where = (*where[:i], *[slice(None)] * (len(self.shape) - len(where) + 1), *where[i + 1:])
        shape, strides, offset = [], [], 0
        for n, stride, at in itertools.zip_longest(self.shape, self.strides, where, fillvalue=slice(None)):
            if isinstance(at, int):
                offset += range(n)[at] * stride
            else:
                part = range(n)[at]
                offset += part.start * stride
                shape.append(len(part))
                strides.append(stride * part.step)
        return self._seen(shape, strides, offset)

    def unflatten(self, axis: int, sizes) -> "Tensor":
        axis %= len(self.shape)
        inner = [math.prod(sizes[i + 1:]) * self.strides[axis] for i in range(len(sizes))]
        assert math.prod(sizes) == self.shape[axis]
        return self._seen([*self.shape[:axis], *sizes, *self.shape[axis + 1:]],
                          [*self.strides[:axis], *inner, *self.strides[axis + 1:]])

    def transpose(self, a: int, b: int) -> "Tensor":
        axes = list(range(len(self.shape)))
        axes[a], axes[b] = b, a
        return self._seen([self.shape[i] for i in axes], [self.strides[i] for i in axes])

    def unsqueeze(self, axis: int) -> "Tensor":
        assert axis == 0
        return self._seen([1, *self.shape], [0, *self.strides])

    def detach(self) -> "Tensor":
        return self

    cpu = detach

    def to(self, device: Device) -> "Tensor":
        return self

    # --- copies ---

    def numel(self) -> int:
        return math.prod(self.shape)

    def _runs(self):
        """Where the values lie, in order: each run of them that lie side by side."""
        memory, size = memoryview(self.memory).cast("B"), self.dtype.size
        axes = len(self.shape) - (self.strides[-1:] == (1,))
        length = math.prod(self.shape[axes:]) * size
        for at in itertools.product(*map(range, self.shape[:axes])):
            first = (self.offset + sum(i * stride for i, stride in zip(at, self.strides))) * size
            yield memory[first:first + length]

    def tobytes(self) -> bytes:
        return b"".join(self._runs())

    def copy_(self, source: "Tensor") -> None:
        assert (self.shape, self.dtype) == (source.shape, source.dtype)
        data, at = source.tobytes(), 0
        for run in self._runs():
            run[:] = data[at:at + len(run)]
            at += len(run)

    def clone(self) -> "Tensor":
        data = self.tobytes()
        return Tensor((C.c_uint8 * len(data)).from_buffer_copy(data), self.dtype, self.shape)

    contiguous = numpy = clone

    def reshape(self, *shape: int) -> "Tensor":
        copy = self.clone()
        return copy.view(self.dtype, [self.numel()] if shape == (-1,) else shape)

    def sum(self, axis: int) -> "Tensor":
        assert axis == 1 and len(self.shape) == 2 and self.dtype == int64
        ret = zeros(self.shape[0], dtype=int64)
        for i in range(self.shape[0]):
            row = memoryview(self[i].tobytes()).cast("q")
            ret.bytes_at(i, 1)[:] = (sum(row) % 2**64).to_bytes(8, "little")
        return ret

    def flatten(self, first: int, last: int) -> "Tensor":
        return self.reshape(*self.shape[:first], math.prod(self.shape[first:last + 1]), *self.shape[last + 1:])


class Numbers:
    """A tensor of integers, of one or two axes."""

    def __init__(self, rows) -> None:
        self.rows = list(rows)

    def detach(self) -> "Numbers":
        return self

    cpu = detach

    def flat(self) -> list:
        return [n for row in self.rows for n in (row if isinstance(row, list) else [row])]

    def flatten(self) -> "Numbers":
        return Numbers(self.flat())

    def tolist(self) -> list:
        return self.rows

    def reshape(self, n: int, width: int) -> "Numbers":
        flat = self.flat()
        if n * width != len(flat):
            raise RuntimeError(f"shape '[{n}, {width}]' is invalid for input of size {len(flat)}")
        return Numbers(flat[i * width:i * width + width] for i in range(n))

    def __getitem__(self, where) -> "Numbers":
        if isinstance(where, tuple):
            return Numbers(row[where[1]] for row in self.rows)
        return Numbers(self.rows[where])

    def __mod__(self, n: int) -> "Numbers":
        return Numbers([x % n for x in row] for row in self.rows)

    def __add__(self, other: "Numbers") -> "Numbers":
        return Numbers([row[0] + x for x in other.rows] for row in self.rows)

    def any(self) -> bool:
        return any(self.flat())

    def __bool__(self) -> bool:
        flat = self.flat()
        return bool(flat[0]) if len(flat) == 1 else no_truth(len(flat))

    def __len__(self) -> int:
        return len(self.rows)


def zeros(*size, dtype: Dtype = float32, device=Device("cpu")) -> Tensor:
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    n = 1
    for one in shape:
        n *= one
    return Tensor((C.c_uint8 * (n * dtype.size))(), dtype, shape)


def stack(tensors) -> Tensor:
    ret = zeros(len(tensors), *tensors[0].shape, dtype=tensors[0].dtype)
    for i, tensor in enumerate(tensors):
        ret[i].copy_(tensor)
    return ret


def cat(tensors) -> Tensor:
    """Of rows."""
    data = b"".join(tensor.tobytes() for tensor in tensors)
    return Tensor((C.c_uint8 * len(data)).from_buffer_copy(data), tensors[0].dtype, [sum(t.numel() for t in tensors)])


def frombuffer(memory, dtype: Dtype) -> Tensor:
    if isinstance(memory, memoryview):
        memory = (C.c_uint8 * memory.nbytes).from_buffer(memory)
    return Tensor(memory, dtype, [C.sizeof(memory) // dtype.size])


def install() -> ModuleType:
    torch = ModuleType("torch")
    torch.__dict__.update(
        Tensor=Tensor, Numbers=Numbers, dtype=Dtype, device=Device, zeros=zeros, frombuffer=frombuffer, stack=stack,
        cat=cat, tensor=lambda rows, device=None: Numbers(rows), int8=int8, uint8=uint8, int64=int64, long=int64,
        float16=float16, bfloat16=bfloat16, float32=float32, float8_e4m3fn=float8_e4m3fn,
        no_grad=contextlib.nullcontext,
        arange=lambda *bounds: Numbers(range(*bounds)), equal=lambda a, b: a.rows == b.rows,
        backends=SimpleNamespace(), distributed=SimpleNamespace(is_available=lambda: False),
        cuda=SimpleNamespace(current_stream=None))
    sys.modules["torch"] = torch
    return torch


def module(name: str, **members) -> ModuleType:
    """A module of an engine's double, and the packages above it."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        path = ".".join(parts[:i])
        if path not in sys.modules or getattr(sys.modules[path], "__file__", None):
            sys.modules[path] = ModuleType(path)
            if i > 1:
                setattr(sys.modules[".".join(parts[:i - 1])], parts[i - 1], sys.modules[path])
    sys.modules[name].__dict__.update(members)
    return sys.modules[name]
