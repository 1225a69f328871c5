# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.sglang_core - what kvtier.sglang does, so that it is read and tested without SGLang and torch.

    where pages lie     planes(), runs(): a Layout from shapes, strides and addresses that a pool of the engine gives
    what they are       geometry_of(): the space of a pool: model, rank, page size
    moving them         Store: exists(), present(), get(), set()

SGLang names a page by a string, a hash of all tokens up to its end. A key of kvtier is made from that name and from a
root that the daemon made for this tenant and space, so a page's name has no meaning for another tenant.

A Store answers within its deadline and raises only for a mistake of its caller. SGLang calls it from several threads.
Each thread has a connection of its own, so that it can close that when the daemon stands still. Then no page of its
call is touched after the answer.

    AWAY --a call, once in 5 s--> OPEN --a wait runs out: the daemon stands still--> closed, AWAY for all threads
"""
from __future__ import annotations

import contextlib
import ctypes as C
import errno
import hashlib
import os
import threading
import time
from collections import Counter
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import (MAX_BLOCKS, Client, Codec, Dtype, Error, Geometry, Keys, Kind, Op, Region, Result, Segment, Space, Tier,
               lent)
from ..block_cache import Ahead, LayoutError, named
from .vllm_layout import DTYPES, MAX_REGIONS, SIZES, Regions, Tensor

__all__ = ["KV_AXES", "LATENT_AXES", "Layout", "Pool", "Store", "add_batch", "anchor", "geometry_of", "page_bytes",
           "planes", "runs"]

CONVENTION = "sglang"
AGAIN_S = 5.0           # between two tries to reach a daemon that is away
SLACK_MS = 200          # an op ends at its deadline, and its end is seen a little later
LENT_S = 60.0           # twice as long as systemd lets a daemon stand still
_SINGLES = 64           # how many ops of pages without a chain are under way at once

# The axes of a pool's tensor, by the name that SGLang gives to their order. p: page, t: token of a page, s: slot
# (page * tokens + token), l: layer, h: head, g: group of heads, c: K or V, d: value of a head.
KV_AXES = {"layer_first": "lshd", "page_first": "slhd", "page_first_direct": "plthd", "page_head": "phtld",
           "page_unified": "pglcthd"}
LATENT_AXES = {"layer_first": "lshd", "page_first": "slhd", "page_first_direct": "plthd", "page_unified": "pltd"}


# --- where the engine's pages lie ---

class Layout(NamedTuple):
    """The layout of a pool's pages. pages: how many there are. order: what the bytes of a page mean beyond their
    geometry. "": they are K and V of known heads, so that pools with other orders of values share blocks."""
    regions: List[Region]
    segments: List[Segment]
    dtype: Dtype
    layers: int
    heads: int
    dim_k: int
    dim_v: int
    opaque_bytes: int
    pages: int
    order: str = ""


class _Axes:
    """A tensor's axes by name, with their strides in bytes."""

    def __init__(self, tensor: Tensor, axes: str, tokens: int) -> None:
        if tensor.dtype not in DTYPES:
            raise LayoutError(f"{tensor.name}: values of type {tensor.dtype}")
        if len(tensor.shape) != len(axes):
            raise LayoutError(f"{tensor.name}: shape {tensor.shape}, where {len(axes)} axes are expected ({axes})")
        self.tensor, self.dtype = tensor, DTYPES[tensor.dtype]
        self.size = SIZES[self.dtype]
        self.n = dict(zip(axes, tensor.shape))
        self.stride = {axis: stride * self.size for axis, stride in zip(axes, tensor.strides)}
        if self.n["d"] > 1 and self.stride["d"] != self.size:
            raise LayoutError(f"{tensor.name}: the values of a head are {self.stride['d']} bytes apart")
        if "s" in axes:
            self.pages, rest = divmod(self.n["s"], tokens)
            if rest:
                raise LayoutError(f"{tensor.name}: {self.n['s']} slots are no whole pages of {tokens} tokens")
            self.page_stride, self.token_stride = self.stride["s"] * tokens, self.stride["s"]
        else:
            if self.n["t"] != tokens:
                raise LayoutError(f"{tensor.name}: pages of {self.n['t']} tokens; the pool has {tokens}")
            self.pages, self.page_stride, self.token_stride = self.n["p"], self.stride["p"], self.stride["t"]
        self.heads, self.head_stride = self._heads()

    def _heads(self) -> Tuple[int, int]:
        groups, inside = self.n.get("g", 1), self.n.get("h", 1)
        if groups > 1 and inside > 1 and self.stride["g"] != inside * self.stride["h"]:
            raise LayoutError(f"{self.tensor.name}: {groups} groups of {inside} heads have no common stride")
        axis = "h" if inside > 1 else "g" if groups > 1 else ""
        return groups * inside, self.stride[axis] if axis else self.n["d"] * self.size


