# SPDX-License-Identifier: Apache-2.0
"""kvtier - give an LLM engine's KV-cache blocks to the node's kvtierd, and get prefixes back.

A thin binding over libkvtier; client/kvtier.h is the manual and its words are used here. Typical use:

    with kvtier.Client(name="my-engine") as client:
        memory = kvtier.SharedMemory(page_bytes * pages)
        with client.open_space(geometry, [memory.region()], segments) as space:
            keys = space.keys(tokens)
            hit = space.lookup(keys)
            result = client.wait(space.load(keys[:hit.blocks], range(hit.blocks)))
            ...  # result.prefix blocks are in their pages; compute the rest
            client.wait(space.store(keys[n:], range(n, len(keys))))  # a slice knows its parent

Calls that fail raise kvtier.Error. A miss is a result, not an error: it is in Hit.blocks and Result.blocks. A
daemon that is away never raises from lookup() (that is 0 blocks); store() and load() raise Error with errno
ENOTCONN.

Threads: as in kvtier.h, any thread may call; close() only when no other thread is in a call.

Signals: wait(), wait_layers() and cancel() return to Python every SLICE_MS, so Ctrl-C and other handlers that raise end
them at once. What closes a client or a space after that takes HURRY_MS at most, then the connection is cut. Other calls
take the client's timeout_ms at most.

Forks (os.fork, multiprocessing): only the process that made a client may use it. In a child every call raises Error
with errno EPERM, and close() frees memory only; the parent's connection goes on. A child makes its own Client.

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
           "Keys", "Kind", "Lent", "MAX_BLOCKS", "Op", "Region", "Result", "Segment", "SharedMemory", "Space",
           "Tier", "lent", "version"]

MAX_BLOCKS = 8192     # per op; a longer prompt is several ops
BLOCK_OK = 0
BLOCK_PRESENT = 1     # store: was already there, nothing was copied
_OPTIONS = frozenset(("timeout_ms", "parent", "stream", "layer_groups", "session", "turn", "ttl_s", "priority"))
SLICE_MS = 50         # of a wait: Python looks for signals between two of them
HURRY_MS = 1000       # for closing, after a wait that was interrupted
_TIMEOUT_MS = 5000    # of a client that names none: kvtier.h
_GRACE_S = 1.0        # so long after an op's deadline kvtier_wait(-1) gives up


class Dtype(enum.IntEnum):
    BF16 = 1
    FP16 = 2
    FP32 = 3
    E4M3 = 4
    E5M2 = 5
    INT8 = 6


class Codec(enum.IntEnum):
    DEFAULT = 0       # fp8 for BF16 and FP16, fp8-native for 8-bit types, raw otherwise
    RAW = 1
    FP8 = 2
    FP8_NATIVE = 3


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


class Action(enum.IntEnum):
    """What a hint asks for (enum kvtier_hint_action; daemon/HINTS.md says it in full)."""
    RETAIN = 1        # priority > 0: go after others; < 0: first from memory; 0: as usual. First of all after ttl_s
    PIN = 2           # stay in memory for ttl_s
    DEMOTE = 3        # first from memory, stay on NVMe
    PREFETCH = 4      # into memory
    RELEASE = 5       # takes RETAIN and PIN back; first to go, everywhere
    SUPERSEDED = 6    # as RELEASE: other blocks, or other weights, have taken their place
    ENDED = 7         # as RELEASE, and the session is forgotten


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
    """Engine memory the daemon may see: a sealed memfd (fd >= 0), memory of a GPU (cuda: a device pointer), or
    private memory at base that is copied. length and offset are bytes."""
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
    """Leading blocks present: a hint, the load decides."""
    blocks: int
    tiers: Tier
    generation: int


class Op(NamedTuple):
    """An outstanding store, load, prefetch or hint."""
    id: int
    n: int
    until: Optional[float] = None     # time.monotonic() when wait() gives up; None: it is not known here


class Answers(NamedTuple):
    """How many blocks of a hint (spaces: of a revision, hints) were answered so."""
    accepted: int = 0
    clipped: int = 0      # a bound was reached: done in part, or not
    deferred: int = 0     # when the block comes into memory; or is on NVMe, or not in use any more
    rejected: int = 0     # it cannot be
    missing: int = 0      # no such block, session or revision


class Result(NamedTuple):
    """What became of an op. blocks: one status each, >= 0 good, else -errno. Of a hint: 0 accepted, 1 clipped,
    2 deferred, -EPERM rejected, -ENOENT missing; without keys one status for all."""
    op: int
    status: int
    n: int
    ok: int
    prefix: int
    blocks: List[int]
    lent: int = 0     # pages still lent, after the connection was cut
    answers: Answers = Answers()    # of a hint


class Lent(NamedTuple):
    """A page that is lent."""
    page: int         # its index, in the space of its op
    memory: int       # inode of the memfd where its first segment lies; 0: private memory
    offset: int       # of that segment's first byte there
    op: int
    daemon: int       # its process, 0 when not known
    ended: bool       # False: the op runs; True: its connection was cut, and the daemon has not let go


def torch_region(tensor) -> Region:
    """The memory of a torch tensor, from its first element to its last, as a region: of a GPU, or private. The tensor
    must stay alive until the space is closed. Offsets of segments count from its first element."""
    if any(n == 0 for n in tensor.shape):
        raise ValueError("the tensor has no elements")
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    length, address = (last + 1) * tensor.element_size(), tensor.data_ptr()
    return Region(length, cuda=address) if tensor.is_cuda else Region(length, base=address)


def _stream(stream) -> int:
    """A CUstream as a number. Of torch's default stream, which calls itself 0, the name that a driver knows."""
    number = getattr(stream, "cuda_stream", stream)
    return number if number else 1


