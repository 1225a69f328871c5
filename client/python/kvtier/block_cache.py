# SPDX-License-Identifier: Apache-2.0
"""kvtier.block_cache - keeps prefixes of one engine's KV, by way of a buffer of pages that kvtierd maps.

The adapters of engines that give their KV away block by block (llama.cpp, transformers) are built on this file. An
engine supplies two functions: one writes the KV of a block into a page, the other one reads it from there. This file
does the rest: keys, lookups, loads and stores in runs of pages, and a prefetch of blocks that this node lacks.

    CLOSED --open()--> IDLE --load, store--> LENT --result taken--> IDLE
    CLOSED --a fetch or store, once in 5 s--> IDLE; the daemon is still away: CLOSED
    LENT --the daemon stands still--> CLOSED, with a fresh memfd under the same addresses

The engine always answers: fetch() and store() do not raise when a daemon is away, slow or short of space. They say so
in `error`. A daemon that stands still may yet write into pages, so those are taken back before they are used.
"""
from __future__ import annotations

import errno
import hashlib
import os
import struct
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

from . import MAX_BLOCKS, Client, Codec, Error, Geometry, Keys, Op, Result, Segment, SharedMemory, Space, Tier

__all__ = ["PLANE_CODECS", "Ahead", "BlockCache", "Fetched", "LayoutError", "Reused", "Stored", "as_tokens", "codec_of",
           "common", "flag", "known", "milliseconds", "named"]

PLANE_CODECS = (Codec.INT8, Codec.Q4, Codec.INT8V4)     # they need K and V planes

_AGAIN_S = 5.0     # between two tries to open a space, as each waits for a daemon
_NAME_MAX = 255    # bytes of a name in a Geometry
_MS_MAX = 24 * 3600 * 1000


def named(text: str) -> str:
    """A name for a Geometry: the text itself if it is short enough, else its end behind a digest of all of it.
    Different texts give different names."""
    data = text.encode()
    if len(data) <= _NAME_MAX:
        return text
    digest = hashlib.sha256(data).hexdigest()[:32]
    return f"{digest}:{data[len(digest) + 1 - _NAME_MAX:].decode(errors='ignore')}"


def as_tokens(digest: bytes, block_tokens: int) -> List[int]:
    """The digest as tokens that fill whole blocks: in front of a prompt they make its keys others."""
    words = struct.unpack(f"<{len(digest) // 4}I", digest)
    return [*words, *[0] * (-len(words) % block_tokens)]


def known(options: Any, names: Sequence[str], others: Sequence[str] = ()) -> Dict[str, Any]:
    """The options of an engine's JSON, and for those that it leaves out the environment's: KVTIER_CODEC is `codec`.
    others: options of the engine itself. ValueError names those that would have no effect."""
    wrong = sorted(str(name) for name in options if name not in names and name not in others)
    if wrong:
        raise ValueError(f"no option {', '.join(wrong)}: the options are {', '.join(sorted((*names, *others)))}")
    said = {name: os.environ.get(f"KVTIER_{name.upper()}") for name in names}
    return {**{name: value for name, value in said.items() if value}, **options}


def flag(options: Any, name: str, default: bool) -> bool:
    """The option of this name, or `default` where it is left out. ValueError says that it is neither true nor false."""
    value = options.get(name, default)
    if value not in (True, False, "true", "false", "1", "0"):
        raise ValueError(f"option {name} is {value!r}, must be true or false")
    return value in (True, "true", "1")


def milliseconds(options: Any, name: str, default: int, least: int = 1) -> int:
    """The option of this name, or `default` where it is left out. ValueError says that it is no number of milliseconds,
    or is below `least`."""
    value = options.get(name, default)
    try:
        ms = int(value)
    except (TypeError, ValueError, OverflowError):
        ms = -1
    if isinstance(value, bool) or not least <= ms <= _MS_MAX:
        raise ValueError(f"option {name} is {value!r}, must be a number of milliseconds, {least} or more")
    return ms


def codec_of(options: Any, *others: str) -> Codec:
    """The option `codec`: fp8, raw, or one of `others`. ValueError says that there is no such codec."""
    names, value = ("fp8", "raw", *others), options.get("codec", "")
    if value != "" and value not in names:
        raise ValueError(f"option codec is {value!r}, must be {' or '.join(repr(name) for name in names)}")
    return Codec[value.upper()] if value else Codec.DEFAULT


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two prompts have in common."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


class LayoutError(RuntimeError):
    """This engine or this model keeps its KV in a way that kvtier does not serve."""


