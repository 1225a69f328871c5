# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.llama_state - the bytes that llama.cpp writes for a block of one sequence, and where KV lies in them.

llama_state_seq_get_data_ext() writes a block of n tokens like this, with numbers in the machine's byte order:

    16 B        magic, sequence id, streams (1), cells (n)
    12 B x n    of each cell: position, sequence ids (1), the sequence id
    8 or 16 B   V transposed (0 or 1), layers; newer builds have two words more, which are 0 for a cache of F16
    layers x    K of a layer: ggml type, 8 B row length; n rows, a token each
    layers x    V of a layer: the same; or, transposed: ggml type, value length, rows; of each row n values

A sequence id that the context was not made for (n_seq_max) is left out of the cells: they are 8 B then, and "sequence
ids" is 0. A page always has the id, and it is 0 there, as ids depend on the engine and not on the block.

A Layout is made from hyperparameters (uniform F16, not transposed, which LlamaCache takes without a sample), or read
from what llama.cpp itself writes for one token. It is not believed: LlamaCache probes it.
"""
from __future__ import annotations

import array
import ctypes as C
import hashlib
import struct
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from .. import Codec, Dtype, Geometry, Kind, Segment
from ..block_cache import LayoutError

__all__ = ["COLUMN_HEAD", "Functions", "Layout", "Plane"]

CELL = struct.Struct("<iII")
SHORT_CELL = struct.Struct("<iI")
WORDS4 = struct.Struct("<4I")
_WORDS2 = struct.Struct("<2I")
_ROW_HEAD = struct.Struct("<iQ")           # type, bytes of a row
COLUMN_HEAD = struct.Struct("<iII")        # type, bytes of a value, rows
_F16 = 1
_VALUES = {0: (Dtype.FP32, 4), _F16: (Dtype.FP16, 2), 30: (Dtype.BF16, 2)}      # of ggml types
_PAGE_ALIGN = 4096
_ROW_MAX = 1 << 24
_DIM_MAX = 4096
_FAMILY = "gguf/llama.cpp"


def _not_served(n_bytes: int) -> LayoutError:
    return LayoutError(f"the KV, {n_bytes} bytes, is not one K and at most one V of each layer: "
                       "sliding windows and state-space layers are not served")


class Functions:
    """The functions of llama.h that are used here. They are declared on objects of our own, as the handle is the
    caller's."""

    def __init__(self, lib: C.CDLL) -> None:
        p, i32, u32, size = C.c_void_p, C.c_int32, C.c_uint32, C.c_size_t

        def function(name: str, result, *arguments):
            try:
                return C.CFUNCTYPE(result, *arguments)((name, lib))
            except AttributeError:
                raise LayoutError(f"this llama.cpp has no {name}(): it is too old") from None

        self.get_model = function("llama_get_model", p, p)
        self.n_layer = function("llama_model_n_layer", i32, p)
        self.n_head = function("llama_model_n_head", i32, p)
        self.n_head_kv = function("llama_model_n_head_kv", i32, p)
        self.n_embd = function("llama_model_n_embd", i32, p)
        self.meta = function("llama_model_meta_val_str", i32, p, C.c_char_p, C.c_char_p, size)
        self.is_recurrent = function("llama_model_is_recurrent", C.c_bool, p)
        self.is_hybrid = function("llama_model_is_hybrid", C.c_bool, p)
        self.seq_cp = function("llama_memory_seq_cp", None, p, i32, i32, i32, i32)
        self.seq_rm = function("llama_memory_seq_rm", C.c_bool, p, i32, i32, i32)
        self.pos_max = function("llama_memory_seq_pos_max", i32, p, i32)
        self.state_size = function("llama_state_seq_get_size_ext", size, p, i32, u32)
        self.state_get = function("llama_state_seq_get_data_ext", size, p, p, size, i32, u32)
        self.state_set = function("llama_state_seq_set_data_ext", size, p, p, size, i32, u32)

    def heads(self, model: int) -> Tuple[int, int, int]:
        """(KV heads, values in a head of K, of V) from the file's metadata, or else the usual quotient."""
        return self.n_head_kv(model), self._head_dim(model, "key"), self._head_dim(model, "value")

    def _head_dim(self, model: int, which: str) -> int:
        text = C.create_string_buffer(128)
        self.meta(model, b"general.architecture", text, len(text))
        name = f"{text.value.decode()}.attention.{which}_length"
        if self.meta(model, name.encode(), text, len(text)) > 0:
            return int(text.value)
        return self.n_embd(model) // max(1, self.n_head(model))

    def state(self, ctx: int, seq: int) -> bytes:
        """The bytes that llama.cpp writes for a sequence."""
        data = C.create_string_buffer(max(1, self.state_size(ctx, seq, 0)))
        size = self.state_get(ctx, C.addressof(data), len(data), seq, 0)
        return data.raw[:size]


