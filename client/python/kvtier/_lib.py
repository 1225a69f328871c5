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


_I32, _U32, _U64 = C.c_int32, C.c_uint32, C.c_uint64


def _fields(*groups: tuple) -> list:
    """The fields of a struct, from pairs of a type and the names that have it."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class Key(C.Structure):
    _fields_ = [("bytes", C.c_uint8 * 32)]


class Options(C.Structure):
    _fields_ = _fields((_U32, "size timeout_ms"), (C.c_char_p, "socket_path name"), (_U64, "staging_bytes"),
                       (_U32, "spin_us gpu_mode"))


class Geometry(C.Structure):
    _fields_ = _fields((_U32, "size dtype"), (C.c_char_p, "model convention extras"),
                       (_U32, "layers kv_heads head_dim_k head_dim_v block_tokens rank world codec typed_segments"),
                       (_U32, "typed_values opaque_bytes"))


class Region(C.Structure):
    _fields_ = _fields((_U32, "size memory"), (_I32, "fd"), (_U32, "reserved"), (_U64, "offset length"),
                       (C.c_void_p, "base"))


class Segment(C.Structure):
    _fields_ = _fields((_U32, "size region layer kind"), (_U64, "offset page_stride head_stride token_stride length"))


class Hit(C.Structure):
    _fields_ = _fields((_U32, "size blocks tiers"))


class Op(C.Structure):
    _fields_ = _fields((_U32, "size kind"), (C.POINTER(Key), "keys"), (C.POINTER(C.c_uint32), "pages"),
                       (C.c_size_t, "n"), (C.POINTER(Key), "parent"), (_U64, "user"),
                       (_U32, "timeout_ms layer_groups"), (C.c_void_p, "stream"), (_U64, "session"),
                       (_U32, "turn_number ttl_s"), (_I32, "priority"), (_U32, "action scope expected_back_s"))


class Result(C.Structure):
    _fields_ = _fields((_U32, "size"), (_I32, "status"), (_U64, "op user"), (_U32, "n ok prefix blocks_max"),
                       (C.POINTER(C.c_int32), "blocks"), (_U32, "lent"), (C.c_uint32 * 5, "answers"))


class Lent(C.Structure):
    _fields_ = _fields((_U32, "size page"), (_U64, "memory offset op"), (_I32, "daemon"), (_U32, "ended"))


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
    _fields_ = _fields((C.c_void_p, "buf obj"), (C.c_ssize_t, "len itemsize"), (C.c_int, "readonly ndim"),
                       (C.c_char_p, "format"), (C.c_void_p, "shape strides suboffsets internal"))


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