def _regions(regions: Sequence[Region]) -> C.Array:
    return (_lib.Region * len(regions))(*[
        _lib.sized(_lib.Region, f"regions[{i}]", memory=3 if m.cuda else 1 if m.fd >= 0 else 2, fd=m.fd,
                   offset=m.offset, length=m.length, base=m.cuda or m.base) for i, m in enumerate(regions)])


def version() -> str:
    """Version of the library in use."""
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
    """Pages that this process lent over connections that were cut, also of clients closed since, and whose daemon
    has neither let go nor died. Leave them alone, or take_back() their memory."""
    return _lent(None)


class Keys:
    """Keys of consecutive blocks of one prompt: a sequence of 32-byte keys. A slice is Keys again and knows
    its parent, the key before it (None: it starts the prompt, or the parent given to Space.keys())."""

    def __init__(self, array: C.Array, parent: Optional[bytes] = None) -> None:
        self._array, self.parent = array, parent

    @classmethod
    def of(cls, data: bytes, parent: Optional[bytes] = None) -> "Keys":
        """From bytes(keys), in another process too."""
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


class SharedMemory:
    """A memfd, sealed so that it can neither shrink nor grow under the daemon, and mapped here. Pages that
    lie in it cross to the daemon without a copy. Close it after the spaces that use it."""

    def __init__(self, length: int, name: str = "kvtier-pages") -> None:
        lib, handle = _lib.load(), C.c_void_p()
        self._handle: Optional[C.c_void_p] = None
        _check(lib.kvtier_memory_alloc(length, name, C.byref(handle)))
        self._handle = handle
        self.length = self.region().length
        self.address = lib.kvtier_memory_address(handle)
        self.view = memoryview((C.c_uint8 * self.length).from_address(self.address)).cast("B")

    def region(self) -> Region:
        """All of it, for open_space(); another one after take_back()."""
        if self._handle is None:
            raise Error(errno.EBADF, "this memory was closed")
        region = _lib.sized(_lib.Region)
        _check(_lib.load().kvtier_memory_region(self._handle, C.byref(region)))
        return Region(region.length, fd=region.fd)

    @property
    def fd(self) -> int:
        """The memfd; -1 when closed. It is another one after take_back()."""
        return -1 if self._handle is None else self.region().fd

    def lent(self) -> int:
        """Pages in it that are lent still over a connection that was cut: not to be read or written."""
        inode = os.fstat(self.region().fd).st_ino
        return sum(page.memory == inode for page in lent())

    def take_back(self) -> None:
        """Makes every page free at once, whoever may still write: the same addresses, `view` included, show a fresh
        memfd with the same contents. Close the spaces that use it before (else Error EBUSY), open them again with
        region() after. No other thread may write to it meanwhile."""
        self.region()
        _check(_lib.load().kvtier_memory_take_back(self._handle))

    def close(self) -> None:
        if self._handle is not None:
            self.view.release()
            handle, self._handle = self._handle, None
            _lib.load().kvtier_memory_free(handle)

    def __enter__(self) -> "SharedMemory":
        return self

    def __exit__(self, *exc) -> None:
        self.close()


