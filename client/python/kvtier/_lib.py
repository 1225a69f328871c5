# SPDX-License-Identifier: Apache-2.0
"""_lib.py - finds, loads and declares libkvtier.so.0, with the structs of client/kvtier.h field for field.

This file is private to the package. Structs that may grow carry their size first, so this file and an older or newer
library of the same SONAME agree on what each knows; sized() fills that field in.

Here Python becomes C. ctypes would cut a number to the bits of its C type, and C would end a text at its first NUL. So
integer(), text() and pages() check each value. What a caller passes becomes C through them alone: sized() calls them
for the fields of structs, and the types of _declare()'s table call them for arguments."""
from __future__ import annotations

import array
import contextlib
import ctypes as C
import errno
import functools
import operator
import os
from pathlib import Path
from typing import NamedTuple

SONAME = "libkvtier.so.0"


class Error(OSError):
    """A call of libkvtier failed. It has the errno, and in `strerror` the sentence that names the field and the
    limit."""


Error.__module__ = "kvtier"


class Closes:
    """A `with` block closes it at its end."""

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        self.close()


@functools.lru_cache(maxsize=None)
def _limits(kind: type) -> "tuple[int, int]":
    """The least and the greatest number of a C type."""
    bits = 8 * C.sizeof(kind)
    return (-1 << bits - 1, (1 << bits - 1) - 1) if kind(-1).value < 0 else (0, (1 << bits) - 1)


def integer(value, kind: type, name: str) -> int:
    """The number, if the C type can hold it. A bool is refused: it was meant for another argument, or as a mask."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, must be an integer") from None
    least, most = _limits(kind)
    if not least <= number <= most:
        raise Error(errno.EINVAL, f"{name} is {number}, must be in {least}..{most}")
    return number


def text(value, name: str) -> "bytes | None":
    """The bytes for C: a str as UTF-8, bytes as they are, and None for NULL."""
    if value is None:
        return None
    try:
        data = value.encode() if isinstance(value, str) else bytes(memoryview(value))
    except UnicodeEncodeError:
        raise Error(errno.EINVAL, f"{name} is {value!r}, which UTF-8 does not have") from None
    except TypeError:
        raise TypeError(f"{name} is {value!r}, must be a text") from None
    if 0 in data:
        raise Error(errno.EINVAL, f"{name} has a NUL at byte {data.index(0)}, where C would end it")
    return data


def pages(items) -> C.Array:
    """Page numbers as an array of C."""
    numbers = items if isinstance(items, (list, tuple, range)) else list(items)
    try:
        if bool in set(map(type, numbers)):
            raise TypeError
        packed = array.array("I", numbers)
    except (OverflowError, TypeError):
        for i, number in enumerate(numbers):
            integer(number, C.c_uint32, f"pages[{i}]")
        raise
    return (C.c_uint32 * len(packed)).from_buffer(packed) if packed else (C.c_uint32 * 0)()


class Key(C.Structure):
    _fields_ = [("bytes", C.c_uint8 * 32)]


class Options(C.Structure):
    _fields_ = [
        ("size", C.c_uint32),
        ("timeout_ms", C.c_uint32),
        ("socket_path", C.c_char_p),
        ("name", C.c_char_p),
        ("staging_bytes", C.c_uint64),
        ("spin_us", C.c_uint32),
        ("gpu_mode", C.c_uint32),
    ]


class Geometry(C.Structure):
    _fields_ = [
        ("size", C.c_uint32),
        ("dtype", C.c_uint32),
        ("model", C.c_char_p),
        ("convention", C.c_char_p),
        ("extras", C.c_char_p),
        ("layers", C.c_uint32),
        ("kv_heads", C.c_uint32),
        ("head_dim_k", C.c_uint32),
        ("head_dim_v", C.c_uint32),
        ("block_tokens", C.c_uint32),
        ("rank", C.c_uint32),
        ("world", C.c_uint32),
        ("codec", C.c_uint32),
        ("typed_segments", C.c_uint32),
        ("typed_values", C.c_uint32),
        ("opaque_bytes", C.c_uint32),
    ]


class Region(C.Structure):
    _fields_ = [
        ("size", C.c_uint32),
        ("memory", C.c_uint32),
        ("fd", C.c_int32),
        ("reserved", C.c_uint32),
        ("offset", C.c_uint64),
        ("length", C.c_uint64),
        ("base", C.c_void_p),
    ]


class Segment(C.Structure):
    _fields_ = [
        ("size", C.c_uint32),
        ("region", C.c_uint32),
        ("layer", C.c_uint32),
        ("kind", C.c_uint32),
        ("offset", C.c_uint64),
        ("page_stride", C.c_uint64),
        ("head_stride", C.c_uint64),
        ("token_stride", C.c_uint64),
        ("length", C.c_uint64),
    ]


class Hit(C.Structure):
    _fields_ = [
        ("size", C.c_uint32),
        ("blocks", C.c_uint32),
        ("tiers", C.c_uint32),
    ]


class Op(C.Structure):
    _fields_ = [
        ("size", C.c_uint32),
        ("kind", C.c_uint32),
        ("keys", C.POINTER(Key)),
        ("pages", C.POINTER(C.c_uint32)),
        ("n", C.c_size_t),
        ("parent", C.POINTER(Key)),
        ("user", C.c_uint64),
        ("timeout_ms", C.c_uint32),
        ("layer_groups", C.c_uint32),
        ("stream", C.c_void_p),
        ("session", C.c_uint64),
        ("turn_number", C.c_uint32),
        ("ttl_s", C.c_uint32),
        ("priority", C.c_int32),
        ("action", C.c_uint32),
        ("scope", C.c_uint32),
        ("expected_back_s", C.c_uint32),
    ]


class Result(C.Structure):
    _fields_ = [
        ("size", C.c_uint32),
        ("status", C.c_int32),
        ("op", C.c_uint64),
        ("user", C.c_uint64),
        ("n", C.c_uint32),
        ("ok", C.c_uint32),
        ("prefix", C.c_uint32),
        ("blocks_max", C.c_uint32),
        ("blocks", C.POINTER(C.c_int32)),
        ("lent", C.c_uint32),
        ("answers", C.c_uint32 * 5),
    ]


class Lent(C.Structure):
    _fields_ = [
        ("size", C.c_uint32),
        ("page", C.c_uint32),
        ("memory", C.c_uint64),
        ("offset", C.c_uint64),
        ("op", C.c_uint64),
        ("daemon", C.c_int32),
        ("ended", C.c_uint32),
    ]


@functools.lru_cache(maxsize=None)
def _field_checks(kind: type) -> dict:
    """For each field of a struct that is a number or a text: the function that makes a C value for it."""
    return {name: text if plain is C.c_char_p else functools.partial(_number, plain)
            for name, plain in kind._fields_ if issubclass(plain, C._SimpleCData)}


def _number(kind: type, value, name: str) -> "int | None":
    return None if value is None and kind is C.c_void_p else integer(value, kind, name)


def sized(kind: type, what: str = "", /, **fields) -> C.Structure:
    """A struct with its size filled in, the given fields set and the rest zero. what: the name that errors give it."""
    checks = _field_checks(kind)
    for name, value in fields.items():
        if name in checks:
            fields[name] = checks[name](value, f"{what}.{name}" if what else name)
    return kind(size=C.sizeof(kind), **fields)


class Number(NamedTuple):
    """An argument that is a number of the caller's."""
    kind: type
    name: str

    def of(self, value):
        return _number(self.kind, value, self.name)


