# SPDX-License-Identifier: Apache-2.0
"""kvtier.block_cache - prefixes of one engine's KV, by way of a buffer of pages that kvtierd maps.

What adapters share whose engine gives its KV away block by block (llama.cpp, transformers). The engine's part is two
functions: one writes the KV of a block into a page, the other one reads it from there. This file does the rest: keys,
lookups, loads and stores in runs of pages, a prefetch of blocks that are further away than this node.

    CLOSED --open()--> IDLE --load, store--> LENT --result taken--> IDLE
    CLOSED --a fetch or store, once in 5 s--> IDLE; the daemon is still away: CLOSED
    LENT --the daemon stands still--> CLOSED, with a fresh memfd under the same addresses

The engine always answers: fetch() and store() do not raise for a daemon that is away, slow or short of space. They say
so in `error`. Pages that a daemon which stands still may yet write into are taken back before they are used.
"""
from __future__ import annotations

import errno
import hashlib
import time
from typing import Any, Callable, NamedTuple, Optional, Sequence, Union

from . import MAX_BLOCKS, Client, Error, Geometry, Keys, Op, Result, Segment, SharedMemory, Space, Tier

__all__ = ["BlockCache", "Fetched", "Stored", "known", "milliseconds", "named"]

_AGAIN_S = 5.0     # opening a space waits for a daemon: not with every prompt


_NAME_MAX = 255    # bytes of a name of a Geometry
_MS_MAX = 24 * 3600 * 1000


def named(text: str) -> str:
    """text, if a Geometry can have it as a name; else its end behind a digest of all of it: different texts are
    different names."""
    data = text.encode()
    if len(data) <= _NAME_MAX:
        return text
    digest = hashlib.sha256(data).hexdigest()[:32]
    return f"{digest}:{data[len(digest) + 1 - _NAME_MAX:].decode(errors='ignore')}"


def known(options: Any, names: Sequence[str]) -> None:
    """ValueError, a sentence: there is an option that is none of `names`; it would be without effect."""
    wrong = sorted(str(name) for name in options if name not in names)
    if wrong:
        raise ValueError(f"no option {', '.join(wrong)}: the options are {', '.join(sorted(names))}")


def milliseconds(options: Any, name: str, default: int, least: int = 1) -> int:
    """The option of this name, `default` where it is left out. ValueError, a sentence: it is no number of
    milliseconds, or below `least`."""
    value = options.get(name, default)
    try:
        ms = int(value)
    except (TypeError, ValueError, OverflowError):
        ms = -1
    if isinstance(value, bool) or not least <= ms <= _MS_MAX:
        raise ValueError(f"option {name} is {value!r}, must be a number of milliseconds, {least} or more")
    return ms


class Fetched(NamedTuple):
    tokens: int               # leading tokens whose KV the engine has now
    tiers: Tier               # where the last of them came from
    error: Optional[Error]    # why it was not more, when that was not simply a miss


class Stored(NamedTuple):
    blocks: int               # offered
    kept: int                 # of them, in kvtier now (some may have been there before)
    error: Optional[Error]


# (page, position of the block's first token): reads the page's bytes, or writes all of them. They may raise Error.
PageFunction = Callable[[memoryview, int], None]