class Space:
    """Open on a client; made by Client.open_space(). Closing it waits until the daemon has let go of every
    page, or the client's timeout."""

    def __init__(self, client: "Client", handle: C.c_void_p, geometry: Geometry) -> None:
        self.client, self.geometry, self._handle = client, geometry, handle

    def close(self) -> int:
        """How many of its pages are lent still; 0 unless the daemon stands still (or it was closed before)."""
        handle, self._handle = self._handle, None
        if handle is None:
            return 0
        self.client._spaces.pop(id(self), None)
        with self.client._hurried():
            return _lib.load().kvtier_space_close(handle)

    def __enter__(self) -> "Space":
        return self

    def __exit__(self, kind, *exc) -> None:
        self.client._ends_by(kind)
        self.close()

    def _open(self) -> C.c_void_p:
        if self._handle is None:
            raise Error(errno.EBADF, "this space was closed")
        return self._handle

    @property
    def memory(self) -> str:
        """How the daemon reaches the pages, for people: "CUDA IPC", "CUDA staged: it is of a ..."."""
        text = C.create_string_buffer(256)
        _check(_lib.load().kvtier_space_memory(self._open(), text, len(text)))
        return text.value.decode()

    def quiesce(self) -> int:
        """Ends the ops, and gives the pages back: their memory may go away until resume(). The space keeps its
        identity. How many pages are lent still, as close()."""
        return _check(_lib.load().kvtier_space_quiesce(self._open()))

    def resume(self, regions: Optional[Sequence[Region]] = None) -> None:
        """Opens it again, over the same memory (None; not of memfds) or over other memory of the same kind."""
        r = _regions(regions) if regions is not None else None
        _check(_lib.load().kvtier_space_resume(self._open(), r, len(regions or ())))

    def keys(self, tokens, parent: Optional[bytes] = None) -> Keys:
        """Keys of the full blocks in tokens; the tail that fills no block has none. tokens: a sequence of ints, or
        a buffer of integers in one row (array, memoryview, numpy; a tensor in CPU memory). 32-bit items are read
        where they lie, a negative one as its 32 bits; others are converted, and are 0 to 4294967295."""
        with _lib.tokens(tokens) as (address, n_tokens):
            n = C.c_size_t(n_tokens // self.geometry.block_tokens)
            array = (_lib.Key * n.value)()
            if n.value:
                _check(_lib.load().kvtier_keys(self._open(), _key(parent), address, n_tokens, array, C.byref(n)))
        return Keys(array, parent)

    def lookup(self, keys: Keys) -> Hit:
        """How many leading blocks are present. No system call; 0 blocks when the daemon is away."""
        hit = _lib.sized(_lib.Hit)
        _check(_lib.load().kvtier_lookup(self._open(), keys._array, len(keys), C.byref(hit)))
        return Hit(hit.blocks, Tier(hit.tiers), hit.generation)

    def store(self, keys: Keys, pages: Iterable[int], **options) -> Op:
        """Gives blocks to the daemon. Options: timeout_ms; parent where it is not keys.parent; stream, of
        pages in a GPU's memory: a torch.cuda.Stream or a CUstream's number; no page is touched before the
        work that is in it now; layer_groups: the pages' layers are given in so many groups, by
        Client.store_layers(); session, turn, ttl_s, priority: see below. The pages must not change until the
        op's result was taken, but for layers that were not given yet.

        session, turn, ttl_s and priority are hints on the op's blocks, as by hint(Action.RETAIN); they take nothing
        back that others said of a block, and never fail an op."""
        return self._submit(_lib.load().kvtier_store, keys, pages, options)

    def load(self, keys: Keys, pages: Iterable[int], **options) -> Op:
        """Asks for blocks; options as for store(). The pages are the daemon's until the result was taken. With
        layer_groups=n the layers come in n groups, the first of all blocks first: Client.wait_layers()."""
        return self._submit(_lib.load().kvtier_load, keys, pages, options)

    def prefetch(self, keys: Keys) -> Op:
        """Brings blocks nearer, into host memory."""
        op = C.c_uint64()
        _check(_lib.load().kvtier_prefetch(self._open(), keys._array, len(keys), C.byref(op)))
        return self.client._op(op.value, len(keys), 0)

    def hint(self, action: Union[Action, str], keys: Optional[Keys] = None, *, session: int = 0, turn: int = 0,
             revision: bool = False, ttl_s: int = 0, priority: int = 0, timeout_ms: int = 0) -> Op:
        """Says what becomes of blocks: an op, whose Result has the answers. Exactly one of: keys (of any chains; with
        session, they join it); session (of this tenant; turn > 0: its blocks of that turn or later); revision=True
        (all spaces of the tenant with this space's model). action: an Action, or its name in any case. ttl_s 0: as long
        as may be. priority: -100 to 100, of RETAIN. Error with EINVAL: a field is out of its limits."""
        kind = Action[action.upper()] if isinstance(action, str) else Action(action)
        if (keys is not None) + (keys is None and session != 0) + revision != 1:
            raise ValueError("a hint is on keys, on a session, or on the revision of the space")
        scope = 1 if keys is not None else 2 if session else 3
        hint = _lib.sized(_lib.Hint, "hint", action=kind, scope=scope, timeout_ms=timeout_ms, session=session,
                          turn=turn, ttl_s=ttl_s, priority=priority)
        if keys is not None:
            hint.keys, hint.n = C.cast(keys._array, C.POINTER(_lib.Key)), len(keys)
        op = C.c_uint64()
        _check(_lib.load().kvtier_hint(self._open(), C.byref(hint), C.byref(op)))
        return self.client._op(op.value, hint.n or 1, hint.timeout_ms)

    def _submit(self, function, keys: Keys, pages: Iterable[int], options: dict) -> Op:
        if options.keys() - _OPTIONS:
            raise TypeError(f"no option {', '.join(sorted(options.keys() - _OPTIONS))}: the options are "
                            f"{', '.join(sorted(_OPTIONS))}")
        array = _lib.pages(pages)
        if len(array) != len(keys):
            raise ValueError(f"{len(keys)} keys need as many pages, not {len(array)}")
        fields = {"parent": keys.parent, **options}
        fields["parent"] = _key(fields["parent"])
        stream = fields.pop("stream", None)
        if stream is not None:
            fields["cuda_stream"] = _stream(stream)
        how, op = _lib.sized(_lib.OpOptions, "options", **fields), C.c_uint64()
        _check(function(self._open(), keys._array, array, len(keys), C.byref(how), C.byref(op)))
        return self.client._op(op.value, len(keys), how.timeout_ms)


def _key(parent: Optional[bytes]):
    """A pointer to a key, or NULL. ctypes keeps the key alive with the pointer."""
    if parent is None:
        return None
    if len(parent) != C.sizeof(_lib.Key):
        raise ValueError(f"a key has {C.sizeof(_lib.Key)} bytes, not {len(parent)}")
    return C.pointer(_lib.Key.from_buffer_copy(parent))


class Client:
    """One connection to one kvtierd. It reconnects by itself, with backoff, from inside later calls."""

    def __init__(self, socket_path: Optional[str] = None, name: Optional[str] = None, timeout_ms: int = 0,
                 staging_bytes: int = 0, spin_us: int = 0, gpu_mode: Optional[str] = None) -> None:
        """gpu_mode: "daemon" or "engine" (enum kvtier_gpu_mode in kvtier.h); None: as the daemon's [gpu] mode says."""
        modes = {None: 0, "daemon": 1, "engine": 2}
        if gpu_mode not in modes:
            raise ValueError(f"gpu_mode is {gpu_mode!r}, must be None, 'daemon' or 'engine'")
        options = _lib.sized(_lib.Options, "options", timeout_ms=timeout_ms, staging_bytes=staging_bytes,
                             socket_path=os.fsencode(socket_path) if socket_path else None,
                             name=name or None, spin_us=spin_us, gpu_mode=modes[gpu_mode])
        handle = C.c_void_p()
        self._handle: Optional[C.c_void_p] = None
        self._timeout_ms = options.timeout_ms or _TIMEOUT_MS
        self._interrupted = False       # a wait ended by a signal's handler
        self._spaces: Dict[int, Space] = {}
        _check(_lib.load().kvtier_connect(C.byref(options), C.byref(handle)))
        self._handle = handle

    def close(self) -> int:
        """Closes the spaces, drops outstanding ops, disconnects. Twice is fine. How many pages are lent still."""
        if self._handle is None:
            return 0
        with self._hurried():
            n = sum([space.close() for space in list(self._spaces.values())])
            handle, self._handle = self._handle, None
            _lib.load().kvtier_close(handle)
        return n

    @contextlib.contextmanager
    def _hurried(self) -> Iterator[None]:
        """The client's timeout is short here, if a signal ended a wait: whoever sent it wants an end."""
        lib, short = _lib.load(), self._interrupted and self._timeout_ms > HURRY_MS
        if short:
            lib.kvtier_set_timeout(self._handle, HURRY_MS)
        try:
            yield
        finally:
            if short and self._handle is not None:
                lib.kvtier_set_timeout(self._handle, self._timeout_ms)

    def _ends_by(self, kind: Optional[type]) -> None:
        """A `with` ends by this exception (None: by none)."""
        if kind is not None and not issubclass(kind, Exception):
            self._interrupted = True

    def _op(self, number: int, n: int, timeout_ms: int) -> Op:
        return Op(number, n, time.monotonic() + (timeout_ms or self._timeout_ms) / 1000 + _GRACE_S)

    def _await(self, call: Callable[[int], int], timeout_ms: int, until: Optional[float]) -> int:
        """call(ms) until it does not say -ETIMEDOUT, in slices; negative: until then, if it is known here."""
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
        """Pages of its running stores and loads, and those of lent()."""
        return _lent(self._open())

    @property
    def status(self) -> str:
        """How it stands, for people: "connected to ...", "not connected: ..."; while pages are lent still
        over connections that were cut, also "...; waits for kvtierd (pid 12) to answer or end: 3 pages are
        lent still ..."."""
        text = C.create_string_buffer(1024)
        _check(_lib.load().kvtier_status(self._open(), text, len(text)))
        return text.value.decode()

    @property
    def tiers(self) -> Tier:
        """Tiers of the daemon that it was connected to last; Tier(0): none so far. Without Tier.REDIS a prefetch brings
        no block that a lookup does not find. No system call."""
        return Tier(_check(_lib.load().kvtier_tiers(self._open())))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind, *exc) -> None:
        self._ends_by(kind)
        self.close()

    def _open(self) -> C.c_void_p:
        if self._handle is None:
            raise Error(errno.EBADF, "this client was closed")
        return self._handle

    def open_space(self, geometry: Geometry, regions: Sequence[Region] = (),
                   segments: Sequence[Segment] = ()) -> Space:
        """Opens a space and shows the daemon where pages lie; without regions it can only look up and
        prefetch. Memory of a region with `base` or `cuda` must stay valid until the space is closed."""
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
        """Waits for one op and takes its result. Negative: until the op's own deadline, which always ends.
        Error with ETIMEDOUT: not yet done, the op goes on."""
        statuses = (C.c_int32 * op.n)()
        result = _lib.sized(_lib.Result, blocks_max=op.n, blocks=statuses)
        handle, wait = self._open(), _lib.load().kvtier_wait
        _check(self._await(lambda ms: wait(handle, op.id, ms, C.byref(result)), timeout_ms, op.until))
        return _result(result)

    def poll(self, max_results: int = 16, max_blocks: int = 64) -> List[Result]:
        """Results of completed ops, without waiting; at most max_blocks statuses of each."""
        room = [(C.c_int32 * max_blocks)() for _ in range(max_results)]
        results = (_lib.Result * max_results)(*[
            _lib.sized(_lib.Result, blocks_max=max_blocks, blocks=r) for r in room])
        n = _check(_lib.load().kvtier_poll(self._open(), results, max_results))
        return [_result(results[i]) for i in range(n)]

    def event_fd(self) -> int:
        """A descriptor, the client's own, that polls readable when poll() may have something."""
        return _check(_lib.load().kvtier_event_fd(self._open()))

    def stream_wait(self, op: Op, stream) -> None:
        """Work that is put into the stream after this call waits until the op has ended, without the CPU. Whether its
        blocks were loaded, only the op's result says. Error with EOPNOTSUPP: staged pages, or engine mode, where this
        process does the op's work; use wait()."""
        _check(_lib.load().kvtier_stream_wait(self._open(), op.id, _stream(stream)))

    def wait_layers(self, op: Op, group: int, stream=None, timeout_ms: int = -1) -> bool:
        """Waits until this layer group of a load is in the pages of all blocks: True. False: the op has ended, and
        not with all of its blocks; its result says why. Error with ETIMEDOUT: not yet. With a stream nothing waits
        but the work that is put into it after this call. That wait ends with the op, however it ends, so take the
        op's result before you use what was computed: if its status is not 0, what was computed from the pages is
        void. Error with EOPNOTSUPP as of stream_wait()."""
        if stream is not None:
            _check(_lib.load().kvtier_stream_wait_layers(self._open(), op.id, group, _stream(stream)))
            return True
        handle, wait = self._open(), _lib.load().kvtier_wait_layers
        code = self._await(lambda ms: wait(handle, op.id, group, ms), timeout_ms, op.until)
        return code != -errno.ENODATA and _check(code) == 0

    def store_layers(self, op: Op, groups: int, stream=None) -> None:
        """The first `groups` layer groups are in all pages of this store, and do not change any more; with a stream
        once the work that is in it now is done. Call it with growing numbers, always with the same stream. A store
        that is not given all of its groups ends at its deadline, or after a minute, and nothing is kept of it."""
        _check(_lib.load().kvtier_store_layers(self._open(), op.id, groups,
                                               _stream(stream) if stream is not None else None))

    def cancel(self, op: Op, timeout_ms: int = 1000) -> None:
        """Ends an op early: afterwards none of its pages is touched, and its result waits to be taken. Error with
        ETIMEDOUT: some are lent still, and the sentence says how many."""
        handle, cancel = self._open(), _lib.load().kvtier_cancel
        limit_ms = self._timeout_ms if timeout_ms < 0 else timeout_ms
        _check(self._await(lambda ms: cancel(handle, op.id, ms), limit_ms, None))


def _result(r: _lib.Result) -> Result:
    return Result(r.op, r.status, r.n, r.ok, r.prefix, list(r.blocks[:min(r.n, r.blocks_max)]), r.lent,
                  Answers(*r.answers))
