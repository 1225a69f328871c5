# SPDX-License-Identifier: Apache-2.0
"""kvtier.llama_server - prompts of llama.cpp's server, into kvtier and back: of xllamacpp.Server, or a llama-server.

    params.slot_save_path = "/dev/shm/slots/"               # llama-server: --slot-save-path /dev/shm/slots/
    server = xllamacpp.Server(params)
    with SlotCache(server.listening_address, params.slot_save_path) as cache:
        answer = cache.ask("/v1/chat/completions", {"messages": [...], "max_tokens": 64})
        print(cache.last)       # Reused(prompt_tokens=2071, loaded_tokens=2048, ...)

The server is not patched, and has no plug-ins: its context belongs to threads of its own. What it offers is
that a slot is saved to a file, and restored from one (POST /slots/N?action=save). ask() looks the prompt up,
makes such a file of the blocks that kvtier has, has the server restore it into a free slot, and asks that
slot, which computes the rest; then it has the slot saved, and stores the blocks that are new. So each prompt
that gains is a file written and read, and so is each answer that fills a block: the directory belongs on a
tmpfs, and it must be the server's and this process's.

    8 B         magic, version (kept as they came)
    4 B + 4 x   the slot's tokens, count first: -1, 1, n, n tokens, 0 (of media); or n tokens alone
    4 B         streams; of each its cells; of the one that has any: the cells and planes of llama_state.py

The tokens in the file are what the server compares a prompt with, and what keys are made of, so a request whose prompt
this file reads otherwise than the server does costs hits, and nothing else. What is not understood is not served:
`refused` says why, and ask() asks without a cache; so it does for images, LoRA by request, and streams. A slot that was
shifted holds KV that its tokens do not say, so context shift and cache reuse must be off, as they are by default.

Any thread may call ask(); as many are under way as the server has slots.
"""
from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import queue
import secrets
import struct
import threading
import urllib.request
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from . import Client, Codec, Error, Kind, Tier
from .block_cache import BlockCache, named
from .llama_cpp import BLOCK_TOKENS
from .llama_state import CELL, SHORT_CELL, Layout, LayoutError, Plane, weights

__all__ = ["Reused", "SlotCache", "SlotFile"]

_log = logging.getLogger("kvtier")
_U32 = struct.Struct("<I")
_HEAD = struct.Struct("<3I")                # magic, version, number of the words of tokens
_MAGIC = 0x67677371
_COLUMNS = struct.Struct("<iII")            # type, bytes of a value, rows: the head of a transposed plane
_STREAMS_MAX = 256


class Reused(NamedTuple):
    """What became of one prompt."""
    prompt_tokens: int
    loaded_tokens: int         # of these, whose KV was restored into the slot
    tiers: Tier                # where the last of them came from
    stored_blocks: int         # in kvtier now, of those that were new
    error: Optional[Exception]     # what kept it from being more


class SlotFile:
    """What the server saved of a slot. LayoutError: it is not as it must be."""

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
        """Cells and planes: of one stream, while the others have none."""
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

    def give(self, layout: Layout, page: memoryview, p0: int) -> None:
        """The block at position p0 into a page."""
        n, t = len(self.tokens), layout.tokens
        page[:layout.head_bytes] = layout.head(p0)
        for plane, start, at in zip(self.planes, self.starts, layout.offsets):
            page[at:at + len(plane.head)] = plane.head
            start, at = start + len(plane.head), at + len(plane.head)
            for row, width in _runs(layout, plane):
                to, source = at + row * t * width, start + (row * n + p0) * width
                page[to:to + t * width] = self._data[source:source + t * width]

    def of_pages(self, layout: Layout, tokens: Sequence[int], pages: Sequence[bytes]) -> bytearray:
        """A file as the server would save it of a slot that holds these tokens, a block in each page."""
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
    """(row, bytes of a token in it) of a plane: one row of tokens, or transposed, one for each value."""
    if not layout.transposed or plane.kind != Kind.V:
        yield 0, plane.row
        return
    _, width, rows = _COLUMNS.unpack(plane.head)
    for row in range(rows):
        yield row, width


