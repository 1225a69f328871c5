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

Any thread may call ask(). Each call that is under way holds one of the slots of the server: of the free ones that
which holds the most of its prompt already. question() is ask() for a program that speaks to the server itself, as
kvtier.llama_proxy does.
"""
from __future__ import annotations

import contextlib
import errno
import functools
import http.client
import itertools
import json
import logging
import os
import secrets
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Union

from . import Client, Codec, Error, Tier
from ._lib import Closes
from .block_cache import BlockCache, LayoutError, Reused, common, named
from .llama_cpp import BLOCK_TOKENS
from .adapters.llama_slots import SlotFile
from .adapters.llama_state import Layout
from .adapters.weights import Weights, said as files_said, space_of

__all__ = ["PATHS", "Question", "Reused", "SlotCache", "SlotFile"]

_log = logging.getLogger("kvtier")
_WAKE_S = 0.5                               # who waits for a slot looks so often whether the server has changed
# A POST to one of these asks for the completion of a prompt.
PATHS = ("/completion", "/completions", "/v1/completions", "/chat/completions", "/v1/chat/completions")
_STORED_S = 10                              # so long a prompt waits for a slot that is being stored, and has more of it
_KNOWN_TEXT = "one two three four five six seven eight nine ten"
_UNDER_WAY = "the server has changed, and prompts of before are under way"
_SLOTS_MAX = 4096
_SAID_MAX = 1 << 16                          # bytes of what a server says of an error
_AWAY = (502, 503, 504)                     # HTTP: no server answers there, or not yet
# What a server and its files can raise here.
_ERRORS = (RuntimeError, OSError, http.client.HTTPException, LookupError, TypeError, ValueError, AttributeError)


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
            files[path] = files_said(path)      # []: the file is not on this machine
        return cls(props, loras, files, failures)


class _Learned(NamedTuple):
    """What is known of a server."""
    said: _Said
    form: SlotFile
    layout: Layout
    n_ctx: int


def _are_tokens(found: Any) -> bool:
    return isinstance(found, list) and all(type(token) is int and 0 <= token < 1 << 31 for token in found)


def _one_prompt(prompt: Any) -> Any:
    """The one prompt of a list that has no other, or what was given."""
    return prompt[0] if isinstance(prompt, list) and len(prompt) == 1 and not _are_tokens(prompt) else prompt


def _unserved(path: str, body: Any) -> str:
    """Why a request cannot be served; "" if it can."""
    if not isinstance(body, dict):
        return "the body is no JSON object"
    if path not in PATHS:
        return f"{path} is not a path of completions"
    if body.get("lora"):
        return "lora is given"
    if body.get("cache_prompt") is False:
        return "cache_prompt is False"
    for name in ("n", "n_cmpl"):
        if (body.get(name) or 1) != 1:
            return f"{name} is {body[name]}"
    if "/chat/" not in path:
        prompt = _one_prompt(body.get("prompt"))
        if isinstance(prompt, str) or _are_tokens(prompt):
            return ""
        return "the prompt is neither one text nor a list of tokens"
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text":
                return f"a message has a part of type {kind}"
    return ""


def _sentence(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"an answer of the server has no {error}"
    if isinstance(error, urllib.error.HTTPError):
        with contextlib.suppress(*_ERRORS):
            return f"{error}: {json.loads(error.read(_SAID_MAX))['error']['message']}"
    return str(error) or repr(error)


class SlotCache(Closes):
    """The slots of one server, backed by kvtier."""

    def __init__(self, url: str, slots: str, *, client: Optional[Client] = None, socket: Optional[str] = None,
                 model: Optional[str] = None, extras: str = "", codec: Codec = Codec.RAW, pages: int = 16,
                 block_tokens: int = BLOCK_TOKENS, timeout_ms: int = 2000, prefetch_ms: int = 1000,
                 answer_s: float = 600, api_key: Optional[str] = None,
                 headers: Optional[Mapping[str, str]] = None) -> None:
        """url: the server's. slots: its slot_save_path, a directory of this machine. client: one of yours; by default
        the cache has one of its own at `socket`, which is connected when there is a daemon. model: a name that means
        equal weights, in place of the content of the server's file. extras: more text in the KV's name.
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
        self._weights = Weights()
        self._lock = threading.Lock()       # guards the blocks, which one thread at a time may use. A leaf.
        self._learning = threading.Lock()   # guards what is learned; held without a slot
        self._looked: Optional[_Said] = None        # the server that was looked at last
        self._learned: Optional[_Learned] = None    # what is known of it; None: it is not served
        self._why, self._closed = "", False
        self._freed = threading.Condition()     # guards the free slots. A leaf.
        self._free: List[int] = []              # the one first that was put back first
        self._total = 0                         # how many slots there are, those in use among them
        self._held: Dict[int, List[int]] = {}   # the tokens of a slot when it was saved; the server knows better
        self._storing: Dict[int, List[int]] = {}    # the prompts of slots that are being saved and stored
        self._look()

    def _look(self) -> tuple:
        """(the server as it is now, ""), or (None, why) if the server is not served now. `refused` is for people, as
        other threads may look at the same time."""
        got, why = None, ""
        try:
            said = _Said.of(self._server)
            with self._learning:
                if said != self._looked:
                    self._learn_anew(said)
                got, why = self._learned, self._why
            why = why or ("" if got else _UNDER_WAY)
        except _ERRORS as error:
            got, why = None, _sentence(error)
        if why and why != self.refused:
            _log.warning("kvtier: this server runs without a cache: %s", why)
        self.refused = why
        return got, why

    def _slot(self, now: _Learned, tokens: List[int], gone: Callable[[], bool]) -> int:
        """Takes the free slot that holds the most blocks of these tokens. A slot that has more of them, and is being
        stored just now, is waited for. Learning takes all slots, so it waits until this one is put back. Raises if no
        slot comes free in time, or for a client that has gone."""
        def blocks(held: Sequence[int]) -> int:
            return common(held, tokens) // now.layout.tokens

        began = time.monotonic()
        with self._freed:
            while now is self._learned:
                waited = time.monotonic() - began
                slot = max(self._free, key=lambda slot: blocks(self._held.get(slot, ())), default=None)
                if slot is not None:
                    most = blocks(self._held.get(slot, ()))
                    if waited > _STORED_S or all(blocks(other) <= most for other in list(self._storing.values())):
                        self._free.remove(slot)
                        return slot
                if gone() or waited > self._answer_s:
                    raise _Changed("no slot came free in time")
                self._freed.wait(_WAKE_S)
        raise _Changed(_UNDER_WAY)

    def _put_back(self, slots: Iterable[int]) -> None:
        with self._freed:
            self._free += slots
            self._freed.notify_all()

    def _learn_anew(self, said: _Said) -> None:
        """Learns the server anew, when no prompt is under way that knew it before. Raises if it has to be looked at
        again."""
        taken: List[int] = []
        try:
            with self._freed:
                while len(taken) < self._total:
                    if not self._freed.wait_for(lambda: self._free, self._timeout_ms / 1000):
                        raise _Changed(_UNDER_WAY)
                    taken.append(self._free.pop())
        except BaseException:
            self._put_back(taken)
            raise
        self._looked, self._learned, self._why, self._total, self._held = None, None, "", 0, {}
        try:
            total = said.props["total_slots"]
            if not 1 <= total <= _SLOTS_MAX:
                raise LayoutError(f"the server says that it has {total} slots, of which 1 to {_SLOTS_MAX} are served")
            self._learned, self._total = self._learn(said), total
        except _Changed:
            raise
        except _ERRORS as error:
            if self._server.failures != said.failures:
                raise
            self._why = _sentence(error)
        self._looked = said
        self._put_back(range(self._total))

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
        if not self._model and not said.files[path]:
            raise LayoutError(f"the server's model {path} is not on this machine: `model` names its weights then")
        loras = [("" if said.files[lora["path"]] else lora["path"], lora["scale"]) for lora in said.loras]
        weights = Weights(None if self._model else path, *[lora["path"] for lora in said.loras],
                          say=lambda text: _log.info("kvtier: %s", text))
        geometry = layout.geometry(named(self._model or space_of(path, "gguf")),
                                   named(f"server {form.digest(len(tokens))} {loras} {self._extras}"), self._codec)
        with self._lock:
            self._open(geometry, layout, weights)
        return _Learned(said, form, layout, said.props["default_generation_settings"]["n_ctx"])

    def _open(self, geometry: Any, layout: Layout, weights: Weights) -> None:
        """Opens blocks of this geometry, or keeps those that are open if it is theirs."""
        self._weights = weights
        weights.names()         # it begins to read
        if self._blocks is not None and geometry == self._geometry:
            return
        if self._blocks is not None:
            self._blocks.close()
        self._geometry = geometry
        self._blocks = BlockCache(self._connect, geometry, layout.segments(), layout.size,
                                  layout.stride, self._pages, self._timeout_ms, self._prefetch_ms,
                                  lambda: self._weights.names())
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
        with self.question(path, body) as question:
            parts, timings = self._server.parts(path, question.body), {}
            first = list(itertools.islice(parts, 1))
            if question.outdated():
                parts.close()
                first, parts = [], self._server.parts(path, question.body)
            for part in itertools.chain(first, parts):
                if isinstance(part, dict):
                    timings = part.get("timings") or timings
                yield part
            question.ended(timings)

    @contextlib.contextmanager
    def question(self, path: str, body: Any, gone: Callable[[], bool] = lambda: False) -> Iterator["Question"]:
        """A Question for a `with` block: what the server is to be asked in place of this body, and a slot that has been
        restored for it. gone: whether the client does not wait for it any more."""
        slot, skipped, tokens = None, _unserved(path, body) or ("it is closed" if self._closed else ""), []
        now, why = (None, skipped) if skipped else self._look()
        skipped = skipped or why
        try:
            if now is not None:
                tokens = self._tokens(path, body)
                slot = self._slot(now, tokens, gone)
        except _Changed as error:
            skipped = str(error)
        except _ERRORS as error:
            skipped = f"the prompt's tokens are not known: {_sentence(error)}"
        try:
            if skipped:
                self._held.clear()      # the server takes any slot for it
                yield Question(self, body, Reused(skipped=skipped))
            else:
                loaded, tiers, error = self._restore(now, slot, tokens)
                body = {**body, "id_slot": slot, "cache_prompt": bool(loaded) or not now.said.loras,
                        "n_cache_reuse": 0}
                yield Question(self, body, Reused(len(tokens), loaded, tiers, error=error), now, slot, tokens)
        finally:
            if slot is not None:
                self._put_back([slot])

    def _tokens(self, path: str, body: Dict[str, Any]) -> List[int]:
        if "/chat/" in path:
            found = self._server.ask("/apply-template", body)["prompt"]
        else:
            found = _one_prompt(body["prompt"])
        if not isinstance(found, list):
            body = {"content": found, "add_special": True, "parse_special": True}
            found = self._server.ask("/tokenize", body)["tokens"]
        if not _are_tokens(found):
            raise ValueError(f"the server says {found!r:.80}")
        return found

    def _changed(self, now: _Learned) -> bool:
        try:
            return _Said.of(self._server) != now.said
        except _ERRORS:
            return True

    def _restore(self, now: _Learned, slot: int, tokens: List[int]) -> tuple:
        """Restores what kvtier has of these tokens. Returns (tokens restored, tiers, error)."""
        have = common(self._held.pop(slot, ()), tokens)
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
        """Stores the new blocks of a slot. timings: {} if the answer has none. Returns (blocks stored, error)."""
        with self._lock:
            present = self._blocks.present(tokens)
        try:
            most = len(tokens) + timings.get("predicted_n", 0)
            if most // now.layout.tokens * now.layout.tokens <= present:
                self._hold(now, slot, tokens[:present])
                return 0, None      # no block is new
            if most >= now.n_ctx:
                return 0, None      # the context is full: it may have been shifted
            if now.said.loras and timings.get("cache_n") not in (0, loaded):
                raise LayoutError("the slot held another prompt, perhaps with adapters of its own")
            form = self._saved(slot)
            if form.planes and form.layout(now.layout.tokens).convention != now.layout.convention:
                raise LayoutError("the server's KV is laid out as it was not before")
            if self._changed(now):
                raise _Changed("the server changed as it answered")
        except _ERRORS as error:
            return 0, error
        self._hold(now, slot, form.tokens)
        # An answer that was cut off says not how long it is, so perhaps it was shifted: what is the prompt's was not.
        tokens = form.tokens if timings else form.tokens[:common(form.tokens, tokens)]
        with self._lock:
            got = self._blocks.store(tokens, lambda page, at: form.give(now.layout, page, at),
                                     self._blocks.present(tokens))
        return got.kept, got.error

    def _hold(self, now: _Learned, slot: int, tokens: List[int]) -> None:
        if not now.said.loras:
            self._held[slot] = tokens

    def _saved(self, slot: int) -> SlotFile:
        with self._file(slot, "save") as (path, said):
            try:
                with open(path, "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                raise LayoutError(f"the server saved a slot, and {path} is not there: --slot-save-path has to be this "
                                  "directory, on this machine") from None
        if len(data) != said["n_written"]:
            raise LayoutError(f"{path} has {len(data)} bytes, the server wrote {said['n_written']}")
        return SlotFile(data)

    @contextlib.contextmanager
    def _file(self, slot: int, action: str, data: Optional[bytearray] = None) -> Iterator[tuple]:
        """Yields (path, answer) of a slot's file for a `with` block: the file has this content, or what the server
        saves."""
        name = f"kvtier-{os.getpid()}-{secrets.token_hex(8)}.bin"
        path = os.path.join(self._slots, name)
        self._sweep()
        try:
            if data is not None:
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(data)
            yield path, self._server.ask(f"/slots/{slot}?action={action}", {"filename": name})
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _sweep(self) -> None:
        """Removes files that are older than any request: those who made them were killed."""
        with contextlib.suppress(OSError), os.scandir(self._slots) as entries:
            for entry in entries:
                if entry.name.startswith("kvtier-") and time.time() - entry.stat().st_mtime > 2 * self._answer_s:
                    os.unlink(entry.path)