class Text(NamedTuple):
    """An argument that is a text of the caller's."""
    name: str
    kind: type = C.c_char_p

    def of(self, value):
        return text(value, self.name)


class Buffer(C.Structure):
    """CPython's Py_buffer."""
    _fields_ = [
        ("buf", C.c_void_p),
        ("obj", C.c_void_p),
        ("len", C.c_ssize_t),
        ("itemsize", C.c_ssize_t),
        ("readonly", C.c_int),
        ("ndim", C.c_int),
        ("format", C.c_char_p),
        ("shape", C.c_void_p),
        ("strides", C.c_void_p),
        ("suboffsets", C.c_void_p),
        ("internal", C.c_void_p),
    ]


def _view(tokens) -> "memoryview | None":
    """The buffer of the tokens, or of the array that they turn themselves into. None: they have no buffer."""
    try:
        return memoryview(tokens)
    except TypeError:
        return memoryview(tokens.__array__()) if hasattr(tokens, "__array__") else None


def _ids(items) -> memoryview:
    try:
        return memoryview(array.array("I", items))
    except OverflowError:
        raise ValueError("a token is 0 to 4294967295") from None


def _ids_of(view: memoryview) -> memoryview:
    """The view as contiguous items of 32 bits: the view itself where it is that already."""
    kind = view.format.lstrip("@=<")
    if view.ndim != 1:
        raise ValueError(f"tokens are one row: this buffer has {view.ndim} dimensions")
    if kind not in tuple("bBhHiIlLqQ"):
        raise ValueError(f"tokens are integers: this buffer has items of format {view.format!r}")
    if view.itemsize != 4:
        return _ids(view)
    return view if view.c_contiguous else memoryview(view.tobytes())


