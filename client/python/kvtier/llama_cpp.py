# SPDX-License-Identifier: Apache-2.0
"""kvtier.llama_cpp - moves blocks of a llama.cpp context's KV cache into kvtier and back.

With llama-cpp-python (llama_cpp_python.py):

    from kvtier.llama_cpp import KvtierCache
    llm.set_cache(KvtierCache())

With any other program that has a handle of the library that holds llama.cpp, and two pointers: the llama_context and
its llama_memory. The xllamacpp wheel gives them through ctypes, for one. No struct of llama.h is used here.

    with LlamaCache(client, lib, ctx, memory, model="SmolLM2-135M-Instruct@<sha256 of the file>") as cache:
        got = cache.fetch(tokens)           # tokens[:got.tokens] are in the sequence now
        ...                                 # llama_decode the rest
        cache.store(tokens, got.tokens)     # the full blocks that were computed

How a block travels: llama.cpp gives a piece of a sequence away as bytes. The cells p0..p1 of the sequence are copied
(by reference) to a scratch sequence, llama_state_seq_get_data_ext() writes that one, and the copy is dropped. The way
back is the mirror image. llama_state.py says which bytes these are.

get_data_ext writes straight into a page of a sealed memfd that the daemon maps, so a block is copied once on its way
out. The head of a block and the heads of its rows are `opaque` segments: they are kept verbatim and never quantised.

The layout is never believed. When a cache is made, a block of known bytes is imported and exported again, and must come
back identical. Later every head is compared before a page is stored, and before a loaded page is given to llama.cpp. A
difference is a LayoutError when the cache is made, and a miss later.

The context of a LlamaCache needs kv_unified = true, flash attention (else V is stored transposed), an F16 cache, no
sliding window, and block_tokens free cells beyond those in use. If the layout was read from a sample, as KvtierCache
does, only the sliding window is refused.

The engine always answers, whatever the daemon does: block_cache.py.
"""
from __future__ import annotations

import ctypes as C
import errno
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, Union

from . import Client, Codec, Error
from ._lib import Closes
from .block_cache import BlockCache, Fetched, LayoutError, Stored
from .adapters.llama_state import WORDS4, Functions, Layout

if TYPE_CHECKING:
    from .llama_cpp_python import KvtierCache

__all__ = ["BLOCK_TOKENS", "Fetched", "KvtierCache", "LayoutError", "LlamaCache", "Stored"]

BLOCK_TOKENS = 64


def __getattr__(name: str) -> Any:
    if name == "KvtierCache":       # it needs llama-cpp-python, which others need not have
        from .llama_cpp_python import KvtierCache
        return KvtierCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _address(page: memoryview) -> int:
    return C.addressof(C.c_char.from_buffer(page))


