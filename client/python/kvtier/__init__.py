# SPDX-License-Identifier: Apache-2.0
"""kvtier - give an LLM engine's KV-cache blocks to the node's kvtierd, and get prefixes back.

This is a thin binding over libkvtier. client/kvtier.h is its manual, and this file uses the words of it. Typical use:

    with kvtier.Client(name="my-engine") as client:
        memory = kvtier.SharedMemory(page_bytes * pages)
        with client.open_space(geometry, [memory.region()], segments) as space:
            keys = space.keys(tokens)
            hit = space.lookup(keys)
            result = client.wait(space.load(keys[:hit.blocks], range(hit.blocks)))
            ...  # result.prefix blocks are in their pages; compute the rest
            client.wait(space.store(keys[n:], range(n, len(keys))))  # a slice knows its parent

A call that fails raises kvtier.Error. A miss is a result, not an error: Hit.blocks and Result.blocks show it. While
the daemon is away, lookup() finds 0 blocks, and store() and load() raise Error with errno ENOTCONN.

Threads: any thread may call, as in kvtier.h. Call close() only when no other thread is in a call.

Signals: wait(), wait_layers() and cancel() return to Python every SLICE_MS, so Ctrl-C and other handlers that raise end
them at once. Closing a client or a space after that takes HURRY_MS at most, then the connection is cut. Other calls
take the client's timeout_ms at most.

Forks (os.fork, multiprocessing): only the process that made a client may use it. In a child every call raises Error
with errno EPERM, and close() only frees memory; the parent keeps its connection. A child makes its own Client.

Lent pages: a daemon that stands still may write into pages after the library gave its connection up (kvtier.h, "Lent
pages"). Space.close() then returns how many pages are still lent, Result.lent is not 0, lent() names the pages, and
store() and load() of one raise Error with errno EBUSY. SharedMemory.take_back() frees all of its pages at once.
"""
from __future__ import annotations

import contextlib
import ctypes as C
import enum
import errno
import os
import time
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Union

from . import _lib
from ._lib import Error

__all__ = ["Action", "Answers", "BLOCK_OK", "BLOCK_PRESENT", "Client", "Codec", "Dtype", "Error", "Geometry", "Hit",
           "Keys", "Kind", "Lent", "MAX_BLOCKS", "Op", "Reach", "Region", "Result", "Segment", "SharedMemory", "Space",
           "State", "Tier", "lent", "version"]

MAX_BLOCKS = 8192     # per op; a longer prompt takes several ops
BLOCK_OK = 0
BLOCK_PRESENT = 1     # of a store: the block was already there, and was not copied
_OPTIONS = frozenset(("timeout_ms", "parent", "user", "stream", "layer_groups", "session", "turn_number", "ttl_s",
                      "priority", "expected_back_s"))
_STORE, _LOAD, _PREFETCH, _HINT = 1, 2, 3, 4
_ALL = 2 ** 32 - 1    # KVTIER_ALL
SLICE_MS = 50         # a wait is cut into slices, and Python looks for signals between them
HURRY_MS = 1000       # the time that closing may take after a wait was interrupted
_TIMEOUT_MS = 5000    # the timeout of a client that names no other: kvtier.h
_GRACE_S = 1.0        # kvtier_wait(-1) gives up so long after the op's deadline


class Dtype(enum.IntEnum):
    BF16 = 1
    FP16 = 2
    FP32 = 3
    E4M3 = 4
    E5M2 = 5
    INT8 = 6


class Codec(enum.IntEnum):
    DEFAULT = 0       # BF16, FP16: the daemon's [codec] default, usually fp8; 8-bit types: fp8-native; else raw
    RAW = 1
    FP8 = 2
    FP8_NATIVE = 3
    LOSSLESS = 4      # BF16 and FP16, bit for bit, in 0.72 and 0.91 of the bytes
    INT8 = 5          # of K and V planes: 1.6 % more bytes than fp8 in blocks of 64 tokens, a third of its error
    Q4 = 6            # of K and V planes, in four bits, but for a prompt's first 64 tokens: 0.27 of the bytes
    INT8V4 = 7        # K planes as INT8, V planes as Q4: 0.39 of the bytes


class Kind(enum.IntEnum):
    K = 1
    V = 2
    TYPED = 3
    OPAQUE = 4


class Tier(enum.IntFlag):
    GPU = 1
    HOST = 2
    NVME = 4
    REDIS = 8