@contextlib.contextmanager
def tokens(items):
    """(address, number) of 32-bit tokens, for as long as the context lasts. A contiguous buffer of such tokens is not
    copied."""
    view = _view(items)
    ids = _ids(items) if view is None else _ids_of(view)
    got = Buffer()
    C.pythonapi.PyObject_GetBuffer(C.py_object(ids), C.byref(got), 0)     # raises if it fails
    try:
        yield got.buf, got.len // 4
    finally:
        C.pythonapi.PyBuffer_Release(C.byref(got))


def _candidates():
    """Where libkvtier may be, the best place first: the environment's, the one in a wheel, the build beside this source
    tree, the system's."""
    named = os.environ.get("KVTIER_LIBRARY")
    if named:
        yield named
        return
    here = Path(__file__).resolve().parent
    client = here.parent.parent
    built = client.parent / "build" / SONAME
    if (here / SONAME).is_file():
        yield str(here / SONAME)
    elif (client / "kvtier.h").is_file() and built.is_file():
        yield str(built)
    yield SONAME


def _declare(lib: C.CDLL) -> None:
    p, i32, u64, size = C.c_void_p, C.c_int, C.c_uint64, C.c_size_t
    keys, to = C.POINTER(Key), C.POINTER
    op, group, groups = Number(u64, "op"), Number(C.c_uint32, "group"), Number(C.c_uint32, "groups")
    timeout, stream = Number(i32, "timeout_ms"), Number(p, "stream")
    for name, result, arguments in (
        ("kvtier_connect", i32, [to(Options), to(p)]),
        ("kvtier_close", None, [p]),
        ("kvtier_set_timeout", i32, [p, Number(C.c_uint32, "timeout_ms")]),
        ("kvtier_space_open", i32, [p, to(Geometry), to(Region), size, to(Segment), size, to(p)]),
        ("kvtier_space_close", i32, [p]),
        ("kvtier_space_memory", i32, [p, C.c_char_p, size]),
        ("kvtier_space_quiesce", i32, [p]),
        ("kvtier_space_resume", i32, [p, to(Region), size]),
        ("kvtier_keys", i32, [p, keys, p, size, keys, to(size)]),
        ("kvtier_lookup", i32, [p, keys, size, to(Hit)]),
        ("kvtier_submit", i32, [p, to(Op), to(u64)]),
        ("kvtier_wait", i32, [p, op, timeout, to(Result)]),
        ("kvtier_poll", i32, [p, to(Result), size]),
        ("kvtier_event_fd", i32, [p]),
        ("kvtier_cancel", i32, [p, op, timeout]),
        ("kvtier_wait_layers", i32, [p, op, group, timeout]),
        ("kvtier_stream_wait", i32, [p, op, group, stream]),
        ("kvtier_store_layers", i32, [p, op, groups, stream]),
        ("kvtier_status", i32, [p, C.c_char_p, size]),
        ("kvtier_tiers", i32, [p]),
        ("kvtier_lent", i32, [p, to(Lent), size]),
        ("kvtier_memory_alloc", i32, [Number(size, "length"), Text("name"), to(p)]),
        ("kvtier_memory_address", p, [p]),
        ("kvtier_memory_region", i32, [p, to(Region)]),
        ("kvtier_memory_take_back", i32, [p]),
        ("kvtier_memory_free", None, [p]),
        ("kvtier_last_error", C.c_char_p, []),
        ("kvtier_version", C.c_char_p, []),
    ):
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = [a.kind if isinstance(a, (Number, Text)) else a for a in arguments]
        setattr(lib, name, _checked(function, arguments))


def _checked(function, arguments: list):
    """The function, with its callers' numbers and texts checked. (A from_param() that raises is ArgumentError.)"""
    checks = [(i, a.of) for i, a in enumerate(arguments) if isinstance(a, (Number, Text))]

    def call(*values):
        values = list(values)
        for i, of in checks:
            values[i] = of(values[i])
        return function(*values)
    return call if checks else function


@functools.lru_cache(maxsize=None)
def load() -> C.CDLL:
    """libkvtier with its functions declared. It is loaded at its first use, so that `import kvtier` works where there
    is no library. OSError names every place that was tried when the library is not found."""
    failures = []
    for path in _candidates():
        try:
            lib = C.CDLL(path)
        except OSError as error:
            failures.append(str(error))
            continue
        _declare(lib)
        return lib
    raise OSError("libkvtier cannot be loaded (set KVTIER_LIBRARY to its path, or build it with `make`): "
                  + "; ".join(failures))