class LlamaCache(Closes):
    """One sequence of one llama.cpp context, backed by kvtier. Only the thread that decodes may use it."""

    def __init__(self, client: Union[Client, Callable[[], Client]], lib: C.CDLL, ctx: int, memory: int, *, model: str,
                 extras: str = "", codec: Codec = Codec.DEFAULT, pages: int = 32, seq: int = 0, scratch: int = 1,
                 block_tokens: int = BLOCK_TOKENS, timeout_ms: int = 0, prefetch_ms: int = 1000,
                 sample: Optional[bytes] = None, names: Callable[[], Sequence[str]] = lambda: ("",)) -> None:
        """client: a Client, or a function that connects one; with a function, later calls ask a daemon again that is
        away, instead of raising Error. model: name and revision; equal texts must mean equal weights. extras: whatever
        else changes KV (LoRA, rope scaling). pages: how many blocks are under way at once, which is the memory that
        this takes. scratch: a sequence id that the caller does not use. timeout_ms, prefetch_ms, names: as in
        BlockCache. sample: what llama.cpp wrote for a sequence of one token; the layout is read from it. Without a
        sample the layout is F16, not transposed. LayoutError: the context keeps its KV in another way."""
        self._llama, self._ctx, self._memory = Functions(lib), ctx, memory
        self._seq, self._scratch = seq, scratch
        handle = self._llama.get_model(ctx)
        if self._llama.is_recurrent(handle) or self._llama.is_hybrid(handle):
            raise LayoutError("the model has state-space layers, whose state is not one of tokens")
        heads, magic = self._llama.heads(handle), self._magic()
        self._layout = (Layout.of_f16(magic, self._llama.n_layer(handle), heads, block_tokens) if sample is None else
                        Layout.of_sample(sample, heads, block_tokens))
        self._short = False     # whether llama.cpp leaves the scratch sequence's id out of its cells
        self.block_tokens, self.block_bytes = block_tokens, self._layout.size
        self.away: Optional[Error] = None       # why no daemon had the space open when the cache was made
        self._blocks = BlockCache(client, self._layout.geometry(model, extras, codec), self._layout.segments(),
                                  self._layout.size, self._layout.stride, pages, timeout_ms, prefetch_ms, names)
        try:
            self._probe()
            self._open(wait_for_it=not callable(client))
        except BaseException:
            self.close()
            raise

    def _open(self, wait_for_it: bool) -> None:
        try:
            self._blocks.open()
        except Error as error:
            if wait_for_it or error.errno == errno.EINVAL:
                raise
            self.away = error

    def close(self) -> None:
        self._blocks.close()

    def present(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of tokens[:-1] kvtier has on this node now. It is a hint and costs no system call."""
        return self._blocks.present(tokens, len(tokens) - 1)

    def fetch(self, tokens: Sequence[int], have: int = 0) -> Fetched:
        """Puts the KV of as many leading tokens as kvtier has into the sequence, which holds tokens[:have] already. If
        kvtier has a block that reaches further than `have`, what the sequence holds behind them is dropped; else it is
        left alone. At least one token is left to compute, for its logits. If the daemon has a Redis, that is asked for
        what this node lacks."""
        first = have // self.block_tokens * self.block_tokens
        dropped = False

        def take(page: memoryview, p0: int) -> None:
            nonlocal dropped
            if not dropped and not self._llama.seq_rm(self._memory, self._seq, first, -1):
                raise Error(errno.EBUSY, f"llama.cpp does not drop what it holds from position {first} on")
            dropped = True
            self._import(page, p0)

        got = self._blocks.fetch(tokens, take, len(tokens) - 1, have)
        return got if dropped else got._replace(tokens=have)

    def store(self, tokens: Sequence[int], first: int = 0) -> Stored:
        """Gives the full blocks of tokens from position `first` (a multiple of block_tokens) on to kvtier. tokens must
        be what the sequence holds, from its beginning. Returns when the daemon has the blocks or refuses them."""
        return self._blocks.store(tokens, self._export, first)

    def _write(self, page: memoryview, p0: int) -> str:
        """Puts what llama.cpp writes for the scratch sequence into a page. Returns what is wrong with it, or ""."""
        f = self._layout
        room = f.size - (f.shorter if self._short else 0)
        size = 0
        if self._llama.state_size(self._ctx, self._scratch, 0) == room:
            size = self._llama.state_get(self._ctx, _address(page) + f.size - room, room, self._scratch, 0)
        if size != room:
            return f"the sequence does not hold the {self.block_tokens} tokens from position {p0} on"
        wrong = f.difference(page, f.head(p0, self._scratch, self._short))
        page[:f.head_bytes] = f.head(p0)
        return wrong

    def _export(self, page: memoryview, p0: int) -> None:
        """Copies the cells p0 .. p0 + block_tokens of the sequence into a page. Error EBADMSG: they are not one whole
        block."""
        self._llama.seq_cp(self._memory, self._seq, self._scratch, p0, p0 + self.block_tokens)
        wrong = self._write(page, p0)
        self._drop_scratch()
        if wrong:
            raise Error(errno.EBADMSG, wrong)

    def _import(self, page: memoryview, p0: int) -> None:
        """Copies a page into the sequence. Error EBADMSG, ENOSPC: the sequence is as it was."""
        wrong = self._layout.difference(page, self._layout.head(p0))
        if wrong:
            raise Error(errno.EBADMSG, f"at position {p0}: {wrong}")
        size = self._llama.state_set(self._ctx, _address(page), self._layout.size, self._scratch, 0)
        if size == self._layout.size:
            self._llama.seq_cp(self._memory, self._scratch, self._seq, -1, -1)
        self._drop_scratch()
        if size != self._layout.size:
            raise Error(errno.ENOSPC,
                        f"llama.cpp did not take the block at position {p0}; is the context full?")

    def _drop_scratch(self) -> None:
        self._llama.seq_rm(self._memory, self._scratch, -1, -1)

    def _magic(self) -> int:
        """The first word of this build's state bytes, as it writes them for the empty scratch sequence."""
        if self._llama.pos_max(self._memory, self._scratch) != -1:
            raise LayoutError(f"the scratch sequence {self._scratch} is in use")
        data = self._llama.state(self._ctx, self._scratch)
        if len(data) != WORDS4.size or WORDS4.unpack(data)[1:] != (self._scratch, 1, 0):
            raise LayoutError(f"an empty sequence is {data[:64].hex()} here, not a magic, its id, one stream, no "
                              "cells; the context needs kv_unified = true where n_seq_max >= 2, and no sliding window")
        return WORDS4.unpack(data)[0]

    def _probe(self) -> None:
        """Imports known bytes and exports them again. LayoutError: they come back changed."""
        f = self._layout
        sample = f.sample()
        with self._blocks.page(0) as page:
            page[:] = sample
            took = self._llama.state_set(self._ctx, _address(page), f.size, self._scratch, 0)
            page[:] = bytes(f.size)
            same = False
            if took == f.size:
                self._short = self._llama.state_size(self._ctx, self._scratch, 0) == f.size - f.shorter
                same = self._write(page, 0) == "" and page == sample
            self._drop_scratch()
        if not same:
            raise LayoutError(
                f"a block of {f.tokens} tokens ({f.size} bytes) did not survive a round trip through this "
                f"context, so its KV is not kept as it must be; a LlamaCache needs flash attention on, an F16 cache, "
                f"no sliding window, and {f.tokens} free cells")