class State(enum.IntFlag):
    """The state of a client (enum kvtier_state). 0: it has no connection to its daemon, and tries again."""
    CONNECTED = 1
    CONNECTING = 2
    WAITING = 4       # pages are lent over connections that were cut


class Reach(enum.IntEnum):
    """How the daemon reaches a space's pages (enum kvtier_reach)."""
    NONE = 0
    MEMFD = 1
    STAGED = 2
    CUDA_IPC = 3
    CUDA_FD = 4
    CUDA_FABRIC = 5
    CUDA_STAGED = 6
    CUDA_ENGINE = 7


class Action(enum.IntEnum):
    """What a hint asks for (enum kvtier_hint_action; daemon/HINTS.md says it in full)."""
    # evicted after others (priority > 0), first from memory (< 0), as usual (0); and first of all after ttl_s
    RETAIN = 1
    PIN = 2           # the blocks stay in memory for ttl_s
    DEMOTE = 3        # they are evicted first from memory, and stay on NVMe
    PREFETCH = 4      # they are brought into memory
    RELEASE = 5       # RETAIN and PIN are taken back; the blocks are evicted first, in every tier
    SUPERSEDED = 6    # the same as RELEASE: other blocks, or other weights, have taken their place
    ENDED = 7         # the same as RELEASE, and the session is forgotten


class Geometry(NamedTuple):
    """What makes blocks interchangeable (struct kvtier_geometry)."""
    model: str
    convention: str
    dtype: Dtype
    layers: int
    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    block_tokens: int
    extras: str = ""
    rank: int = 0
    world: int = 1
    codec: Codec = Codec.DEFAULT
    typed_segments: int = 0
    typed_values: int = 0
    opaque_bytes: int = 0


class Region(NamedTuple):
    """Memory of the engine that the daemon may see: a sealed memfd (fd >= 0), memory of a GPU (cuda: a device
    pointer), or private memory at base, which libkvtier copies. length and offset are bytes."""
    length: int
    fd: int = -1
    offset: int = 0
    base: int = 0
    cuda: int = 0


class Segment(NamedTuple):
    """Where one layer's K or V, or one run of other bytes, lies in every page (struct kvtier_segment)."""
    kind: Kind
    offset: int
    page_stride: int
    layer: int = 0
    head_stride: int = 0
    token_stride: int = 0
    length: int = 0
    region: int = 0


class Hit(NamedTuple):
    """How many leading blocks are present. This is a hint: only a load says what it brought."""
    blocks: int
    tiers: Tier


class Op(NamedTuple):
    """An outstanding store, load, prefetch or hint."""
    id: int
    n: int
    until: Optional[float] = None     # the time.monotonic() at which wait() gives up; None: it is not known here


class Answers(NamedTuple):
    """How many blocks got each answer to a hint. A hint on a revision counts spaces and hints instead."""
    accepted: int = 0
    clipped: int = 0      # a bound was reached: the hint was done in part, or not at all
    deferred: int = 0     # it is done when the block comes into memory, is on NVMe, or is not in use any more
    rejected: int = 0     # it cannot be done
    missing: int = 0      # there is no such block, session or revision


class Result(NamedTuple):
    """What became of an op. blocks has a status for each block: >= 0 is good, anything else is -errno. The status of a
    hint is 0 (accepted), 1 (clipped), 2 (deferred), -EPERM (rejected) or -ENOENT (missing); a hint without keys has one
    status for all."""
    op: int
    status: int
    n: int
    ok: int
    prefix: int
    blocks: List[int]
    lent: int = 0     # how many pages are still lent after the connection was cut
    answers: Answers = Answers()    # what a hint was answered
    user: int = 0     # the number that the op was submitted with


class Lent(NamedTuple):
    """A page that is lent."""
    page: int         # its index in the space of its op
    memory: int       # the inode of the memfd where its first segment lies; 0: private memory
    offset: int       # where that segment's first byte lies there
    op: int
    daemon: int       # the process of the daemon; 0: it is not known
    ended: bool       # False: the op runs; True: its connection was cut, and the daemon has not given the page back


def torch_region(tensor) -> Region:
    """The memory of a torch tensor as a region, from its first element to its last, on a GPU or private. The tensor
    must stay alive until the space is closed. Offsets of segments count from its first element."""
    if any(n == 0 for n in tensor.shape):
        raise ValueError("the tensor has no elements")
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    length, address = (last + 1) * tensor.element_size(), tensor.data_ptr()
    return Region(length, cuda=address) if tensor.is_cuda else Region(length, base=address)


