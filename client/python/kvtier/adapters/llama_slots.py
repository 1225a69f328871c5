# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.llama_slots - the file in which llama.cpp's server saves a slot. It holds:

    8 B         magic, version (kept as they came)
    4 B + 4 x   the slot's tokens, count first: -1, 1, n, n tokens, 0 (of media); or n tokens alone
    4 B         streams; of each its cells; of the one that has any: the cells and planes of llama_state.py
"""
from __future__ import annotations

import hashlib
import struct
from typing import Iterator, List, Sequence

from .. import Kind
from ..block_cache import LayoutError
from .llama_state import CELL, COLUMN_HEAD, SHORT_CELL, Layout, Plane

__all__ = ["SlotFile"]

_U32 = struct.Struct("<I")
_HEAD = struct.Struct("<3I")                # magic, version, number of the words of tokens
_MAGIC = 0x67677371
_STREAMS_MAX = 256


class SlotFile:
    """A file in which the server saved a slot. LayoutError: the file is not as it must be."""

    def __init__(self, data: bytes) -> None:
        try:
            magic, self.version, count = _HEAD.unpack_from(data)
            if magic != _MAGIC:
                raise LayoutError(f"the slot's file begins with {data[:4].hex()}")
            self.tokens, self.packed = self._tokens(struct.unpack_from(f"<{count}i", data, _HEAD.size))
            self._cells(data, _HEAD.size + 4 * count)
        except struct.error:
            raise LayoutError(f"the slot's file, {len(data)} bytes, is cut short") from None
        self._data = memoryview(data)

    @staticmethod
    def _tokens(words: Sequence[int]) -> tuple:
        n = len(words) - 4
        packed = n >= 0 and tuple(words[:3]) == (-1, 1, n) and words[-1] == 0
        tokens = list(words[3:-1] if packed else words)
        if any(token < 0 for token in tokens):
            raise LayoutError("the slot holds more than text")
        return tokens, packed

    def _cells(self, data: bytes, at: int) -> None:
        """Reads the cells and planes of one stream, while the other streams are empty."""
        self.streams, = _U32.unpack_from(data, at)
        at += 4
        n, left = 0, self.streams
        if not 1 <= left <= _STREAMS_MAX:
            raise LayoutError(f"the slot's file has {left} streams")
        while left and not n:
            n, = _U32.unpack_from(data, at)
            at, left = at + 4, left - 1
        end = len(data) - 4 * left
        if n != len(self.tokens) or any(data[end:]):
            raise LayoutError(f"the slot has {len(self.tokens)} tokens and {n} cells")
        self.planes: List[Plane] = []
        self.starts: List[int] = []         # of each plane's head
        if not n:
            return
        for position in range(n):
            if SHORT_CELL.unpack_from(data, at) != (position, 1):
                raise LayoutError(f"the slot's cells are not its positions in order, from {position} on")
            at += CELL.size
        self.words, self.planes = Layout.found(data[:end], at, n)
        at += len(self.words)
        for plane in self.planes:
            self.starts.append(at)
            at += len(plane.head) + n * plane.row

    def layout(self, tokens: int) -> Layout:
        return Layout(0, self.words, self.planes, (0, 0, 0), tokens)

    def digest(self, n: int) -> str:
        """A digest of that KV of the first n tokens that depends on them alone, and not on other state of the server:
        the KV of the first token, whose attention is to itself, and of the first layer, which is behind no
        attention."""
        layout, h = self.layout(1), hashlib.sha256()
        page = bytearray(layout.size)
        for p0 in range(n):
            self.give(layout, memoryview(page), p0)
            for plane, at in zip(self.planes, layout.offsets):
                if p0 == 0 or plane.layer == 0:
                    h.update(page[at:at + len(plane.head) + plane.row])
        return h.hexdigest()[:32]

    def give(self, layout: Layout, page: memoryview, p0: int) -> None:
        """Copies the block at position p0 into a page."""
        n, t = len(self.tokens), layout.tokens
        page[:layout.head_bytes] = layout.head(p0)
        for plane, start, at in zip(self.planes, self.starts, layout.offsets):
            page[at:at + len(plane.head)] = plane.head
            start, at = start + len(plane.head), at + len(plane.head)
            for row, width in _runs(layout, plane):
                to, source = at + row * t * width, start + (row * n + p0) * width
                page[to:to + t * width] = self._data[source:source + t * width]

    def of_pages(self, layout: Layout, tokens: Sequence[int], pages: Sequence[bytes]) -> bytearray:
        """The file that the server would save of a slot that holds these tokens; each page has a block of them."""
        n, t = len(tokens), layout.tokens
        words = [-1, 1, n, *tokens, 0] if self.packed else list(tokens)
        data = bytearray(_HEAD.pack(_MAGIC, self.version, len(words)) + struct.pack(f"<{len(words)}i", *words))
        data += _U32.pack(self.streams) + _U32.pack(n)
        data += b"".join([CELL.pack(position, 1, 0) for position in range(n)]) + self.words
        for plane, at in zip(layout.planes, layout.offsets):
            data += plane.head
            at += len(plane.head)
            for row, width in _runs(layout, plane):
                from_ = at + row * t * width
                for page in pages:
                    data += page[from_:from_ + t * width]
        return data + bytes(4 * (self.streams - 1))


def _runs(layout: Layout, plane: Plane) -> Iterator[tuple]:
    """Yields (row, bytes of a token in it) of a plane: one row of tokens, or where the plane is transposed, a row for
    each value."""
    if not layout.transposed or plane.kind != Kind.V:
        yield 0, plane.row
        return
    _, width, rows = COLUMN_HEAD.unpack(plane.head)
    for row in range(rows):
        yield row, width