class Reused(NamedTuple):
    """What became of one prompt."""
    prompt_tokens: int = 0
    loaded_tokens: int = 0      # how many of these got their KV from kvtier
    tiers: Tier = Tier(0)       # where the last of them came from
    stored_blocks: int = 0      # how many of the new blocks are in kvtier now
    skipped: str = ""           # why kvtier was not asked; "" when it was
    error: Optional[Exception] = None   # why it was not more: a daemon that is away, slow or full, or a server


class Fetched(NamedTuple):
    tokens: int               # how many leading tokens the engine has KV of now
    tiers: Tier               # where the last of them came from
    error: Optional[Error]    # why it was not more, if that was no miss


class Stored(NamedTuple):
    blocks: int               # how many were offered
    kept: int                 # how many of them kvtier has now; some may have been there before
    error: Optional[Error]


class Ahead:
    """Prefetches blocks that this node lacks. One prefetch is under way at a time, so a daemon that stands still costs
    the wait for one."""

    def __init__(self) -> None:
        self._op: Optional[Op] = None       # a prefetch that had not ended when the wait for it did

    def ask(self, client: Client, space: Space, keys: Keys, wait_ms: int) -> None:
        """Asks for the whole chain, as a block is kept only under the one before it, and waits for it. Blocks that come
        after the wait serve the next prompt. Raises Error."""
        try:
            if self._op is not None:
                client.wait(self._op, 0)
            self._op = space.prefetch(keys[:MAX_BLOCKS])
            client.wait(self._op, wait_ms)
            self._op = None
        except Error as error:
            if error.errno != errno.ETIMEDOUT:
                self._op = None
            raise


# Called with (page, position of the block's first token), it reads the page's bytes or writes all. It may raise Error.
PageFunction = Callable[[memoryview, int], None]


