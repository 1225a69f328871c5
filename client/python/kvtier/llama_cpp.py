# SPDX-License-Identifier: Apache-2.0
"""kvtier.llama_cpp - blocks of a llama.cpp context's KV cache, into kvtier and back.

It needs a handle of the library that holds llama.cpp and two pointers, the llama_context and its
llama_memory; so it serves any program that has them: the xllamacpp wheel through ctypes, llama-cpp-python
(`llama._ctx.ctx`), an embedding application. No struct of llama.h is used here.

    with LlamaCache(client, lib, ctx, memory, model="SmolLM2-135M-Instruct@<sha256 of the file>") as cache:
        got = cache.fetch(tokens)           # tokens[:got.tokens] are in the sequence now
        ...                                 # llama_decode the rest
        cache.store(tokens, got.tokens)     # the full blocks that were computed

How a block travels. llama.cpp gives a piece of a sequence away as bytes: the cells p0..p1 of the sequence are
copied (by reference) to a scratch sequence, llama_state_seq_get_data_ext() writes that one, and the copy is
dropped; the way back is the mirror image. The bytes of one block of n tokens, the convention
"gguf/llama.cpp-b11549":

    16 B        magic, sequence id, streams (1), cells (n)
    12 B x n    of each cell: position, sequence ids (1), the sequence id
    16 B        V transposed (0), layers, 0, 0
    layers x    K of a layer: type (1 = F16), 8 B row length; n rows of kv_heads x head_dim F16, token-major
    layers x    V of a layer, likewise

get_data_ext writes straight into a page of a sealed memfd that the daemon maps, so a block is copied once on
its way out. Head and row heads are `opaque` segments: kept verbatim, never quantised. Sequence ids depend on
the engine, not on the block, so in a page they are 0 (llama.cpp does not read them back).

None of this layout is believed. When a cache is made, a block of known bytes is imported and exported again,
and must come back identical; later every head is compared before a page is stored and before a loaded page is
given to llama.cpp. What differs is refused with LayoutError when the cache is made, and is a miss later.

What the context must have: kv_unified = true, n_seq_max >= 2, flash attention on (else V is stored
transposed), F16 cache, no sliding window. block_tokens free cells beyond those in use.

The engine always answers, whatever the daemon does: block_cache.py.
"""
from __future__ import annotations

import ctypes as C
import errno
import struct
from typing import List, Sequence

from . import Client, Codec, Dtype, Error, Geometry, Kind, Segment
from .block_cache import BlockCache, Fetched, Stored

__all__ = ["BLOCK_TOKENS", "CONVENTION", "Fetched", "LayoutError", "LlamaCache", "Stored"]

CONVENTION = "gguf/llama.cpp-b11549"
BLOCK_TOKENS = 64

_GGML_TYPE_F16 = 1
_F16_BYTES = 2
_PAGE_ALIGN = 4096
_ROW_HEAD = struct.Struct("<iQ")
_WORDS4 = struct.Struct("<4I")
_CELL = struct.Struct("<iII")


class LayoutError(RuntimeError):
    """This llama.cpp or this context keeps its KV in another way than CONVENTION says."""


def _address(page: memoryview) -> int:
    return C.addressof(C.c_char.from_buffer(page))


class _Llama:
    """The functions of llama.h used here, declared on objects of our own: the handle is the caller's."""

    def __init__(self, lib: C.CDLL) -> None:
        p, i32, u32, size = C.c_void_p, C.c_int32, C.c_uint32, C.c_size_t

        def function(name: str, result, *arguments):
            return C.CFUNCTYPE(result, *arguments)((name, lib))

        self.get_model = function("llama_get_model", p, p)
        self.n_layer = function("llama_model_n_layer", i32, p)
        self.n_head = function("llama_model_n_head", i32, p)
        self.n_head_kv = function("llama_model_n_head_kv", i32, p)
        self.n_embd = function("llama_model_n_embd", i32, p)
        self.meta = function("llama_model_meta_val_str", i32, p, C.c_char_p, C.c_char_p, size)
        self.seq_cp = function("llama_memory_seq_cp", None, p, i32, i32, i32, i32)
        self.seq_rm = function("llama_memory_seq_rm", C.c_bool, p, i32, i32, i32)
        self.pos_max = function("llama_memory_seq_pos_max", i32, p, i32)
        self.state_size = function("llama_state_seq_get_size_ext", size, p, i32, u32)
        self.state_get = function("llama_state_seq_get_data_ext", size, p, p, size, i32, u32)
        self.state_set = function("llama_state_seq_set_data_ext", size, p, p, size, i32, u32)

    def head_dim(self, model: int, which: str) -> int:
        """Values in a head of K ("key") or V ("value"): from the file's metadata, else the usual quotient."""
        text = C.create_string_buffer(128)
        self.meta(model, b"general.architecture", text, len(text))
        name = f"{text.value.decode()}.attention.{which}_length"
        if self.meta(model, name.encode(), text, len(text)) > 0:
            return int(text.value)
        return self.n_embd(model) // self.n_head(model)