class Plane(NamedTuple):
    """The K or the V of one layer."""
    kind: Kind
    layer: int
    head: bytes      # as llama.cpp writes it
    type: int        # ggml's number of it
    row: int         # bytes of a token


class Layout:
    """The layout of a block of `tokens` tokens: where each piece lies, and the bytes that the pieces without KV must
    have."""

    def __init__(self, magic: int, words: bytes, planes: Sequence[Plane], heads: Tuple[int, int, int],
                 tokens: int) -> None:
        """words: the bytes between the cells and the first plane. heads: as Functions.heads() gives them."""
        self.magic, self.words, self.planes, self.tokens = magic, words, list(planes), tokens
        self.transposed = _WORDS2.unpack(words[:_WORDS2.size])[0] == 1
        self.head_bytes = WORDS4.size + tokens * CELL.size + len(words)
        self.offsets: List[int] = []            # of each plane's head
        at = self.head_bytes
        for plane in self.planes:
            self.offsets.append(at)
            at += len(plane.head) + tokens * plane.row
        self.size = at
        self.stride = -(-at // _PAGE_ALIGN) * _PAGE_ALIGN
        self.shorter = tokens * (CELL.size - SHORT_CELL.size)   # how many bytes fewer it has without sequence ids
        self._shape = self._uniform(heads)

    @classmethod
    def of_f16(cls, magic: int, layers: int, heads: Tuple[int, int, int], tokens: int) -> "Layout":
        """The layout that a recent llama.cpp writes for F16, token-major, with all layers alike."""
        planes = []
        for kind, dim in ((Kind.K, heads[1]), (Kind.V, heads[2])):
            row = heads[0] * dim * 2
            planes += [Plane(kind, layer, _ROW_HEAD.pack(_F16, row), _F16, row) for layer in range(layers)]
        return cls(magic, WORDS4.pack(0, layers, 0, 0), planes, heads, tokens)

    @classmethod
    def of_sample(cls, data: bytes, heads: Tuple[int, int, int], tokens: int) -> "Layout":
        """The layout of data, which llama.cpp wrote for the one token at position 0."""
        try:
            magic, _, streams, cells = WORDS4.unpack_from(data)
            position, ids = SHORT_CELL.unpack_from(data, WORDS4.size)
            if (streams, cells, position) != (1, 1, 0) or ids > 1:
                raise LayoutError(f"one token is {cells} cells of {streams} streams, its position {position}")
            return cls(magic, *cls.found(data, WORDS4.size + SHORT_CELL.size + 4 * ids, 1), heads, tokens)
        except struct.error:
            pass
        raise _not_served(len(data))

    @classmethod
    def found(cls, data: bytes, start: int, cells: int) -> Tuple[bytes, List[Plane]]:
        """(words, planes) of the bytes behind the cells, from `start` to the end."""
        try:
            for more in (0, 2):
                at = start + _WORDS2.size + 4 * more
                planes = cls._planes(data, at, *_WORDS2.unpack_from(data, start), cells)
                if planes is not None:
                    return data[start:at], planes
        except struct.error:
            pass
        raise _not_served(len(data))

    @staticmethod
    def _planes(data: bytes, at: int, transposed: int, layers: int, cells: int = 1) -> Optional[List[Plane]]:
        """The planes in the bytes from `at` to their end, with `cells` tokens; None if the bytes are anything else."""
        if transposed > 1 or not 1 <= layers <= 1024:
            return None
        planes: List[Plane] = []
        while at < len(data) and len(planes) < 2 * layers:
            kind = Kind.K if len(planes) < layers else Kind.V
            head = data[at:at + _ROW_HEAD.size]
            if transposed and kind == Kind.V:
                of, length, rows = COLUMN_HEAD.unpack(head)
                row = length * rows
            else:
                of, row = _ROW_HEAD.unpack(head)
            if not 1 <= row <= _ROW_MAX:
                return None
            planes.append(Plane(kind, len(planes) % layers, head, of, row))
            at += len(head) + cells * row
        return planes if at == len(data) and len(planes) in (layers, 2 * layers) else None

    def _uniform(self, heads: Tuple[int, int, int]) -> Optional[Tuple[Dtype, int, int, int]]:
        """(type, heads, values in a head of K, of V) if all layers are alike and of a type that kvtier knows."""
        rows = [{plane.row for plane in self.planes if plane.kind == kind} for kind in (Kind.K, Kind.V)]
        types = {plane.type for plane in self.planes}
        if len(types) != 1 or not types <= set(_VALUES) or len(rows[0]) != 1 or len(rows[1]) > 1:
            return None
        dtype, size = _VALUES[types.pop()]
        k, v = rows[0].pop(), rows[1].pop() if rows[1] else 0
        if heads[0] * heads[1] * size == k and (heads[0] * heads[2] * size == v or not v):
            return dtype, heads[0], heads[1], heads[2] if v else 0
        if k % size or v % size or max(k, v) > _DIM_MAX * size:
            return None
        return dtype, 1, k // size, v // size

    @property
    def exact_only(self) -> bool:
        """Whether blocks are kept as they are, whatever the codec, because their values are quantised or the layers
        differ."""
        return self._shape is None

    @property
    def convention(self) -> str:
        """A text that names all in which two layouts of one geometry could differ."""
        said = self.head(0) + b"".join(plane.head for plane in self.planes)
        return f"{_FAMILY}/{hashlib.sha256(said).hexdigest()[:16]}"

    def geometry(self, model: str, extras: str, codec: Codec) -> Geometry:
        if self._shape is None:
            return Geometry(model, self.convention, Dtype.INT8, 1, 1, 0, 0, self.tokens, extras=extras,
                            codec=Codec.RAW, opaque_bytes=self.size)
        dtype, heads, dim_k, dim_v = self._shape
        layers = len({plane.layer for plane in self.planes})
        typed = layers if self.transposed and dim_v else 0
        return Geometry(model, self.convention, dtype, layers, heads, dim_k, 0 if typed else dim_v, self.tokens,
                        extras=extras, codec=codec, typed_segments=typed,
                        typed_values=self.tokens * heads * dim_v if typed else 0,
                        opaque_bytes=self.head_bytes + sum(len(plane.head) for plane in self.planes))

    def segments(self) -> List[Segment]:
        opaque = dict(kind=Kind.OPAQUE, page_stride=self.stride)
        if self._shape is None:
            return [Segment(offset=0, length=self.size, **opaque)]
        _, heads, dim_k, dim_v = self._shape
        parts = [Segment(offset=0, length=self.head_bytes, **opaque)]
        for plane, at in zip(self.planes, self.offsets):
            parts.append(Segment(offset=at, length=len(plane.head), **opaque))
            at += len(plane.head)
            if self.transposed and plane.kind == Kind.V:
                parts.append(Segment(Kind.TYPED, at, self.stride, length=self.tokens * heads * dim_v))
            else:
                parts.append(Segment(plane.kind, at, self.stride, layer=plane.layer, head_stride=plane.row // heads,
                                     token_stride=plane.row))
        return parts

    def head(self, p0: int, seq: int = 0, short: bool = False) -> bytes:
        """The head of the block whose first token has position p0 in sequence seq. short: it has no sequence ids."""
        positions = range(p0, p0 + self.tokens)
        cells = b"".join([SHORT_CELL.pack(p, 0) if short else CELL.pack(p, 1, seq) for p in positions])
        return WORDS4.pack(self.magic, seq, 1, self.tokens) + cells + self.words

    def difference(self, page: memoryview, head: bytes) -> str:
        """What is not as it must be, the KV itself aside; "" if all is. head: what the bytes before the first plane
        must end with."""
        if page[self.head_bytes - len(head):self.head_bytes] != head:
            return "the head of the block is another one"
        for plane, at in zip(self.planes, self.offsets):
            if page[at:at + len(plane.head)] != plane.head:
                return f"the row head of {plane.kind.name} of layer {plane.layer}, byte {at}, is another one"
        return ""

    def sample(self) -> bytearray:
        """A block for a round trip. Its values are finite numbers of F16; neighbours differ, and so do planes."""
        values = array.array("H", range(0x1000, 0x7000)).tobytes()
        block = bytearray(self.head(0))
        for number, plane in enumerate(self.planes):
            n, start = self.tokens * plane.row, 2 * (number * 997 % 0x3000)
            block += plane.head + (values * (2 + n // len(values)))[start:start + n]
        assert len(block) == self.size
        return block