class BlockCache:
    """A space and its buffer of `pages` pages, each `stride` bytes apart and with `page_bytes` of content. For one
    thread at a time."""

    def __init__(self, client: Union[Client, Callable[[], Client]], geometry: Geometry,
                 segments: Sequence[Segment], page_bytes: int, stride: int, pages: int,
                 timeout_ms: int = 0, prefetch_ms: int = 1000) -> None:
        """client: or a function that connects one, which is called when the space is opened and the function
        has given none yet. timeout_ms: of one load or store, 0: the client's. prefetch_ms: how long fetch()
        waits for blocks of a prompt that are further away than this node (a Redis that nodes share); 0: it
        does not ask for them."""
        self._connect = client if callable(client) else lambda: client
        self._client: Optional[Client] = None   # None: not connected yet
        self._geometry, self._segments = geometry, list(segments)
        self._page_bytes, self._stride, self._pages = page_bytes, stride, pages
        self._timeout_ms, self._prefetch_ms = timeout_ms, prefetch_ms
        self._space: Optional[Space] = None     # None: to be opened again
        self._again = 0.0                       # not before
        self._lent: Optional[Op] = None         # it may still touch the pages
        self._ahead: Optional[Op] = None        # a prefetch whose end was not waited for
        self._shared = SharedMemory(pages * stride)

    @property
    def block_tokens(self) -> int:
        return self._geometry.block_tokens

    def open(self) -> None:
        """Opens the space. Error as Client() and Client.open_space()."""
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
        """The bytes of a page. Release it: `with`."""
        at = number * self._stride
        return self._shared.view[at:at + self._page_bytes]

    def address(self, number: int) -> int:
        """Of a page's first byte; as long as the cache is open."""
        return self._shared.address + number * self._stride

    def present(self, tokens: Sequence[int], limit: Optional[int] = None) -> int:
        """How many leading tokens this node has now: a hint, without a system call. 0 when the daemon is away."""
        try:
            keys = self._keys(tokens if limit is None else tokens[:max(0, limit)])
            return self._space.lookup(keys).blocks * self.block_tokens
        except Error:
            return 0

    def fetch(self, tokens: Sequence[int], take: PageFunction, limit: Optional[int] = None, have: int = 0) -> Fetched:
        """Gives `take` the pages of as many leading blocks of tokens as kvtier has, from the first one on. limit: so
        many leading tokens at most. have: the engine has so many of them; the first page is the one of the block in
        which they end, and there is none unless it goes further. What this node lacks is asked of Redis, if the daemon
        has one."""
        done, tiers, wrong = have // self.block_tokens, Tier(0), None
        try:
            keys = self._keys(tokens if limit is None else tokens[:max(0, limit)])
            hit = self._space.lookup(keys)
            if hit.blocks < len(keys) and self._prefetch_ms > 0 and self._client.tiers & Tier.REDIS:
                wrong = self._prefetch(keys)
                hit = self._space.lookup(keys)
            while done < hit.blocks:
                n = min(self._pages, hit.blocks - done)
                result = self._run(self._space.load, keys[done:done + n])
                for number in range(result.prefix):
                    self._use(take, number, done * self.block_tokens)
                    done, tiers = done + 1, hit.tiers
                if result.prefix < n:
                    break       # evicted since the lookup, or the daemon went: what came is good
            return Fetched(done * self.block_tokens, tiers, wrong)
        except Error as error:
            return Fetched(done * self.block_tokens, tiers, error)

    def store(self, tokens: Sequence[int], give: PageFunction, first: int = 0) -> Stored:
        """Has `give` write the full blocks of tokens from position `first` (a multiple of block_tokens) on, and stores
        them; returns when the daemon has them or will not. tokens begin at the prompt's first."""
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

    def _keys(self, tokens: Sequence[int]) -> Keys:
        self._reclaim()
        return self._space.keys(tokens)

    def _use(self, function: PageFunction, number: int, position: int) -> None:
        with self.page(number) as page:
            function(page, position)

    def _prefetch(self, keys: Keys) -> Optional[Error]:
        """Asks for the whole chain, as a block is kept only under the one before it, and waits for prefetch_ms. What
        comes later serves the next prompt. One is under way at a time, so a stopped daemon costs this wait once."""
        try:
            if self._ahead is not None:
                self._client.wait(self._ahead, 0)
            self._ahead = self._space.prefetch(keys[:MAX_BLOCKS])
            self._client.wait(self._ahead, self._prefetch_ms)
            self._ahead = None
        except Error as error:
            if error.errno != errno.ETIMEDOUT:
                self._ahead = None
            return error
        return None

    def _run(self, submit: Callable[..., Op], keys: Keys) -> Result:
        """A load or store of keys to or from the first pages. Where the wait for it ends first (a stopped
        daemon: Error ETIMEDOUT), the pages stay lent."""
        self._lent = submit(keys, range(len(keys)), timeout_ms=self._timeout_ms)
        result = self._client.wait(self._lent)
        self._lent = None
        return result

    def _reclaim(self) -> None:
        """The pages are ours again, or Error ETIMEDOUT: other bytes in them now could be stored under an
        earlier key, or overwritten by an earlier load."""
        if self._lent is not None:
            try:
                self._client.wait(self._lent, 0)
            except Error as error:
                if error.errno != errno.ENOENT:     # who else polls the client took the result: it is over
                    raise
            self._lent = None
        if self._shared.lent():     # its connection was cut, and the daemon stands still
            space, self._space = self._space, None
            if space is not None:
                space.close()
            self._ahead = None
            self._shared.take_back()
        if self._space is None:
            if time.monotonic() < self._again:
                raise Error(errno.ENOTCONN, f"no daemon has opened the space: it is asked again after {_AGAIN_S:.0f} s")
            self.open()