def planes(k: Sequence[Tensor], v: Sequence[Tensor], axes: str, tokens: int, rope: int = 0) -> Layout:
    """The layout of a pool whose K and V have known heads. k, v: a tensor for each layer, or one with an axis of
    layers. axes: as in KV_AXES; with "c" k and v are the same tensor. If v is empty there is only K (a latent of MLA),
    and the last `rope` values of a token are kept as they are. LayoutError: the pool is not like this."""
    regions, segments, like, dims, layers = Regions(), [], set(), [], []
    for kind, tensors in ((Kind.K, k), (Kind.V, v)):
        parts = [_Axes(tensor, axes, tokens) for tensor in tensors]
        like |= {(part.dtype, part.heads, part.pages) for part in parts}
        widths = {part.n["d"] for part in parts}
        if len(widths) > 1 or (kind == Kind.K and widths and min(widths) <= rope):
            raise LayoutError(f"heads of {sorted(widths)} values")
        dims.append(widths.pop() if widths else 0)
        layers.append(0)
        for part in parts:
            for i in range(part.n.get("l", 1)):
                segments += _segments(part, kind, i, layers[-1], regions.of(part.tensor), rope)
                layers[-1] += 1
    if len(like) != 1 or not layers[0] or layers[1] not in (0, layers[0]):
        raise LayoutError(f"K has {layers[0]} layers, V {layers[1]}, of {len(like)} kinds: all must be of one")
    dtype, heads, pages = like.pop()
    return Layout(regions.all, segments, dtype, layers[0], heads, dims[0] - rope, dims[1],
                  rope * SIZES[dtype] * tokens * layers[0], pages)


def _segments(part: _Axes, kind: Kind, axis: int, layer: int, region: int, rope: int) -> List[Segment]:
    """The segments of the layer with this index in a tensor's axis; the pool knows it as `layer`."""
    at = part.tensor.offset + axis * part.stride.get("l", 0) + (part.stride.get("c", 0) if kind == Kind.V else 0)
    ret = [Segment(kind, at, part.page_stride, layer, part.head_stride, part.token_stride, region=region)]
    if rope:
        ret.append(Segment(Kind.OPAQUE, at + (part.n["d"] - rope) * part.size, part.page_stride,
                           token_stride=part.token_stride, length=rope * part.size, region=region))
    return ret


def page_bytes(layout: Layout, tokens: int) -> int:
    """How many bytes of the engine a page has."""
    values = layout.layers * layout.heads * (layout.dim_k + layout.dim_v) * tokens
    return values * SIZES[layout.dtype] + layout.opaque_bytes


Runs = Sequence[Tuple[int, int]]        # (address, bytes), in the engine's order


def runs(at: Callable[[int], Runs], pages: int, order: str, cuda: bool = False) -> Layout:
    """The layout of a pool for which only the place of page p is known, at(p), and not what its bytes mean. They are
    kept as they are. LayoutError: the pages are not alike."""
    first, second, last = at(0), at(min(1, pages - 1)), at(pages - 1)
    if not first or not all(length > 0 for _, length in first):
        raise LayoutError("its pages have no bytes")
    strides = [b[0] - a[0] for a, b in zip(first, second)] if pages > 1 else [length for _, length in first]
    for page, number in ((second, min(1, pages - 1)), (last, pages - 1)):
        if [(a + number * stride, n) for (a, n), stride in zip(first, strides)] != list(page) or min(strides) <= 0:
            raise LayoutError("its pages are not one stride apart")
    spans = sorted((a, a + (pages - 1) * stride + n) for (a, n), stride in zip(first, strides))
    joined: List[List[int]] = []
    for begin, end in spans:
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    if len(joined) > MAX_REGIONS:
        raise LayoutError(f"its pages lie in more than {MAX_REGIONS} pieces of memory")
    segments = []
    for (address, length), stride in zip(first, strides):
        region = next(i for i, (begin, end) in enumerate(joined) if begin <= address < end)
        segments.append(Segment(Kind.OPAQUE, address - joined[region][0], stride, length=length, region=region))
    regions = [Region(end - begin, **({"cuda": begin} if cuda else {"base": begin})) for begin, end in joined]
    sizes = hashlib.sha256(repr([length for _, length in first]).encode()).hexdigest()[:16]
    return Layout(regions, segments, Dtype.INT8, 1, 0, 0, 0, sum(length for _, length in first), pages,
                  f"{order}/{sizes}")