class BlockCache:
    """A space and its buffer of `pages` pages, each `stride` bytes apart and with `page_bytes` of content. One thread
    at a time may use it."""

    def __init__(self, client: Union[Client, Callable[[], Client]], geometry: Geometry,
                 segments: Sequence[Segment], page_bytes: int, stride: int, pages: int,
                 timeout_ms: int = 0, prefetch_ms: int = 1000,
                 names: Callable[[], Sequence[str]] = lambda: ("",)) -> None:
        """client: a Client, or a function that connects one; the function is called when the space is opened and it has
        not given a client yet. timeout_ms: for one load or store; 0: the client's. prefetch_ms: how long fetch() waits
        for blocks of a prompt that this node lacks and a Redis of several nodes may have; 0: it does not ask for
        them. names: what else tells these blocks from others now, such as Weights.names(): blocks are kept under the
        first name, and looked for under all. "": there is nothing else."""
        self._connect = client if callable(client) else lambda: client
        self._client: Optional[Client] = None   # None: not connected yet
        self._geometry, self._segments = geometry, list(segments)
        self._page_bytes, self._stride, self._pages = page_bytes, stride, pages
        self._timeout_ms, self._prefetch_ms, self._names = timeout_ms, prefetch_ms, names
        self._space: Optional[Space] = None     # None: it has to be opened again
        self._again = 0.0                       # the earliest time at which it is opened again
        self._lent: Optional[Op] = None         # the op that may still touch the pages
        self._ahead = Ahead()
        self._shared = SharedMemory(pages * stride)

    @property
    def block_tokens(self) -> int:
        return self._geometry.block_tokens

    def open(self) -> None:
        """Opens the space. Raises what Client() and Client.open_space() raise."""
        self._again = time.monotonic() + _AGAIN_S
        if self._client is None:
            self._client = self._connect()
        self._space = self._client.open_space(self._geometry, [self._shared.region()], self._segments)

    def close(self) -> None:
        if self._space is not None:
            self._space.close()
            self._space = None
        self._shared.close()    # what is lent still belongs to the daemon alone then

    def page(self, number: int) -> memoryview:
        """The bytes of a page, for a `with` block, which releases them."""
        at = number * self._stride
        return self._shared.view[at:at + self._page_bytes]

    def address(self, number: int) -> int:
        """The address of a page's first byte; it is valid as long as the cache is open."""
        return self._shared.address + number * self._stride

    def present(self, tokens: Sequence[int], limit: Optional[int] = None) -> int:
        """How many leading tokens this node has now. It is a hint and costs no system call; 0 while the daemon is
        away."""
        try:
            keys = self._keys(tokens if limit is None else tokens[:max(0, limit)])
            return self._space.lookup(keys).blocks * self.block_tokens
        except Error:
            return 0

    def fetch(self, tokens: Sequence[int], take: PageFunction, limit: Optional[int] = None, have: int = 0) -> Fetched:
        """Gives `take` the pages of as many leading blocks of tokens as kvtier has, from the first one on. limit: the
        most leading tokens that are asked for. have: how many of them the engine has; then the first page is the one of
        the block in which these end, and only a longer chain counts. If the daemon has a Redis, that is asked for what
        this node lacks."""
        done, tiers, wrong = have // self.block_tokens, Tier(0), None
        try:
            keys = self._keys(tokens if limit is None else tokens[:max(0, limit)])
            hit = self._space.lookup(keys)
            if hit.blocks < len(keys) and self._prefetch_ms > 0 and self._client.tiers & Tier.REDIS:
                try:
                    self._ahead.ask(self._client, self._space, keys, self._prefetch_ms)
                except Error as error:
                    wrong = error
                hit = self._space.lookup(keys)
            for name in self._names()[1:] if hit.blocks < len(keys) else ():
                older = self._keys(tokens[:len(keys) * self.block_tokens], name)
                found = self._space.lookup(older)
                if found.blocks > hit.blocks:
                    keys, hit = older, found
            while done < hit.blocks:
                n = min(self._pages, hit.blocks - done)
                result = self._run(self._space.load, keys[done:done + n])
                for number in range(result.prefix):
                    self._use(take, number, done * self.block_tokens)
                    done, tiers = done + 1, hit.tiers
                if result.prefix < n:
                    break       # a block was evicted since the lookup, or the daemon is away: what came is good
            return Fetched(done * self.block_tokens, tiers, wrong)
        except Error as error:
            return Fetched(done * self.block_tokens, tiers, error)

    def store(self, tokens: Sequence[int], give: PageFunction, first: int = 0) -> Stored:
        """Has `give` write the full blocks of tokens from position `first` (a multiple of block_tokens) on, and stores
        them. Returns when the daemon has them or refuses them. tokens begin with the prompt's first token."""
        if first % self.block_tokens:
            raise ValueError(f"first must be a multiple of {self.block_tokens}")
        done = first // self.block_tokens
        offered, kept = max(0, len(tokens) // self.block_tokens - done), 0
        try:
            keys = self._keys(tokens)
            while done < len(keys):
                n = min(self._pages, len(keys) - done)
                for number in range(n):
                    self._use(give, number, (done + number) * self.block_tokens)
                result = self._run(self._space.store, keys[done:done + n])
                kept, done = kept + result.ok, done + n
                if result.status < 0:
                    return Stored(offered, kept, Error(-result.status, "kvtier did not keep every block"))
            return Stored(offered, kept, None)
        except Error as error:
            return Stored(offered, kept, error)

    def _keys(self, tokens: Sequence[int], name: Optional[str] = None) -> Keys:
        """name: the first one if it is None."""
        self._reclaim()
        name = self._names()[0] if name is None else name
        if not name:
            return self._space.keys(tokens)
        root = bytes(self._space.keys(as_tokens(hashlib.sha256(name.encode()).digest(), self.block_tokens)))[-32:]
        return Keys.of(bytes(self._space.keys(tokens, root)))       # a prompt begins with the first of them

    def _use(self, function: PageFunction, number: int, position: int) -> None:
        with self.page(number) as page:
            function(page, position)

    def _run(self, submit: Callable[..., Op], keys: Keys) -> Result:
        """A load or store of keys to or from the first pages. If the wait for it ends first (Error ETIMEDOUT: the
        daemon stands still), the pages stay lent."""
        self._lent = submit(keys, range(len(keys)), timeout_ms=self._timeout_ms)
        result = self._client.wait(self._lent)
        self._lent = None
        return result

    def _reclaim(self) -> None:
        """Makes the pages ours again. Error ETIMEDOUT: they are lent, and other bytes in them could be stored under an
        earlier key, or be overwritten by an earlier load."""
        if self._lent is not None:
            try:
                self._client.wait(self._lent, 0)
            except Error as error:
                if error.errno != errno.ENOENT:     # the op is over, and someone else who polls has its result
                    raise
            self._lent = None
        if self._shared.lent():     # the connection was cut, and the daemon stands still
            space, self._space = self._space, None
            if space is not None:
                space.close()
            self._ahead = Ahead()
            self._shared.take_back()
        if self._space is None:
            if time.monotonic() < self._again:
                raise Error(errno.ENOTCONN, f"no daemon has opened the space: it is asked again after {_AGAIN_S:.0f} s")
            self.open()