def _stream(stream) -> int:
    """A CUstream as a number. torch's default stream calls itself 0; this gives it the number that a driver knows."""
    number = getattr(stream, "cuda_stream", stream)
    return number if number else 1


def _regions(regions: Sequence[Region]) -> C.Array:
    return (_lib.Region * len(regions))(*[
        _lib.sized(_lib.Region, f"regions[{i}]", memory=3 if m.cuda else 1 if m.fd >= 0 else 2, fd=m.fd,
                   offset=m.offset, length=m.length, base=m.cuda or m.base) for i, m in enumerate(regions)])


def version() -> str:
    """The version of the library in use."""
    return _lib.load().kvtier_version().decode()


def _check(code: int) -> int:
    if code < 0:
        text = _lib.load().kvtier_last_error().decode(errors="replace")
        raise Error(-code, text or os.strerror(-code))
    return code


def _lent(handle) -> List[Lent]:
    room = 64
    while True:
        array = (_lib.Lent * room)()
        array[0].size = C.sizeof(_lib.Lent)
        n = _check(_lib.load().kvtier_lent(handle, array, room))
        if n <= room:
            return [Lent(p.page, p.memory, p.offset, p.op, p.daemon, bool(p.ended)) for p in array[:n]]
        room = n + 64


def lent() -> List[Lent]:
    """Pages that this process lent over connections that were cut, while their daemon lives and has not given them
    back. Pages of clients that were closed since are among them. Leave them alone, or take_back() their memory."""
    return _lent(None)


class Keys:
    """The 32-byte keys of consecutive blocks of one prompt, as a sequence. A slice is Keys again and knows its parent:
    the key before it. The first block's parent is the one given to Space.keys(), or None where the prompt starts."""

    def __init__(self, array: C.Array, parent: Optional[bytes] = None) -> None:
        self._array, self.parent = array, parent

    @classmethod
    def of(cls, data: bytes, parent: Optional[bytes] = None) -> "Keys":
        """The keys that bytes(keys) came from, perhaps in another process."""
        n, rest = divmod(len(data), C.sizeof(_lib.Key))
        if rest:
            raise ValueError(f"keys have {C.sizeof(_lib.Key)} bytes each, not {len(data)} together")
        return cls((_lib.Key * n).from_buffer_copy(data), parent)

    def __bytes__(self) -> bytes:
        return bytes(self._array)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, where: Union[int, slice]):
        if isinstance(where, int):
            return bytes(self._array[where].bytes)
        start, stop, step = where.indices(len(self))
        if step != 1:
            raise ValueError("keys of a chain are consecutive: a slice has step 1")
        n = max(0, stop - start)
        part = (_lib.Key * n)()
        if n:
            C.memmove(part, C.byref(self._array, start * C.sizeof(_lib.Key)), C.sizeof(part))
        return Keys(part, bytes(self._array[start - 1].bytes) if 0 < start <= len(self) else self.parent)


class SharedMemory(_lib.Closes):
    """A memfd that is mapped here, and sealed so that its size cannot change under the daemon. Pages that lie in it
    cross to the daemon without a copy. Close it after the spaces that use it."""

    def __init__(self, length: int, name: str = "kvtier-pages") -> None:
        lib, handle = _lib.load(), C.c_void_p()
        self._handle: Optional[C.c_void_p] = None
        _check(lib.kvtier_memory_alloc(length, name, C.byref(handle)))
        self._handle = handle
        self.length = self.region().length
        self.address = lib.kvtier_memory_address(handle)
        self.view = memoryview((C.c_uint8 * self.length).from_address(self.address)).cast("B")

    def region(self) -> Region:
        """All of the memory, for open_space(). After take_back() it is another region."""
        if self._handle is None:
            raise Error(errno.EBADF, "this memory was closed")
        region = _lib.sized(_lib.Region)
        _check(_lib.load().kvtier_memory_region(self._handle, C.byref(region)))
        return Region(region.length, fd=region.fd)

    @property
    def fd(self) -> int:
        """The memfd, or -1 when the memory was closed. After take_back() it is another one."""
        return -1 if self._handle is None else self.region().fd

    def lent(self) -> int:
        """How many of its pages are still lent over a connection that was cut. Do not read or write those."""
        inode = os.fstat(self.region().fd).st_ino
        return sum(page.memory == inode for page in lent())

    def take_back(self) -> None:
        """Makes every page free at once, whoever may still write to it: the same addresses, `view` included, show a
        fresh memfd with the same contents. Close the spaces that use the memory before (else Error EBUSY), and open
        them again with region() after. No other thread may write to the memory meanwhile."""
        self.region()
        _check(_lib.load().kvtier_memory_take_back(self._handle))

    def close(self) -> None:
        if self._handle is not None:
            self.view.release()
            handle, self._handle = self._handle, None
            _lib.load().kvtier_memory_free(handle)