_ANCHOR = C.create_string_buffer(64)


def anchor() -> Layout:
    """The layout of a pool that has pages without bytes. Each is the same 64 zeros, so that it can be there or not."""
    return Layout([Region(64, base=C.addressof(_ANCHOR))], [Segment(Kind.OPAQUE, 0, 64, length=64)], Dtype.INT8, 1, 0,
                  0, 0, 64, 1, "anchor")


def geometry_of(layout: Layout, model: str, extras: Dict[str, Any], tokens: int, rank: int, world: int,
                codec: Codec) -> Geometry:
    """The space of a pool. codec: the one for values that are known; others are kept raw."""
    text = ";".join(f"{key}={value}" for key, value in {**extras, "order": layout.order}.items() if value)
    if layout.order or (codec == Codec.DEFAULT and layout.dtype == Dtype.FP32):
        codec = Codec.RAW
    return Geometry(named(model), CONVENTION, layout.dtype, layout.layers, layout.heads, layout.dim_k, layout.dim_v,
                    tokens, extras=named(text), rank=rank, world=world, codec=codec, opaque_bytes=layout.opaque_bytes)


# --- moving pages ---

class Pool(NamedTuple):
    layout: Layout
    geometry: Geometry


class _Open:
    """A thread's connection, and what is open over it."""

    def __init__(self, client: Client) -> None:
        self.client, self.process = client, os.getpid()
        self.spaces: Dict[Tuple[str, bool], Space] = {}     # by pool, and whether the space has its memory
        self.roots: Dict[str, bytes] = {}
        self.ahead = Ahead()


def add_batch(metrics: Any, load: bool, n: int, pool: Pool, seconds: float) -> None:
    """Adds a batch of n pages to a StorageMetrics of SGLang, with its GB/s of 2^30 bytes of the engine. A batch that
    nobody asks for is left out behind a thousand others."""
    pages, speeds = ((metrics.prefetch_pgs, metrics.prefetch_bandwidth) if load else
                     (metrics.backup_pgs, metrics.backup_bandwidth))
    if len(pages) < 1000:
        pages.append(n)
        speeds.append(n * page_bytes(pool.layout, pool.geometry.block_tokens) / (1 << 30) / max(seconds, 1e-9))