class Question:
    """One request to a server, and its slot. One thread uses it."""

    def __init__(self, cache: SlotCache, body: Any, reused: Reused, now: Optional[_Learned] = None, slot: int = 0,
                 tokens: Sequence[int] = ()) -> None:
        self.body = body        # what the server is to be asked
        self._cache, self._now, self._slot, self._tokens = cache, now, slot, tokens
        self._became(reused)

    def _became(self, reused: Reused) -> None:
        self.reused = self._cache.last = reused

    def outdated(self) -> bool:
        """Called when the answer has begun. If True, the answer may have continued from KV that is not this server's:
        ask anew, with what `body` is now."""
        if not self.reused.loaded_tokens or not self._cache._changed(self._now):
            return False
        self.body = {**self.body, "cache_prompt": False}
        self._became(Reused(len(self._tokens), error=_Changed("the server changed as it answered")))
        return True

    def lost(self) -> None:
        """Called if the server was not reached, or cut its answer off: it is learned anew."""
        self._cache._server.failures += 1

    def ended(self, timings: Dict[str, Any]) -> None:
        """Called after the answer, with its `timings`; {} if it was cut off or has none. What is new is stored."""
        if self._now is None:
            return
        loaded, error = self.reused.loaded_tokens, self.reused.error
        self._cache._storing[self._slot] = self._tokens
        try:
            stored, store_error = self._cache._store(self._now, self._slot, self._tokens, loaded, timings)
        finally:
            del self._cache._storing[self._slot]
        self._became(self.reused._replace(stored_blocks=stored, error=error or store_error))