class Space(_lib.Closes):
    """A space that is open on a client; Client.open_space() makes it. Closing it waits until the daemon has given back
    every page, for the client's timeout at most."""

    def __init__(self, client: "Client", handle: C.c_void_p, geometry: Geometry) -> None:
        self.client, self.geometry, self._handle = client, geometry, handle

    def close(self) -> int:
        """Closes the space. Returns how many of its pages are still lent: 0 unless the daemon stands still, and 0 when
        the space was closed before."""
        handle, self._handle = self._handle, None
        if handle is None:
            return 0
        self.client._spaces.pop(id(self), None)
        with self.client._hurried():
            return _lib.load().kvtier_space_close(handle)

    def __exit__(self, kind, *exc) -> None:
        self.client._ends_by(kind)
        self.close()

    def _open(self) -> C.c_void_p:
        if self._handle is None:
            raise Error(errno.EBADF, "this space was closed")
        return self._handle

    @property
    def reach(self) -> Reach:
        """How the daemon reaches the pages."""
        return Reach(_check(_lib.load().kvtier_space_memory(self._open(), None, 0)))

    @property
    def memory(self) -> str:
        """`reach` as a text for people, with the reason: "CUDA IPC", "CUDA staged: it is of a ..."."""
        text = C.create_string_buffer(256)
        _check(_lib.load().kvtier_space_memory(self._open(), text, len(text)))
        return text.value.decode()

    def quiesce(self) -> int:
        """Ends the ops and takes the pages back, so that their memory may be unmapped until resume(). The space keeps
        its identity. Returns how many pages are still lent, as close() does."""
        return _check(_lib.load().kvtier_space_quiesce(self._open()))

    def resume(self, regions: Optional[Sequence[Region]] = None) -> None:
        """Opens the space again, over other memory of the same kind, or (None) over the same memory if that is not a
        memfd."""
        r = _regions(regions) if regions is not None else None
        _check(_lib.load().kvtier_space_resume(self._open(), r, len(regions or ())))

    def keys(self, tokens, parent: Optional[bytes] = None) -> Keys:
        """The keys of the full blocks in tokens. A tail that fills no block has no key. tokens: a sequence of ints, or
        a buffer of integers in one row (array, memoryview, numpy; a tensor in CPU memory). 32-bit items are read
        where they lie, a negative one as its 32 bits; others are converted, and must be 0 to 4294967295."""
        with _lib.tokens(tokens) as (address, n_tokens):
            n = C.c_size_t(n_tokens // self.geometry.block_tokens)
            array = (_lib.Key * n.value)()
            if n.value:
                _check(_lib.load().kvtier_keys(self._open(), _key(parent), address, n_tokens, array, C.byref(n)))
        return Keys(array, parent)

    def lookup(self, keys: Keys) -> Hit:
        """How many leading blocks are present, without a system call. While the daemon is away that is 0."""
        hit = _lib.sized(_lib.Hit)
        _check(_lib.load().kvtier_lookup(self._open(), keys._array, len(keys), C.byref(hit)))
        return Hit(hit.blocks, Tier(hit.tiers))

    def store(self, keys: Keys, pages: Iterable[int], **options) -> Op:
        """Gives blocks to the daemon. The pages must not change until the op's result was taken, but for layers that
        were not given yet. Options:

        timeout_ms      the op's own timeout
        parent          the key before the first one, where that is not keys.parent
        user            a number that comes back in the result
        stream          for pages in a GPU's memory: a torch.cuda.Stream, or a CUstream's number. No page is touched
                        before the work that is in the stream now is done
        layer_groups    the layers come in so many groups, each with a call of Client.store_layers()
        session, turn_number, ttl_s, priority, expected_back_s
                        hints on the op's blocks, as by hint(Action.RETAIN). They take back no hint of others about a
                        block, and never fail an op"""
        return self._move(_STORE, keys, pages, options)

    def load(self, keys: Keys, pages: Iterable[int], **options) -> Op:
        """Asks for blocks. The options are those of store(). The pages are the daemon's until the result was taken.
        With layer_groups=n the layers come in n groups, first the first group of all blocks: Client.wait_layers()."""
        return self._move(_LOAD, keys, pages, options)

    def prefetch(self, keys: Keys, **options) -> Op:
        """Brings blocks into host memory. The options are those of store(), but for stream and layer_groups."""
        return self._submit(_PREFETCH, keys, _options(keys, options), "options")

    def hint(self, action: Union[Action, str], keys: Optional[Keys] = None, *, session: int = 0, turn_number: int = 0,
             revision: bool = False, ttl_s: int = 0, priority: int = 0, expected_back_s: int = 0, timeout_ms: int = 0,
             user: int = 0) -> Op:
        """Says what should become of blocks. It is an op, and its Result has the answers. The blocks are named by
        exactly one of these: keys, of any chains, which join the session if there is one; session, of this tenant,
        where turn_number > 0 leaves out the turns before it; or revision=True, all spaces of the tenant with this
        space's model. action: an Action, or its name in any case. ttl_s 0: as long as the daemon allows. priority:
        -100 to 100, for RETAIN. expected_back_s, for RETAIN without a priority: seconds until the blocks are used
        again, 2**32 - 1 for never; the block that is expected last is evicted first. Error with EINVAL: a field is out
        of its limits."""
        kind = Action[action.upper()] if isinstance(action, str) else Action(action)
        if (keys is not None) + (keys is None and session != 0) + revision != 1:
            raise ValueError("a hint is on keys, on a session, or on the revision of the space")
        scope = 1 if keys is not None else 2 if session else 3
        return self._submit(_HINT, keys, {
            "action": kind, "scope": scope, "timeout_ms": timeout_ms, "session": session, "turn_number": turn_number,
            "ttl_s": ttl_s, "priority": priority, "expected_back_s": expected_back_s, "user": user}, "hint")

    def _move(self, kind: int, keys: Keys, pages: Iterable[int], options: dict) -> Op:
        fields, array = _options(keys, options), _lib.pages(pages)
        if len(array) != len(keys):
            raise ValueError(f"{len(keys)} keys need as many pages, not {len(array)}")
        return self._submit(kind, keys, {**fields, "pages": array}, "options")

    def _submit(self, kind: int, keys: Optional[Keys], fields: dict, what: str) -> Op:
        op, number = _lib.sized(_lib.Op, what, kind=kind, **fields), C.c_uint64()
        if keys is not None:
            op.keys, op.n = C.cast(keys._array, C.POINTER(_lib.Key)), len(keys)
        _check(_lib.load().kvtier_submit(self._open(), C.byref(op), C.byref(number)))
        return self.client._op(number.value, op.n or 1, op.timeout_ms)


def _options(keys: Keys, options: dict) -> dict:
    """The options as fields of an op."""
    if options.keys() - _OPTIONS:
        raise TypeError(f"no option {', '.join(sorted(options.keys() - _OPTIONS))}: the options are "
                        f"{', '.join(sorted(_OPTIONS))}")
    fields = {"parent": keys.parent, **options}
    fields["parent"] = _key(fields["parent"])
    if fields.get("stream") is not None:
        fields["stream"] = _stream(fields["stream"])
    return fields


def _key(parent: Optional[bytes]):
    """A pointer to a key, or NULL. ctypes keeps the key alive with the pointer."""
    if parent is None:
        return None
    if len(parent) != C.sizeof(_lib.Key):
        raise ValueError(f"a key has {C.sizeof(_lib.Key)} bytes, not {len(parent)}")
    return C.pointer(_lib.Key.from_buffer_copy(parent))


class Client(_lib.Closes):
    """One connection to one kvtierd. Later calls reconnect by themselves, with backoff."""

    def __init__(self, socket_path: Optional[str] = None, name: Optional[str] = None, timeout_ms: int = 0,
                 staging_bytes: int = 0, spin_us: int = 0, gpu_mode: Optional[str] = None) -> None:
        """gpu_mode is not used any more: the daemon encodes and decodes pages in a GPU's memory."""
        options = _lib.sized(_lib.Options, "options", timeout_ms=timeout_ms, staging_bytes=staging_bytes,
                             socket_path=os.fsencode(socket_path) if socket_path else None,
                             name=name or None, spin_us=spin_us)
        handle = C.c_void_p()
        self._handle: Optional[C.c_void_p] = None
        self._timeout_ms = options.timeout_ms or _TIMEOUT_MS
        self._interrupted = False       # a wait ended by a signal's handler
        self._spaces: Dict[int, Space] = {}
        _check(_lib.load().kvtier_connect(C.byref(options), C.byref(handle)))
        self._handle = handle

    def close(self) -> int:
        """Closes the spaces, drops outstanding ops and disconnects. Returns how many pages are still lent. It may be
        called twice."""
        if self._handle is None:
            return 0
        with self._hurried():
            n = sum([space.close() for space in list(self._spaces.values())])
            handle, self._handle = self._handle, None
            _lib.load().kvtier_close(handle)
        return n

    def set_timeout(self, timeout_ms: int) -> None:
        """Changes timeout_ms for all later calls, so that closing may take less. 0: the default."""
        _check(_lib.load().kvtier_set_timeout(self._open(), timeout_ms))
        self._timeout_ms = timeout_ms or _TIMEOUT_MS

    @contextlib.contextmanager
    def _hurried(self) -> Iterator[None]:
        """Shortens the client's timeout if a signal ended a wait, as whoever sent it wants an end."""
        lib, short = _lib.load(), self._interrupted and self._timeout_ms > HURRY_MS
        if short:
            lib.kvtier_set_timeout(self._handle, HURRY_MS)
        try:
            yield
        finally:
            if short and self._handle is not None:
                lib.kvtier_set_timeout(self._handle, self._timeout_ms)

    def _ends_by(self, kind: Optional[type]) -> None:
        """Notes the exception that ends a `with`; None: it ends without one."""
        if kind is not None and not issubclass(kind, Exception):
            self._interrupted = True

    def _op(self, number: int, n: int, timeout_ms: int) -> Op:
        return Op(number, n, time.monotonic() + (timeout_ms or self._timeout_ms) / 1000 + _GRACE_S)

    def _await(self, call: Callable[[int], int], timeout_ms: int, until: Optional[float]) -> int:
        """Calls call(ms) in slices until it does not say -ETIMEDOUT. A negative timeout_ms stands for `until`, if that
        is known here."""
        if _lib.integer(timeout_ms, C.c_int, "timeout_ms") >= 0:
            until = time.monotonic() + timeout_ms / 1000
        try:
            code = -errno.ETIMEDOUT
            while code == -errno.ETIMEDOUT:
                left = (until - time.monotonic()) * 1000 if until is not None else 0
                if left <= SLICE_MS:
                    code = call(max(0, round(left)) if timeout_ms >= 0 else -1)
                    break
                code = call(SLICE_MS)
        except BaseException:
            self._interrupted = True
            raise
        return code

    def lent(self) -> List[Lent]:
        """The pages of the client's running stores and loads, and those of lent()."""
        return _lent(self._open())

    @property
    def state(self) -> State:
        """Whether it is connected, or what it waits for."""
        return State(_check(_lib.load().kvtier_status(self._open(), None, 0)))

    @property
    def status(self) -> str:
        """`state` as a text for people: "connected to ...", "not connected: ...". While pages are still lent over
        connections that were cut, it ends "...; waits for kvtierd (pid 12) to answer or end: 3 pages are lent still
        ..."."""
        text = C.create_string_buffer(1024)
        _check(_lib.load().kvtier_status(self._open(), text, len(text)))
        return text.value.decode()

    @property
    def tiers(self) -> Tier:
        """The tiers of the daemon that it was connected to last, without a system call. Tier(0): it was not connected
        yet. Without Tier.REDIS a prefetch brings no block that a lookup does not find."""
        return Tier(_check(_lib.load().kvtier_tiers(self._open())))

    def __exit__(self, kind, *exc) -> None:
        self._ends_by(kind)
        self.close()

    def _open(self) -> C.c_void_p:
        if self._handle is None:
            raise Error(errno.EBADF, "this client was closed")
        return self._handle

    def open_space(self, geometry: Geometry, regions: Sequence[Region] = (),
                   segments: Sequence[Segment] = ()) -> Space:
        """Opens a space and shows the daemon where pages lie. A space without regions can only look up and prefetch.
        The memory of a region with `base` or `cuda` must stay valid until the space is closed."""
        plain = _lib.sized(_lib.Geometry, "geometry", **geometry._asdict())
        r = _regions(regions)
        s = (_lib.Segment * len(segments))(*[
            _lib.sized(_lib.Segment, f"segments[{i}]", **part._asdict()) for i, part in enumerate(segments)])
        handle = C.c_void_p()
        _check(_lib.load().kvtier_space_open(self._open(), C.byref(plain), r, len(regions), s, len(segments),
                                         C.byref(handle)))
        space = Space(self, handle, geometry)
        self._spaces[id(space)] = space
        return space

    def wait(self, op: Op, timeout_ms: int = -1) -> Result:
        """Waits for one op and takes its result. A negative timeout_ms waits until the op's own deadline, so that wait
        ends, too. Error with ETIMEDOUT: the op is not done yet, and goes on."""
        statuses = (C.c_int32 * op.n)()
        result = _lib.sized(_lib.Result, blocks_max=op.n, blocks=statuses)
        handle, wait = self._open(), _lib.load().kvtier_wait
        _check(self._await(lambda ms: wait(handle, op.id, ms, C.byref(result)), timeout_ms, op.until))
        return _result(result)

    def poll(self, max_results: int = 16, max_blocks: int = 64) -> List[Result]:
        """The results of completed ops, without waiting, each with at most max_blocks statuses."""
        room = [(C.c_int32 * max_blocks)() for _ in range(max_results)]
        results = (_lib.Result * max_results)(*[
            _lib.sized(_lib.Result, blocks_max=max_blocks, blocks=r) for r in room])
        n = _check(_lib.load().kvtier_poll(self._open(), results, max_results))
        return [_result(results[i]) for i in range(n)]

    def event_fd(self) -> int:
        """A descriptor that polls readable when poll() may have a result. It is the client's own."""
        return _check(_lib.load().kvtier_event_fd(self._open()))

    def stream_wait(self, op: Op, stream) -> None:
        """Work that is put into the stream after this call waits until the op has ended, and the CPU does not wait.
        Only the op's result says whether its blocks were loaded. Error with EOPNOTSUPP: the pages are staged, and
        this process's calls do the op's work; use wait() then."""
        _check(_lib.load().kvtier_stream_wait(self._open(), op.id, _ALL, _stream(stream)))

    def wait_layers(self, op: Op, group: int, stream=None, timeout_ms: int = -1) -> bool:
        """Waits until this layer group of a load is in the pages of all blocks. True: it is there. False: the op has
        ended without all of its blocks, and its result says why. Error with ETIMEDOUT: it is not there yet.

        With a stream the CPU does not wait: the work that is put into the stream after this call does. That wait ends
        with the op, however the op ends, so take its result before you use what was computed: if its status is not 0,
        what was computed from the pages is void. Error with EOPNOTSUPP: as for stream_wait()."""
        if stream is not None:
            _check(_lib.load().kvtier_stream_wait(self._open(), op.id, group, _stream(stream)))
            return True
        handle, wait = self._open(), _lib.load().kvtier_wait_layers
        code = self._await(lambda ms: wait(handle, op.id, group, ms), timeout_ms, op.until)
        return code != -errno.ENODATA and _check(code) == 0

    def store_layers(self, op: Op, groups: int, stream=None) -> None:
        """Says that the first `groups` layer groups are in all pages of this store and do not change any more; with a
        stream, that they are once the work that is in it now is done. Call it with growing numbers, always with the
        same stream. A store that is not given all of its groups ends at its deadline, or after a minute, and none of
        its blocks is kept."""
        _check(_lib.load().kvtier_store_layers(self._open(), op.id, groups,
                                               _stream(stream) if stream is not None else None))

    def cancel(self, op: Op, timeout_ms: int = 1000) -> None:
        """Ends an op early: afterwards its pages are not touched any more, and its result waits to be taken. Error with
        ETIMEDOUT: some pages are still lent, and the sentence says how many."""
        handle, cancel = self._open(), _lib.load().kvtier_cancel
        limit_ms = self._timeout_ms if timeout_ms < 0 else timeout_ms
        _check(self._await(lambda ms: cancel(handle, op.id, ms), limit_ms, None))


def _result(r: _lib.Result) -> Result:
    return Result(r.op, r.status, r.n, r.ok, r.prefix, list(r.blocks[:min(r.n, r.blocks_max)]), r.lent,
                  Answers(*r.answers), r.user)