class Store:
    """connect: gives a client whose timeout is timeout_ms. If the daemon stands still, a call takes about twice that at
    most (a load to a GPU: until the daemon continues or ends). While the daemon is known to be away, a call hardly
    waits. say: told in a line when the daemon is reached, and when it is not. names: of the weights, as Weights.names()
    gives them: pages are kept under the first name, and looked for under all.

    The calls of a store name pages by strings, in the order of a prompt. prefix: the names before these from the
    prompt's first page on, if they are known."""

    def __init__(self, connect: Callable[[], Client], timeout_ms: int, prefetch_ms: int = 1000,
                 say: Callable[[str], None] = lambda text: None,
                 names: Callable[[], Sequence[str]] = lambda: ("",)) -> None:
        self._connect, self._timeout_ms, self._prefetch_ms, self._say = connect, timeout_ms, prefetch_ms, say
        self._names = names
        self._pools: Dict[str, Pool] = {}
        self._mine = threading.local()
        self._lock = threading.Lock()       # guards the three below
        self._all: List[_Open] = []
        self._again, self._why = 0.0, ""    # the daemon is not tried before, and why
        self.counts: Counter = Counter()    # pages hit, loaded, missed, stored, unstored, lent; errors, refused

    def add(self, name: str, pool: Pool) -> None:
        self._pools[name] = pool

    def __contains__(self, name: str) -> bool:
        return name in self._pools

    def __getitem__(self, name: str) -> Pool:
        return self._pools[name]

    def close(self) -> None:
        """Closes all connections. No other thread may be in a call."""
        with self._lock:
            every, self._all = self._all, []
        for got in every:
            got.client.close()
        self._mine = threading.local()

    def exists(self, name: str, pages: Sequence[str], prefix: Sequence[str] = ()) -> int:
        """How many leading pages can be loaded. If the daemon has a Redis, that is asked for what this node lacks."""
        def look() -> int:
            got, space = self._space(name, False)
            keys = Keys.of(self._keys(got, name, pages))
            n = space.lookup(keys).blocks
            if n < len(keys) and self._prefetch_ms > 0 and got.client.tiers & Tier.REDIS:
                chain = Keys.of(self._keys(got, name, [*prefix, *pages][:MAX_BLOCKS]))
                with contextlib.suppress(Error):
                    got.ahead.ask(got.client, space, chain, self._prefetch_ms)
                n = space.lookup(keys).blocks
            for weights in self._names()[1:] if n < len(pages) else ():
                n = max(n, space.lookup(Keys.of(self._keys(got, name, pages, weights))).blocks)
            self.count(hit=n)
            return n

        return self._asked(look, 0) if pages else 0

    def present(self, name: str, pages: Sequence[str]) -> List[bool]:
        """Whether each page can be loaded, for pools whose pages do not form a chain."""
        def look() -> List[bool]:
            got, space = self._space(name, False)
            every = [self._keys(got, name, pages, weights) for weights in self._names()]
            return [any(space.lookup(Keys.of(keys[at:at + 32])).blocks for keys in every)
                    for at in range(0, 32 * len(pages), 32)]

        return self._asked(look, [False] * len(pages))

    def get(self, name: str, pages: Sequence[str], places: Sequence[int], prefix: Sequence[str] = (),
            stream: Any = None) -> List[bool]:
        """Loads pages to their places. If a page is False, its place may hold a part of it."""
        def load_by(weights: str, at: int, end: int) -> List[bool]:
            got, space = self._space(name, True)
            keys = self._keys(got, name, pages[at:end], weights)
            parent = self._keys(got, name, [pages[at - 1]] if at else prefix[-1:], weights) or None
            how = {} if stream is None else {"stream": stream}
            op = space.load(Keys.of(keys, parent), places[at:end], timeout_ms=self._timeout_ms, **how)
            return [status >= 0 for status in self._wait(got, [op], self._pools[name])[0].blocks]

        def load(at: int, end: int) -> List[bool]:
            good = load_by(self._names()[0], at, end)
            for weights in self._names()[1:]:
                missing = good.index(False) if False in good else len(good)
                if missing < len(good) and not any(good[missing:]):     # no page that came is written again
                    good[missing:] = load_by(weights, at + missing, end)
            return good

        good = self._in_parts(load, len(pages))
        self.count(loaded=sum(good), missed=len(good) - sum(good))
        return good

    def set(self, name: str, pages: Sequence[str], places: Sequence[int], prefix: Sequence[str] = (),
            alone: bool = False, stream: Any = None) -> List[bool]:
        """Stores pages, and returns when they were read. alone: the pages do not form a chain, and each may be kept
        without the others."""
        how = {"timeout_ms": self._timeout_ms, **({} if stream is None else {"stream": stream})}

        def chain(at: int, end: int) -> List[bool]:
            got, space = self._space(name, True)
            keys = self._keys(got, name, pages[at:end])
            parent = self._keys(got, name, [pages[at - 1]] if at else prefix[-1:]) or None
            result = self._wait(got, [space.store(Keys.of(keys, parent), places[at:end], **how)])[0]
            if parent and result.status == -errno.ENOENT:   # the page before them was evicted: they begin a chain
                result = self._wait(got, [space.store(Keys.of(keys), places[at:end], **how)])[0]
            return [status >= 0 for status in result.blocks]

        def each(at: int, end: int) -> List[bool]:
            got, space = self._space(name, True)
            keys = self._keys(got, name, pages[at:end])
            ops = [space.store(Keys.of(keys[32 * i:32 * i + 32]), [places[at + i]], **how) for i in range(end - at)]
            return [result.status >= 0 for result in self._wait(got, ops)]

        good = self._in_parts(each, len(pages), _SINGLES) if alone else self._in_parts(chain, len(pages))
        self.count(stored=sum(good), unstored=len(good) - sum(good))
        return good

    # --- inside ---

    def _asked(self, look: Callable[[], Any], default: Any) -> Any:
        try:
            return look()
        except OSError as error:
            self._failed(error)
            return default

    def _in_parts(self, part: Callable[[int, int], List[bool]], n: int, size: int = MAX_BLOCKS) -> List[bool]:
        """Does all pages, `size` at a time, until a call of `part` fails."""
        good: List[bool] = []
        try:
            for at in range(0, n, size):
                good += part(at, min(n, at + size))
        except OSError as error:      # kvtier's, or there is no libkvtier
            self._failed(error)
        return good + [False] * (n - len(good))

    def count(self, **counts: int) -> None:
        with self._lock:
            self.counts.update({name: n for name, n in counts.items() if n})

    def _failed(self, error: OSError) -> None:
        self.count(errors=1)
        if error.errno in (errno.ENOTCONN, errno.EAGAIN):
            return              # the library itself tries to reach the daemon again
        self._away(str(error))

    def _away(self, why: str) -> None:
        with self._lock:
            said, self._why, self._again = self._why == why, why, time.monotonic() + AGAIN_S
        if not said:
            self._say(f"kvtierd is not used now, and asked again every {AGAIN_S:.0f} s: {why}")

    def _got(self) -> _Open:
        """This thread's connection. Error ENOTCONN: there is none now."""
        got = getattr(self._mine, "got", None)
        with self._lock:
            away = time.monotonic() < self._again
        if away:
            raise Error(errno.ENOTCONN, self._why)
        if got is not None and got.process == os.getpid():
            return got
        got = _Open(self._connect())
        with self._lock:
            self._all.append(got)
        self._mine.got = got
        return got

    def _space(self, name: str, memory: bool) -> Tuple[_Open, Space]:
        got = self._got()
        if (name, memory) not in got.spaces:
            pool = self._pools[name]
            space = (got.client.open_space(pool.geometry, pool.layout.regions, pool.layout.segments) if memory else
                     got.client.open_space(pool.geometry))
            got.spaces[name, memory] = space
            got.roots[name] = bytes(space.keys([0] * pool.geometry.block_tokens))
            with self._lock:
                was, self._why = self._why, ""
            if was:
                self._say("kvtierd is reached")
        return got, got.spaces[name, memory]

    def _keys(self, got: _Open, name: str, pages: Sequence[str], weights: Optional[str] = None) -> bytes:
        """The keys of these pages, one after the other. weights: their name; the best one if it is None."""
        root = hashlib.sha256(got.roots[name] + (self._names()[0] if weights is None else weights).encode())
        ret = []
        for page in pages:
            key = root.copy()
            key.update(page.encode())
            ret.append(key.digest())
        return b"".join(ret)

    def _wait(self, got: _Open, ops: Sequence[Op], into: Optional[Pool] = None) -> List[Result]:
        """The results of ops of this thread. Their pages are not touched any more after that. into: the pool that they
        load to. Error ETIMEDOUT: the daemon stands still, and the connection is closed."""
        end = time.monotonic() + (self._timeout_ms + SLACK_MS) / 1000
        results = []
        for op in ops:
            try:
                results.append(got.client.wait(op, max(0, round(1000 * (end - time.monotonic())))))
            except Error as error:
                self._cut(got)
                if into is not None and any(region.cuda for region in into.layout.regions):
                    self._until_not_lent({op.id for op in ops})
                raise Error(errno.ETIMEDOUT, f"the daemon stood still: {error.strerror}") from None
        return results

    def _cut(self, got: _Open) -> None:
        with self._lock:
            self._all = [other for other in self._all if other is not got]
        self._mine.got = None
        got.client.close()      # this takes the client's timeout at most, and then private pages are the engine's alone

    def _until_not_lent(self, ops: set) -> None:
        """Waits until the pages of these ops are not lent any more. A daemon that stands still may yet write into pages
        in a GPU's memory, and they cannot be taken back from it; the engine would give them to another request. So this
        waits until the daemon continues or is dead, which systemd sees to within 30 s. If the pages do not come back,
        counts["lent"] has their number, and each LENT_S a line names the process to end. A wrong byte is worse than a
        load that waits."""
        say_at = time.monotonic() + LENT_S
        counted = False
        while held := [page for page in lent() if page.op in ops]:
            if time.monotonic() >= say_at:
                say_at += LENT_S
                self.count(lent=0 if counted else len(held))
                counted = True
                self._say(f"{len(held)} pages of the GPU are lent to a kvtierd that stands still, and a load waits for "
                          f"it: let it go on (kill -CONT {held[0].daemon or 'PID'}), or end it (kill -9)")
            time.sleep(0.05)