class _Format:
    """Where everything lies in the bytes of one block, and what the parts that are not KV must be."""

    def __init__(self, magic: int, layers: int, kv_heads: int, head_dim_k: int, head_dim_v: int,
                 tokens: int) -> None:
        self.magic, self.layers, self.tokens = magic, layers, tokens
        self.head_bytes = 2 * _WORDS4.size + tokens * _CELL.size
        self.planes = []        # (kind, layer, head_dim, row head, offset of the row head)
        at = self.head_bytes
        for kind, dim in ((Kind.K, head_dim_k), (Kind.V, head_dim_v)):
            row = kv_heads * dim * _F16_BYTES
            for layer in range(layers):
                self.planes.append((kind, layer, dim, _ROW_HEAD.pack(_GGML_TYPE_F16, row), at))
                at += _ROW_HEAD.size + tokens * row
        self.size = at
        self.stride = -(-at // _PAGE_ALIGN) * _PAGE_ALIGN

    def head(self, p0: int, seq: int = 0) -> bytes:
        """The head of the block whose first token has position p0, in a sequence."""
        cells = b"".join(_CELL.pack(p0 + i, 1, seq) for i in range(self.tokens))
        return (_WORDS4.pack(self.magic, seq, 1, self.tokens) + cells + _WORDS4.pack(0, self.layers, 0, 0))

    def difference(self, page: memoryview, p0: int, seq: int) -> str:
        """"" when everything but the KV itself is as it must be, else what is not."""
        if page[:self.head_bytes] != self.head(p0, seq):
            return f"the head of the block at position {p0} is not that of {CONVENTION}"
        for kind, layer, _, row_head, at in self.planes:
            if page[at:at + len(row_head)] != row_head:
                return f"the row head of {kind.name} of layer {layer}, byte {at}, is not that of {CONVENTION}"
        return ""

    def segments(self) -> List[Segment]:
        opaque = dict(kind=Kind.OPAQUE, page_stride=self.stride)
        parts = [Segment(offset=0, length=self.head_bytes, **opaque)]
        for kind, layer, dim, row_head, at in self.planes:
            parts.append(Segment(offset=at, length=len(row_head), **opaque))
            parts.append(Segment(kind, at + len(row_head), self.stride, layer=layer,
                                 head_stride=dim * _F16_BYTES, token_stride=_ROW_HEAD.unpack(row_head)[1]))
        return parts

    def opaque_bytes(self) -> int:
        return self.head_bytes + len(self.planes) * _ROW_HEAD.size

    def sample(self) -> bytearray:
        """A block whose every row is told from every other, in finite numbers: for the round trip."""
        block = bytearray(self.head(0))
        number = 0
        for _, _, _, row_head, _ in self.planes:
            block += row_head
            row = _ROW_HEAD.unpack(row_head)[1]
            for _ in range(self.tokens):
                block += struct.pack("<H", 0x1000 + number % 0x6000) * (row // _F16_BYTES)
                number += 1
        assert len(block) == self.size
        return block


class LlamaCache:
    """One sequence of one llama.cpp context, backed by kvtier. For one thread at a time, the one that
    decodes."""

    def __init__(self, client: Client, lib: C.CDLL, ctx: int, memory: int, *, model: str, extras: str = "",
                 codec: Codec = Codec.DEFAULT, pages: int = 32, seq: int = 0, scratch: int = 1,
                 block_tokens: int = BLOCK_TOKENS, timeout_ms: int = 0, prefetch_ms: int = 1000) -> None:
        """model: name and revision; equal text must mean equal weights. extras: whatever else changes KV
        (LoRA, rope scaling). pages: blocks under way at once, that is the memory this takes. scratch: a
        sequence id the caller does not use. timeout_ms, prefetch_ms: as in BlockCache."""
        self._llama, self._ctx, self._memory = _Llama(lib), ctx, memory
        self._seq, self._scratch = seq, scratch
        handle = self._llama.get_model(ctx)
        layers, heads = self._llama.n_layer(handle), self._llama.n_head_kv(handle)
        dims = self._llama.head_dim(handle, "key"), self._llama.head_dim(handle, "value")
        self._format = _Format(self._magic(), layers, heads, *dims, block_tokens)
        self.block_tokens, self.block_bytes = block_tokens, self._format.size
        geometry = Geometry(model, CONVENTION, Dtype.FP16, layers, heads, *dims, block_tokens, extras=extras,
                            codec=codec, opaque_bytes=self._format.opaque_bytes())
        self._blocks = BlockCache(client, geometry, self._format.segments(), self._format.size, self._format.stride,
                                  pages, timeout_ms, prefetch_ms)
        try:
            self._probe()
            self._blocks.open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._blocks.close()

    def __enter__(self) -> "LlamaCache":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def fetch(self, tokens: Sequence[int]) -> Fetched:
        """Puts the KV of as many leading tokens as kvtier has into the sequence, which must be empty. At
        least one token is left to compute, for its logits. What this node lacks is asked of Redis, if the daemon
        has one."""
        if self._llama.pos_max(self._memory, self._seq) != -1:
            raise ValueError(f"sequence {self._seq} is not empty")
        return self._blocks.fetch(tokens, self._import, len(tokens) - 1)

    def store(self, tokens: Sequence[int], first: int = 0) -> Stored:
        """Gives the full blocks of tokens from position `first` (a multiple of block_tokens) on to kvtier.
        tokens must be what the sequence holds, from its beginning; returns when the daemon has them or will
        not."""
        return self._blocks.store(tokens, self._export, first)

    def _export(self, page: memoryview, p0: int) -> None:
        """Cells p0 .. p0 + block_tokens of the sequence into a page. Error EBADMSG: they are not one whole
        block."""
        size, f = 0, self._format
        self._llama.seq_cp(self._memory, self._seq, self._scratch, p0, p0 + self.block_tokens)
        if self._llama.state_size(self._ctx, self._scratch, 0) == f.size:
            size = self._llama.state_get(self._ctx, _address(page), f.size, self._scratch, 0)
        self._drop_scratch()
        wrong = f.difference(page, p0, self._scratch) if size == f.size else (
            f"the sequence does not hold the {self.block_tokens} tokens from position {p0} on")
        if wrong:
            raise Error(errno.EBADMSG, wrong)
        page[:f.head_bytes] = f.head(p0)

    def _import(self, page: memoryview, p0: int) -> None:
        """A page into the sequence. Error EBADMSG, ENOSPC: the sequence is as it was."""
        wrong = self._format.difference(page, p0, 0)
        if wrong:
            raise Error(errno.EBADMSG, wrong)
        size = self._llama.state_set(self._ctx, _address(page), self._format.size, self._scratch, 0)
        if size == self._format.size:
            self._llama.seq_cp(self._memory, self._scratch, self._seq, -1, -1)
        self._drop_scratch()
        if size != self._format.size:
            raise Error(errno.ENOSPC,
                        f"llama.cpp did not take the block at position {p0}; is the context full?")

    def _drop_scratch(self) -> None:
        self._llama.seq_rm(self._memory, self._scratch, -1, -1)

    def _magic(self) -> int:
        """First word of this build's state bytes, from what it writes for the empty scratch sequence."""
        if self._llama.pos_max(self._memory, self._scratch) != -1:
            raise LayoutError(f"the scratch sequence {self._scratch} is in use")
        size = self._llama.state_size(self._ctx, self._scratch, 0)
        data = C.create_string_buffer(max(size, 1))
        if self._llama.state_get(self._ctx, C.addressof(data), size, self._scratch, 0) != size or \
                size != _WORDS4.size or _WORDS4.unpack(data.raw[:size])[1:] != (self._scratch, 1, 0):
            raise LayoutError(f"an empty sequence is {data.raw[:size].hex()} here, not as in {CONVENTION}; "
                              "the context needs kv_unified = true and n_seq_max >= 2")
        return _WORDS4.unpack(data.raw[:size])[0]

    def _probe(self) -> None:
        """Known bytes in and out again. LayoutError when they do not come back as they went in."""
        sample, f = self._format.sample(), self._format
        with self._blocks.page(0) as page:
            page[:] = sample
            took = self._llama.state_set(self._ctx, _address(page), f.size, self._scratch, 0)
            page[:] = bytes(f.size)
            gave = 0
            if took == f.size and self._llama.state_size(self._ctx, self._scratch, 0) == f.size:
                gave = self._llama.state_get(self._ctx, _address(page), f.size, self._scratch, 0)
            self._drop_scratch()
            sample[:f.head_bytes] = f.head(0, self._scratch)
            same = gave == f.size and page == sample
        if not same:
            raise LayoutError(
                f"a block of {f.tokens} tokens ({f.size} bytes) did not survive a round trip through this "
                f"context, so its KV is not kept as {CONVENTION} says; it needs flash attention on, an F16 cache, "
                f"no sliding window, and {f.tokens} free cells")
