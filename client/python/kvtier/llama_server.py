# SPDX-License-Identifier: Apache-2.0
"""kvtier.llama_server - keeps the KV of llama.cpp's server in kvtier: of an xllamacpp.Server, or of a llama-server.

    params.slot_save_path = "/dev/shm/slots/"               # llama-server: --slot-save-path /dev/shm/slots/
    server = xllamacpp.Server(params)
    with SlotCache(server.listening_address, params.slot_save_path) as cache:
        answer = cache.ask("/v1/chat/completions", {"messages": [...], "max_tokens": 64})
        print(cache.last)       # Reused(prompt_tokens=2071, loaded_tokens=2048, ...)

The server is not patched, and it has no plug-ins: its context belongs to threads of its own. But it saves a slot to a
file, and restores one from a file (POST /slots/N?action=save). ask() looks the prompt up, makes such a file of the
blocks that kvtier has, has the server restore it into a free slot, and asks that slot, which computes the rest. Then it
has the slot saved, and stores the blocks that are new. So each prompt that gains costs a file that is written and read,
and so does each answer that fills a block. The directory belongs on a tmpfs that both the server and this process see.
A file holds:

    8 B         magic, version (kept as they came)
    4 B + 4 x   the slot's tokens, count first: -1, 1, n, n tokens, 0 (of media); or n tokens alone
    4 B         streams; of each its cells; of the one that has any: the cells and planes of llama_state.py

The server compares a prompt with the tokens in the file, and keys are made of the same tokens. So if this module reads
a prompt otherwise than the server does, that costs only hits. A server that is not understood is not served: `refused`
says why, and ask() asks it without a cache. It does the same for images and for LoRA by request, and `last.skipped`
says why. A slot that was shifted holds KV that its tokens do not say, so context shift and cache reuse must be off, as
they are by default.

The server behind the URL may change: the scales of its adapters do, or another server takes its place, with another
model or context. So KV is named by the files of the weights and adapters, by the scales, and by the KV that the server
computes of a fixed text. That KV shows what no file says, rope settings for one. Before it restores a slot, ask() asks
the server what it is, and learns it anew if it has changed or could not be reached. After an answer it asks again; if
the server has changed meanwhile, the answer is computed without restored KV, and is not stored.

A server with adapters leaves KV of other scales in a slot and continues from it. There a slot is used only as it was
restored.

Any thread may call ask(). Each call that is under way holds one of the slots of the server.
"""
from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import http.client
import itertools
import json
import logging
import os
import queue
import secrets
import struct
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Union

from . import Client, Codec, Error, Kind, Tier
from ._lib import Closes
from .block_cache import BlockCache, LayoutError, Reused, named
from .llama_cpp import BLOCK_TOKENS
from .adapters.llama_state import CELL, COLUMN_HEAD, SHORT_CELL, Layout, Plane, files_said, weights

__all__ = ["Reused", "SlotCache", "SlotFile"]

_log = logging.getLogger("kvtier")
_U32 = struct.Struct("<I")
_HEAD = struct.Struct("<3I")                # magic, version, number of the words of tokens
_MAGIC = 0x67677371
_STREAMS_MAX = 256
_WAKE_S = 0.5                               # who waits for a slot looks so often whether the server has changed
_PATHS = ("/completion", "/completions", "/v1/completions", "/chat/completions", "/v1/chat/completions")
_KNOWN_TEXT = "one two three four five six seven eight nine ten"
_UNDER_WAY = "the server has changed, and prompts of before are under way"
_AWAY = (502, 503, 504)                     # HTTP: no server answers there, or not yet
# What a server and its files can raise here.
_ERRORS = (RuntimeError, OSError, http.client.HTTPException, LookupError, TypeError, ValueError, AttributeError)


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