class SlotCache:
    """Slots of one server, backed by kvtier."""

    def __init__(self, url: str, slots: str, *, client: Optional[Client] = None, socket: Optional[str] = None,
                 model: Optional[str] = None, extras: str = "", codec: Codec = Codec.RAW, pages: int = 16,
                 block_tokens: int = BLOCK_TOKENS, timeout_ms: int = 2000, prefetch_ms: int = 1000,
                 answer_s: float = 600) -> None:
        """url: the server's. slots: its slot_save_path, a directory of this machine. client: one of yours;
        default one of its own at `socket`, connected when there is a daemon. model: a name that means equal
        weights; default the name, size and time of the server's file. extras: what else changes KV, as rope
        settings given by flags. codec, pages, timeout_ms, prefetch_ms: as of KvtierCache. answer_s: how long
        an answer may take. The server computes one token, to see how its KV is laid out."""
        self.last, self.refused = Reused(0, 0, Tier(0), 0, None), ""
        self._url, self._slots, self._answer_s = url.rstrip("/"), slots, answer_s
        self._client, self._own, self._socket, self._timeout_ms = client, None, socket, timeout_ms
        self._blocks: Optional[BlockCache] = None
        self._lock = threading.Lock()       # of the blocks: they are for one thread at a time. A leaf.
        self._free: "queue.Queue[int]" = queue.Queue()
        self._held: Dict[int, List[int]] = {}
        try:
            self._learn(model, extras, codec, pages, block_tokens, timeout_ms, prefetch_ms)
        except (LayoutError, OSError, KeyError, ValueError) as error:
            self.refused = str(error) or repr(error)
            _log.warning("kvtier: this server runs without a cache: %s", self.refused)

    def _learn(self, model: Optional[str], extras: str, codec: Codec, pages: int, block_tokens: int, timeout_ms: int,
               prefetch_ms: int) -> None:
        props = self._post("/props")
        token = self._post("/tokenize", {"content": "a"})["tokens"][0]
        self._post("/completion", {"prompt": [token], "n_predict": 1, "id_slot": 0, "cache_prompt": False})
        self._form, self._n_ctx = self._saved(0), props["default_generation_settings"]["n_ctx"]
        if not self._form.planes:
            raise LayoutError("the server's slot holds nothing after it has computed a token")
        self._layout = self._form.layout(block_tokens)
        loras = [(lora.get("path"), lora.get("scale")) for lora in self._post("/lora-adapters")]
        self._blocks = BlockCache(
            self._client or self._connect,
            self._layout.geometry(named(model or weights(props["model_path"])),
                                  named(f"server {loras} {extras}"), codec),
            self._layout.segments(), self._layout.size, self._layout.stride, pages, timeout_ms, prefetch_ms)
        with contextlib.suppress(Error):
            self._blocks.open()     # the daemon is away: ask() asks it again
        for slot in range(props["total_slots"]):
            self._free.put(slot)

    def _connect(self) -> Client:
        self._own = Client(self._socket, name="llama-server", timeout_ms=self._timeout_ms)
        return self._own

    def close(self) -> None:
        """When no ask() is under way. Twice is fine."""
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = None
        self.refused = self.refused or "it is closed"
        if self._own is not None:
            self._own.close()
            self._own = None

    def __enter__(self) -> "SlotCache":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def ask(self, path: str, body: Dict[str, Any]) -> Dict[str, Any]:
        """The server's answer to a request that is not streamed: POST /completion, /v1/completions or
        /v1/chat/completions. OSError as of urllib when the server does not give one."""
        tokens = None if self.refused or body.get("stream") or body.get("lora") else self._prompt(body)
        if tokens is None:
            self.last = Reused(0, 0, Tier(0), 0, None)
            return self._post(path, body)
        slot = self._free.get()
        try:
            loaded, tiers, error = self._restore(slot, tokens)
            answer = self._post(path, {**body, "id_slot": slot, "cache_prompt": True, "n_cache_reuse": 0})
            stored, store_error = self._store(slot, tokens, answer)
            self.last = Reused(len(tokens), loaded, tiers, stored, error or store_error)
            return answer
        finally:
            self._free.put(slot)

    def _prompt(self, body: Dict[str, Any]) -> Optional[List[int]]:
        """Tokens of a request; None: it is not of text alone, or the server cannot say."""
        try:
            if "messages" in body:
                if not all(isinstance(message.get("content"), (str, type(None))) for message in body["messages"]):
                    return None
                text = self._post("/apply-template", body)["prompt"]
            else:
                text = body["prompt"]
            if isinstance(text, list):
                return text if all(isinstance(token, int) and token >= 0 for token in text) else None
            return self._post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
        except (OSError, KeyError, ValueError, AttributeError):
            return None

    def _restore(self, slot: int, tokens: List[int]) -> tuple:
        """(tokens restored, tiers, error)"""
        held = self._held.pop(slot, [])     # as of the last save; the server knows better
        have = next((i for i, (a, b) in enumerate(zip(held, tokens)) if a != b), min(len(held), len(tokens)))
        pages: List[bytes] = []
        with self._lock:
            got = self._blocks.fetch(tokens, lambda page, at: pages.append(self._checked(page, at)), len(tokens) - 1)
        if got.tokens <= have:
            return 0, Tier(0), got.error
        try:
            with self._file(slot, "restore", self._form.of_pages(self._layout, tokens[:got.tokens], pages)):
                return got.tokens, got.tiers, got.error
        except (OSError, ValueError) as error:
            return 0, Tier(0), error

    def _checked(self, page: memoryview, p0: int) -> bytes:
        wrong = self._layout.difference(page, self._layout.head(p0))
        if wrong:
            raise Error(errno.EBADMSG, f"at position {p0}: {wrong}")
        return bytes(page)

    def _store(self, slot: int, tokens: List[int], answer: Dict[str, Any]) -> tuple:
        """(blocks stored, error)"""
        usage = answer.get("usage") or {}
        most = len(tokens) + (usage.get("completion_tokens") or answer.get("tokens_predicted") or 0)
        with self._lock:
            present = self._blocks.present(tokens)
        if most // self._layout.tokens * self._layout.tokens <= present:
            self._held[slot] = tokens[:present]
            return 0, None      # no block is new
        if most >= self._n_ctx:
            return 0, None      # the context is full: it may have been shifted
        try:
            form = self._saved(slot)
            if form.planes and form.layout(self._layout.tokens).convention != self._layout.convention:
                raise LayoutError("the server's KV is laid out as it was not before")
        except (LayoutError, OSError, KeyError, ValueError) as error:
            return 0, error
        self._held[slot] = form.tokens
        with self._lock:
            got = self._blocks.store(form.tokens, lambda page, at: form.give(self._layout, page, at),
                                     self._blocks.present(form.tokens))
        return got.kept, got.error

    def _saved(self, slot: int) -> SlotFile:
        with self._file(slot, "save") as (path, said):
            with open(path, "rb") as file:
                data = file.read()
        if len(data) != said["n_written"]:
            raise LayoutError(f"{path} has {len(data)} bytes, the server wrote {said['n_written']}")
        return SlotFile(data)

    @contextlib.contextmanager
    def _file(self, slot: int, action: str, data: Optional[bytearray] = None) -> Iterator[tuple]:
        """(path, answer) of a slot's file, as long as it takes: with this content, or what the server saves."""
        name = f"kvtier-{os.getpid()}-{secrets.token_hex(8)}.bin"
        path = os.path.join(self._slots, name)
        try:
            if data is not None:
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(data)
            yield path, self._post(f"/slots/{slot}?action={action}", {"filename": name})
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _post(self, path: str, body: Optional[Dict[str, Any]] = None) -> Any:
        """GET without a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=self._answer_s) as answer:
            return json.load(answer)