class _Server:
    """Requests to the server, each with the same headers."""

    def __init__(self, url: str, headers: Mapping[str, str], answer_s: float) -> None:
        self._url, self._headers, self._answer_s = url.rstrip("/"), dict(headers), answer_s
        self.failures = 0       # how many times it was not reached

    def ask(self, path: str, body: Optional[Dict[str, Any]] = None) -> Any:
        """The answer to a POST with this body, or to a GET without one."""
        with self._answer(path, body) as answer:
            return json.load(answer)

    def parts(self, path: str, body: Dict[str, Any]) -> Iterator[Any]:
        """Yields the answer, or its parts if it is a stream."""
        if not body.get("stream"):
            yield self.ask(path, body)
            return
        with self._answer(path, body) as answer:
            for line in answer:
                kind, _, data = line.partition(b":")
                if kind in (b"data", b"error") and data.strip() != b"[DONE]":
                    yield json.loads(data)

    @contextlib.contextmanager
    def _answer(self, path: str, body: Optional[Dict[str, Any]]) -> Iterator[Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json", **self._headers})
        try:
            with urllib.request.urlopen(request, timeout=self._answer_s) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            self.failures += error.code in _AWAY
            raise
        except (OSError, http.client.HTTPException):
            self.failures += 1
            raise


class _Changed(RuntimeError):
    """The server has changed, or cannot be reached now, so it is looked at again."""


class _Said(NamedTuple):
    """What a server says of itself, and this machine of its files. A server that says anything else may make other
    KV."""
    props: Dict[str, Any]       # builds of today have a word in them that differs from process to process
    loras: List[Dict[str, Any]]
    files: Dict[str, Any]
    failures: int

    @classmethod
    def of(cls, server: _Server) -> "_Said":
        failures, files = server.failures, {}
        props, loras = server.ask("/props"), server.ask("/lora-adapters")
        props.pop("is_sleeping", None)
        for path in [props["model_path"], *[lora["path"] for lora in loras]]:
            with contextlib.suppress(OSError):      # the file is not on this machine
                files[path] = files_said(path)
        return cls(props, loras, files, failures)


class _Learned(NamedTuple):
    """What is known of a server."""
    said: _Said
    form: SlotFile
    layout: Layout
    n_ctx: int


def _are_tokens(found: Any) -> bool:
    return isinstance(found, list) and all(type(token) is int and 0 <= token < 1 << 31 for token in found)


def _unserved(path: str, body: Dict[str, Any]) -> str:
    """Why a request cannot be served; "" if it can."""
    if path not in _PATHS:
        return f"{path} is not a path of completions"
    if body.get("lora"):
        return "lora is given"
    if body.get("cache_prompt") is False:
        return "cache_prompt is False"
    for name in ("n", "n_cmpl"):
        if (body.get(name) or 1) != 1:
            return f"{name} is {body[name]}"
    if "/chat/" not in path:
        prompt = body.get("prompt")
        if isinstance(prompt, str) or _are_tokens(prompt):
            return ""
        return "the prompt is neither a text nor a list of tokens"
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text":
                return f"a message has a part of type {kind}"
    return ""


def _sentence(error: Exception) -> str:
    return f"an answer of the server has no {error}" if isinstance(error, KeyError) else str(error) or repr(error)


class SlotCache(Closes):
    """The slots of one server, backed by kvtier."""

    def __init__(self, url: str, slots: str, *, client: Optional[Client] = None, socket: Optional[str] = None,
                 model: Optional[str] = None, extras: str = "", codec: Codec = Codec.RAW, pages: int = 16,
                 block_tokens: int = BLOCK_TOKENS, timeout_ms: int = 2000, prefetch_ms: int = 1000,
                 answer_s: float = 600, api_key: Optional[str] = None,
                 headers: Optional[Mapping[str, str]] = None) -> None:
        """url: the server's. slots: its slot_save_path, a directory of this machine. client: one of yours; by default
        the cache has one of its own at `socket`, which is connected when there is a daemon. model: a name that means
        equal weights, in place of the name, size and time of the server's file. extras: more text in the KV's name.
        codec, pages, timeout_ms, prefetch_ms: as for KvtierCache. answer_s: how long an answer may take. api_key: the
        server's --api-key. headers: what each request has. The server computes a few tokens here, which shows what KV
        it makes."""
        self.last, self.refused = Reused(), ""
        key = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._server, self._slots = _Server(url, {**key, **(headers or {})}, answer_s), slots
        self._ends, self._timeout_ms = contextlib.ExitStack(), timeout_ms
        self._connect = functools.cache(lambda: client or self._ends.enter_context(
            Client(socket, name="llama-server", timeout_ms=timeout_ms)))
        self._model, self._extras, self._codec, self._block_tokens = model, extras, codec, block_tokens
        self._pages, self._prefetch_ms, self._answer_s = pages, prefetch_ms, answer_s
        self._blocks: Optional[BlockCache] = None
        self._geometry: Any = None          # of the blocks
        self._lock = threading.Lock()       # guards the blocks, which one thread at a time may use. A leaf.
        self._learning = threading.Lock()   # guards what is learned; held without a slot
        self._looked: Optional[_Said] = None        # the server that was looked at last
        self._learned: Optional[_Learned] = None    # what is known of it; None: it is not served
        self._why, self._closed = "", False
        self._free: "queue.Queue[int]" = queue.Queue()
        self._total = 0                     # how many slots there are, those in use among them
        self._held: Dict[int, List[int]] = {}
        self._look()

    def _look(self, slot_s: Optional[float] = None) -> tuple:
        """(the server as it is now, one of its slots if one is free within slot_s, ""), or (None, None, why) if the
        server is not served now. `refused` is for people, as other threads may look at the same time."""
        got, slot, why = None, None, ""
        try:
            said = _Said.of(self._server)
            with self._learning:
                if said != self._looked:
                    self._learn_anew(said)
                got, why = self._learned, self._why
            if got is None:
                why = why or _UNDER_WAY
            elif slot_s is not None:
                slot = self._slot(got, slot_s)
        except _ERRORS as error:
            got, why = None, _sentence(error)
        if why and why != self.refused:
            _log.warning("kvtier: this server runs without a cache: %s", why)
        self.refused = why
        return got, slot, why

    def _slot(self, now: _Learned, slot_s: float) -> int:
        """Takes a slot of the server. Learning takes all slots, so it waits until this one is put back."""
        end = time.monotonic() + slot_s
        while now is self._learned:
            try:
                slot = self._free.get(timeout=max(0.0, min(_WAKE_S, end - time.monotonic())))
            except queue.Empty:
                if time.monotonic() < end:
                    continue
                raise _Changed(f"no slot was free for {slot_s} s") from None
            if now is self._learned:
                return slot
            self._free.put(slot)
        raise _Changed(_UNDER_WAY)

    def _learn_anew(self, said: _Said) -> None:
        """Learns the server anew, when no ask() is under way that knew it before. Raises if it has to be looked at
        again."""
        taken = []
        try:
            while len(taken) < self._total:
                taken.append(self._free.get(timeout=self._timeout_ms / 1000))
        except BaseException as error:
            for slot in taken:
                self._free.put(slot)
            raise _Changed(_UNDER_WAY) if isinstance(error, queue.Empty) else error from None
        self._looked, self._learned, self._why, self._total, self._held = None, None, "", 0, {}
        try:
            self._learned = self._learn(said)
            self._total = said.props["total_slots"]
        except _Changed:
            raise
        except _ERRORS as error:
            if self._server.failures != said.failures:
                raise
            self._why = _sentence(error)
        self._looked = said
        for slot in range(self._total):
            self._free.put(slot)

    def _learn(self, said: _Said) -> _Learned:
        if any(lora.get("alora_invocation_tokens") for lora in said.loras):
            raise LayoutError("an adapter that a text in the prompt activates (aLoRA): KV depends on what follows")
        tokens = self._server.ask("/tokenize", {"content": _KNOWN_TEXT})["tokens"]
        self._server.ask("/completion", {"prompt": tokens, "n_predict": 1, "id_slot": 0, "cache_prompt": False})
        form = self._saved(0)
        if form.tokens[:len(tokens)] != tokens or not form.planes:
            raise LayoutError("the server's slot does not hold the tokens that it has computed")
        if _Said.of(self._server) != said:
            raise _Changed("the server changed as it was looked at")
        layout, path = form.layout(self._block_tokens), said.props["model_path"]
        if not self._model and path not in said.files:
            raise LayoutError(f"the server's model {path} is not on this machine: `model` names its weights then")
        loras = [(lora["path"], lora["scale"], said.files.get(lora["path"])) for lora in said.loras]
        geometry = layout.geometry(named(self._model or weights(path)),
                                   named(f"server {form.digest(len(tokens))} {loras} {self._extras}"), self._codec)
        with self._lock:
            self._open(geometry, layout)
        return _Learned(said, form, layout, said.props["default_generation_settings"]["n_ctx"])

    def _open(self, geometry: Any, layout: Layout) -> None:
        """Opens blocks of this geometry, or keeps those that are open if it is theirs."""
        if self._blocks is not None and geometry == self._geometry:
            return
        if self._blocks is not None:
            self._blocks.close()
        self._geometry = geometry
        self._blocks = BlockCache(self._connect, geometry, layout.segments(), layout.size,
                                  layout.stride, self._pages, self._timeout_ms, self._prefetch_ms)
        with contextlib.suppress(Error):
            self._blocks.open()     # if the daemon is away, ask() asks it again

    def close(self) -> None:
        """Closes the cache. No ask() may be under way. It may be called twice."""
        self.refused, self._closed = "it is closed", True
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = None
        self._ends.close()

    def ask(self, path: str, body: Dict[str, Any]) -> Union[Dict[str, Any], Iterator[Dict[str, Any]]]:
        """The server's answer to a POST of this body. kvtier serves /completion, /v1/completions and
        /v1/chat/completions; other requests are asked without it. With "stream": true this is an iterator of the
        answer's parts. It asks when its first part is taken, and sets `last` when all were taken. OSError, as urllib
        raises it: the server gives no answer."""
        parts = self._parts(path, body)
        if body.get("stream"):
            return parts
        answer, = parts
        return answer

    def _parts(self, path: str, body: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
        """Yields the parts of the answer. When all were taken, what is new is stored."""
        skipped = _unserved(path, body) or ("it is closed" if self._closed else "")
        now, slot, why = (None, None, skipped) if skipped else self._look(self._answer_s)
        try:
            if now is None:
                skipped = why
            else:
                tokens = self._tokens(path, body)
        except _ERRORS as error:
            skipped = f"the prompt's tokens are not known: {_sentence(error)}"
        try:
            if skipped:
                self.last = Reused(skipped=skipped)
                yield from self._server.parts(path, body)
            else:
                yield from self._served(now, slot, tokens, path, body)
        finally:
            if slot is not None:
                self._free.put(slot)

    def _tokens(self, path: str, body: Dict[str, Any]) -> List[int]:
        found = self._server.ask("/apply-template", body)["prompt"] if "/chat/" in path else body["prompt"]
        if not isinstance(found, list):
            body = {"content": found, "add_special": True, "parse_special": True}
            found = self._server.ask("/tokenize", body)["tokens"]
        if not _are_tokens(found):
            raise ValueError(f"the server says {found!r:.80}")
        return found

    def _served(self, now: _Learned, slot: int, tokens: List[int], path: str, body: Dict[str, Any]
                ) -> Iterator[Dict[str, Any]]:
        loaded, tiers, error = self._restore(now, slot, tokens)
        body = {**body, "id_slot": slot, "cache_prompt": bool(loaded) or not now.said.loras, "n_cache_reuse": 0}
        parts = self._server.parts(path, body)
        first = list(itertools.islice(parts, 1))
        if loaded and self._changed(now):
            parts.close()       # the answer may have continued from KV that is not this server's
            loaded, tiers, error = 0, Tier(0), _Changed("the server changed as it answered")
            first, parts = [], self._server.parts(path, {**body, "cache_prompt": False})
        self.last, timings = Reused(len(tokens), loaded, tiers, error=error), {}
        for part in itertools.chain(first, parts):
            if isinstance(part, dict):
                timings = part.get("timings") or timings
            yield part
        stored, store_error = self._store(now, slot, tokens, loaded, timings)
        self.last = Reused(len(tokens), loaded, tiers, stored, "", error or store_error)

    def _changed(self, now: _Learned) -> bool:
        try:
            return _Said.of(self._server) != now.said
        except _ERRORS:
            return True

    def _restore(self, now: _Learned, slot: int, tokens: List[int]) -> tuple:
        """Restores what kvtier has of these tokens. Returns (tokens restored, tiers, error)."""
        held = self._held.pop(slot, [])     # at the last save; the server knows better
        have = next((i for i, (a, b) in enumerate(zip(held, tokens)) if a != b), min(len(held), len(tokens)))
        pages: List[bytes] = []

        def take(page: memoryview, p0: int) -> None:
            wrong = now.layout.difference(page, now.layout.head(p0))
            if wrong:
                raise Error(errno.EBADMSG, f"at position {p0}: {wrong}")
            pages.append(bytes(page))

        with self._lock:
            got = self._blocks.fetch(tokens, take, len(tokens) - 1)
        if got.tokens <= have:
            return 0, Tier(0), got.error
        try:
            with self._file(slot, "restore", now.form.of_pages(now.layout, tokens[:got.tokens], pages)):
                return got.tokens, got.tiers, got.error
        except _ERRORS as error:
            return 0, Tier(0), error

    def _store(self, now: _Learned, slot: int, tokens: List[int], loaded: int, timings: Dict[str, Any]) -> tuple:
        """Stores the new blocks of a slot. Returns (blocks stored, error)."""
        with self._lock:
            present = self._blocks.present(tokens)
        try:
            if not timings:
                raise LayoutError("the answer has no timings, which count its tokens")
            most = len(tokens) + timings["predicted_n"]
            if most // now.layout.tokens * now.layout.tokens <= present:
                self._hold(now, slot, tokens[:present])
                return 0, None      # no block is new
            if most >= now.n_ctx:
                return 0, None      # the context is full: it may have been shifted
            if now.said.loras and timings["cache_n"] not in (0, loaded):
                raise LayoutError("the slot held another prompt, perhaps with adapters of its own")
            form = self._saved(slot)
            if form.planes and form.layout(now.layout.tokens).convention != now.layout.convention:
                raise LayoutError("the server's KV is laid out as it was not before")
            if self._changed(now):
                raise _Changed("the server changed as it answered")
        except _ERRORS as error:
            return 0, error
        self._hold(now, slot, form.tokens)
        with self._lock:
            got = self._blocks.store(form.tokens, lambda page, at: form.give(now.layout, page, at),
                                     self._blocks.present(form.tokens))
        return got.kept, got.error

    def _hold(self, now: _Learned, slot: int, tokens: List[int]) -> None:
        if not now.said.loras:
            self._held[slot] = tokens

    def _saved(self, slot: int) -> SlotFile:
        with self._file(slot, "save") as (path, said):
            with open(path, "rb") as file:
                data = file.read()
        if len(data) != said["n_written"]:
            raise LayoutError(f"{path} has {len(data)} bytes, the server wrote {said['n_written']}")
        return SlotFile(data)

    @contextlib.contextmanager
    def _file(self, slot: int, action: str, data: Optional[bytearray] = None) -> Iterator[tuple]:
        """Yields (path, answer) of a slot's file for a `with` block: the file has this content, or what the server
        saves."""
        name = f"kvtier-{os.getpid()}-{secrets.token_hex(8)}.bin"
        path = os.path.join(self._slots, name)
        try:
            if data is not None:
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(data)
            yield path, self._server.ask(f"/slots/{slot}?action={action}", {"filename": name})
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
