# SPDX-License-Identifier: Apache-2.0
"""kvtier.vllm_core - what kvtier.vllm does, without vLLM and torch: so it can be read and tested without them.

Scheduler (one process) looks blocks up and plans; Worker (one for each rank) moves bytes. A plan goes from one to the
other with each step of the engine.

    a request in the scheduler: matched() --blocks allocated--> load planned --worker has loaded--> computing
    computing --a block is full after this step--> save planned --> ... --finished()--> its blocks are freed when the
    worker has read what was planned

A load names every block that was not proven good: from the first one on that is missing, late or wrong, the engine
computes again. A save names blocks that the engine has computed in full; a block that a load brought is not saved.
The daemon may be away at any time: then nothing matches, loads fail at once, saves are dropped.
"""
from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import MAX_BLOCKS, Client, Codec, Dtype, Error, Geometry, Keys, Kind, Op, Region, Result, Segment, Space, Tier, lent

__all__ = ["Layout", "LayoutError", "Scheduler", "Tensor", "Transfer", "Worker", "files_of", "layout_of", "root_of"]

CONVENTION = "vllm"
AGAIN_S = 5.0           # between two tries to reach a daemon that is away
SLACK_S = 0.5           # an op ends at its deadline, and is heard of a little later
LENT_LOOK_S = 0.5       # between two looks at pages that a daemon which stands still has

_DTYPES = {"bfloat16": Dtype.BF16, "float16": Dtype.FP16, "float32": Dtype.FP32, "uint8": Dtype.INT8,
           "int8": Dtype.INT8, "float8_e4m3fn": Dtype.E4M3, "float8_e5m2": Dtype.E5M2}
_SIZES = {Dtype.BF16: 2, Dtype.FP16: 2, Dtype.FP32: 4, Dtype.INT8: 1, Dtype.E4M3: 1, Dtype.E5M2: 1}


class LayoutError(RuntimeError):
    """This engine keeps its KV in a way that is not served."""


# --- where the engine's blocks lie ---

class Tensor(NamedTuple):
    """A layer's KV, as torch describes it."""
    name: str
    dtype: str                  # "bfloat16"
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]    # in values
    offset: int                 # of its first value in the memory, in bytes
    memory: int                 # address of the memory that it is a view of
    memory_bytes: int
    cuda: bool


class Layout(NamedTuple):
    regions: List[Region]
    segments: List[Segment]
    dtype: Dtype
    runs: int                   # of values, in a block of all layers
    values: int                 # in each of them


def _inside(tensor: Tensor, block_axis: int, half: Optional[int]) -> Tuple[int, int]:
    """First byte and values of block 0, which must be one run without holes."""
    size = _SIZES[_DTYPES[tensor.dtype]]
    axes = [(n, s) for i, (n, s) in enumerate(zip(tensor.shape, tensor.strides))
            if i != block_axis and not (half is not None and i == 0)]
    values = 1
    for n, _ in axes:
        values *= n
    if 1 + sum((n - 1) * s for n, s in axes) != values:
        raise LayoutError(f"{tensor.name}: a block of shape {tensor.shape}, strides {tensor.strides} has holes")
    return tensor.offset + (half * tensor.strides[0] * size if half else 0), values


def layout_of(tensors: Sequence[Tensor], blocks: int) -> Layout:
    """tensors: in the order of layers. A block of a layer is one run of values ([blocks, ...]) or two ([2, blocks, ...]:
    K and V apart), in an order that only the engine knows. LayoutError: anything else."""
    if not tensors:
        raise LayoutError("there is no layer with KV")
    regions: Dict[int, int] = {}
    ret: List[Region] = []
    segments: List[Segment] = []
    counts = set()
    for tensor in tensors:
        if tensor.dtype not in _DTYPES or _DTYPES[tensor.dtype] != _DTYPES[tensors[0].dtype]:
            raise LayoutError(f"{tensor.name}: values of type {tensor.dtype}; {tensors[0].name} has {tensors[0].dtype}")
        if len(tensor.shape) > 1 and tensor.shape[0] == blocks:
            axis, halves = 0, [None]
        elif len(tensor.shape) > 2 and tensor.shape[0] == 2 and tensor.shape[1] == blocks:
            axis, halves = 1, [0, 1]
        else:
            raise LayoutError(f"{tensor.name}: shape {tensor.shape} begins neither with {blocks} blocks nor with K and "
                              f"V of {blocks} blocks")
        if tensor.memory not in regions:
            regions[tensor.memory] = len(ret)
            where = {"cuda": tensor.memory} if tensor.cuda else {"base": tensor.memory}
            ret.append(Region(tensor.memory_bytes, **where))
        for half in halves:
            at, values = _inside(tensor, axis, half)
            counts.add(values)
            segments.append(Segment(Kind.TYPED, at, tensor.strides[axis] * _SIZES[_DTYPES[tensor.dtype]], length=values,
                                    region=regions[tensor.memory]))
    if len(counts) != 1:
        raise LayoutError(f"layers have blocks of {sorted(counts)} values: only layers of one size are served")
    return Layout(ret, segments, _DTYPES[tensors[0].dtype], len(segments), counts.pop())


def geometry_of(layout: Layout, model: str, extras: str, block_tokens: int, layers: int, rank: int, world: int,
                codec: Codec) -> Geometry:
    return Geometry(model, CONVENTION, layout.dtype, layers, 1, 0, 0, block_tokens, extras=extras, rank=rank,
                    world=world, codec=codec, typed_segments=layout.runs, typed_values=layout.values)


def root_of(what: Dict[str, Any]) -> Optional[bytes]:
    """What the key of a request's first block is made from, beside tokens: what changes its KV beside tokens (adapter, salt, images). None: nothing.
    Equal in each process and after each start."""
    said = {key: value for key, value in what.items() if value}
    if not said:
        return None
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).digest()


def files_of(path: Any) -> str:
    """A digest of names, sizes and times of the files of a directory: weights that are replaced in their place are
    other weights. "" where there is no such directory."""
    if not path:
        return ""
    try:
        files = sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in os.scandir(path) if e.is_file())
    except OSError:
        return ""
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()[:32]


# --- what goes from scheduler to worker ---

class Transfer(NamedTuple):
    """A load or a save. pages: the engine's block numbers, one for each key."""
    request: str
    keys: bytes
    parent: Optional[bytes]
    pages: List[int]


class _Line:
    """A daemon that may be away: asked again after AGAIN_S. say: told when it is reached, and when it is not any more."""

    def __init__(self, open_now: Callable[[], Any], say: Callable[[str], None]) -> None:
        self._open, self._say, self._got, self._again = open_now, say, None, 0.0
        self.why = ""       # it is away

    def get(self) -> Any:
        """What the function returned, or None."""
        if self._got is None and time.monotonic() >= self._again:
            try:
                self._got = self._open()
                self.why = ""
                self._say("kvtierd is reached")
            except Error as error:
                self.lost(str(error))
        return self._got

    def lost(self, why: str) -> None:
        if not self.why:
            self._say(f"kvtierd is not reached, and asked again every {AGAIN_S:.0f} s: {why}")
        self._got, self.why, self._again = None, why, time.monotonic() + AGAIN_S


class _Request:
    def __init__(self, tokens: Callable[[], Sequence[int]], root: Optional[bytes]) -> None:
        self.tokens, self.root = tokens, root
        self.keys = b""
        self.pages: List[int] = []
        self.next_save = 0          # the first block that was not planned to be saved, nor loaded
        self.saves = False          # there was one
        self.asked = 0              # tokens that the engine had when it asked last
        self.tiers = Tier(0)        # where the last block lay that it was told of


class Scheduler:
    """open_spaces: connects, and opens the space of each rank without memory of its own."""

    def __init__(self, block_tokens: int, open_spaces: Callable[[], List[Space]],
                 say: Callable[[str], None] = lambda text: None) -> None:
        self.block_tokens, self._line = block_tokens, _Line(open_spaces, say)
        self._line.get()
        self._requests: Dict[str, _Request] = {}
        self._loads: List[Transfer] = []

    def add(self, request: str, tokens: Callable[[], Sequence[int]], root: Optional[bytes]) -> None:
        """tokens: gives all tokens that the request has by then. A request that is known stays as it is."""
        if request not in self._requests:
            self._requests[request] = _Request(tokens, root)

    def knows(self, request: str) -> bool:
        return request in self._requests

    def matched(self, request: str, computed: int, limit: int) -> int:
        """How many tokens beyond `computed`, in whole blocks and at most up to token `limit`, can be loaded. Plans
        nothing."""
        r, bt = self._requests[request], self.block_tokens
        r.asked = computed
        first, last = computed // bt, limit // bt
        if computed % bt or last <= first or not self._line.get():
            return 0
        keys = self._keys(r, last)
        if keys is None:
            return 0
        hits = [space.lookup(Keys.of(keys[:32 * last])) for space in self._line.get()]
        worst = min(hits, key=lambda hit: hit.blocks)
        r.tiers = worst.tiers
        return max(0, min(worst.blocks, last) - first) * bt

    def tier(self, request: str) -> Tier:
        """Where the last block of matched() lay."""
        return self._requests[request].tiers

    def allocated(self, request: str, pages: Sequence[int], external: int) -> None:
        """The engine gave these blocks to the request, from its first token on, and takes so many of the tokens of the
        last matched() from here."""
        r, bt = self._requests[request], self.block_tokens
        r.pages = list(pages)
        if external > 0:
            first, last = r.asked // bt, (r.asked + external) // bt
            self._plan(self._loads, request, first, last)
            r.next_save = max(r.next_save, last)

    def step(self, request: str, computed: int, scheduled: int, new_pages: Sequence[int], anew: bool,
             saves: List[Transfer]) -> None:
        """The engine computes `scheduled` tokens from token `computed` on. new_pages: all blocks of the request (anew),
        else more of them. Adds the blocks that are full after the step to saves."""
        r, bt = self._requests[request], self.block_tokens
        r.pages = list(new_pages) if anew else r.pages + list(new_pages)
        # tokens that the engine only guesses are not the request's yet
        last = min(computed + scheduled, len(r.tokens())) // bt
        first = min(r.next_save, computed // bt)
        last = min(last, len(r.pages))
        if last > first:
            r.saves |= self._plan(saves, request, first, last)
        r.next_save = max(first, last)

    def take_loads(self) -> List[Transfer]:
        ret, self._loads = self._loads, []
        return ret

    def finished(self, request: str) -> bool:
        """True: a save of it was planned, so its blocks stay until the worker says that it has read them."""
        r = self._requests.pop(request, None)
        self._loads = [load for load in self._loads if load.request != request]
        return bool(r and r.saves)

    def _plan(self, to: List[Transfer], request: str, first: int, last: int) -> bool:
        r = self._requests[request]
        keys = self._keys(r, last)
        if keys is None:
            return False
        for at in range(first, last, MAX_BLOCKS):
            end = min(last, at + MAX_BLOCKS)
            parent = keys[32 * at - 32:32 * at] if at else None     # a root is no block
            to.append(Transfer(request, keys[32 * at:32 * end], parent, r.pages[at:end]))
        return True

    def _keys(self, r: _Request, blocks: int) -> Optional[bytes]:
        """Of so many leading blocks at least; each is made once. None: no daemon has said how."""
        have = len(r.keys) // 32
        if have < blocks:
            spaces = self._line.get()
            if not spaces:
                return None
            tokens = r.tokens()[have * self.block_tokens:blocks * self.block_tokens]
            r.keys += bytes(spaces[0].keys(tokens, r.keys[-32:] or r.root))
        return r.keys


# --- the worker ---

class _Running(NamedTuple):
    transfer: Transfer
    load: bool
    until: float        # a daemon that has not ended it by then stands still


class Worker:
    """open_space: connects, and opens the space over the engine's memory. stream: of a GPU, which the ops wait for.
    timeout_s: the client's. An op that a daemon has not ended by then is given up, and the connection with it."""

    def __init__(self, open_space: Callable[[], Tuple[Client, Space]], timeout_s: float,
                 stream: Callable[[], Any] = lambda: None, say: Callable[[str], None] = lambda text: None) -> None:
        self._line, self._stream, self._timeout_s = _Line(open_space, say), stream, timeout_s
        self._line.get()
        self._running: Dict[int, _Running] = {}
        self._left: Dict[str, int] = {}             # ops of a request that have not ended
        self._receiving: Set[str] = set()
        self._sent: Set[str] = set()                # requests that had a save
        self._ending: Set[str] = set()              # of these, whose blocks wait to be freed
        self._received: Set[str] = set()
        self._failed: Set[int] = set()              # blocks
        self._lent: List[Tuple[str, Set[int]]] = []     # requests and ops whose pages a daemon that stands still has
        self._lent_look = 0.0
        self.counts = {"loaded_blocks": 0, "missed_blocks": 0, "saved_blocks": 0, "unsaved_blocks": 0}

    def load(self, loads: Iterable[Transfer]) -> None:
        for transfer in loads:
            self._receiving.add(transfer.request)
            self._begin(transfer, True)
        self._settle()

    def save(self, saves: Iterable[Transfer]) -> None:
        for transfer in saves:
            self._sent.add(transfer.request)
            self._begin(transfer, False)

    def _begin(self, transfer: Transfer, load: bool) -> None:
        got = self._line.get()
        try:
            if got is None:
                raise Error(errno.ENOTCONN, self._line.why)
            space = got[1]
            stream = self._stream()
            how = {} if stream is None else {"stream": stream}
            op: Op = (space.load if load else space.store)(Keys.of(transfer.keys, transfer.parent), transfer.pages, **how)
        except Error:
            self._count(load, 0, len(transfer.pages))
            if load:
                self._failed.update(transfer.pages)
            return
        self._running[op.id] = _Running(transfer, load, time.monotonic() + self._timeout_s + SLACK_S)
        self._left[transfer.request] = self._left.get(transfer.request, 0) + 1

    def _count(self, load: bool, good: int, n: int) -> None:
        self.counts["loaded_blocks" if load else "saved_blocks"] += good
        self.counts["missed_blocks" if load else "unsaved_blocks"] += n - good

    def poll(self) -> None:
        """Takes the results that there are. No system call while there are none."""
        got = self._line.get() if self._running else None
        while got is not None and self._running:
            results = got[0].poll(16, MAX_BLOCKS)
            for result in results:
                self._ended(result)
            if len(results) < 16:
                break
        if self._running and time.monotonic() > min(running.until for running in self._running.values()):
            self._cut()
        self._look_at_lent()
        self._settle()

    def wait(self, requests: Optional[Set[str]] = None) -> None:
        """Until the ops of these requests (None: all) have ended: at their deadline at the latest."""
        for op, running in list(self._running.items()):
            if requests is None or running.transfer.request in requests:
                if op not in self._running:
                    continue
                try:
                    self._ended(self._line.get()[0].wait(Op(op, len(running.transfer.pages))))
                except Error:
                    self._cut()
        self._settle()

    def _cut(self) -> None:
        """A daemon stands still. Waits for the client's timeout at most; then no op is under way any more."""
        client, space = self._line.get()
        space.close()
        client.close()
        self._line.lost("the daemon stood still")
        held = {page.op for page in lent()}
        for op, running in list(self._running.items()):
            self._ended(Result(op, -errno.ETIMEDOUT, 0, 0, 0, [], op in held))

    def _ended(self, result: Result) -> None:
        running = self._running.pop(result.op, None)
        if running is None:
            return
        transfer, n = running.transfer, len(running.transfer.pages)
        good = result.prefix if running.load else result.ok
        self._count(running.load, good, n)
        if running.load:
            self._failed.update(transfer.pages[good:])
        if result.lent:
            self._lent.append((transfer.request, {result.op}))
        else:
            self._done(transfer.request)

    def _done(self, request: str) -> None:
        self._left[request] -= 1
        if self._left[request] == 0:
            del self._left[request]

    def _look_at_lent(self) -> None:
        """A page that is lent may yet be written: its request goes on when the daemon lets go, or is dead."""
        if not self._lent or time.monotonic() < self._lent_look:
            return
        self._lent_look = time.monotonic() + LENT_LOOK_S
        held = {page.op for page in lent()}
        for request, ops in self._lent:
            if not ops & held:
                self._done(request)
        self._lent = [entry for entry in self._lent if entry[1] & held]

    def _settle(self) -> None:
        done = {request for request in self._receiving if request not in self._left}
        self._receiving -= done
        self._received |= done

    def finished(self, ended: Set[str]) -> Tuple[Set[str], Set[str]]:
        """ended: requests that the engine has finished since. Whose saves and whose loads are over."""
        self._ending |= ended & self._sent
        self.poll()
        sent = {request for request in self._ending if request not in self._left}
        self._ending -= sent
        self._sent -= sent
        received, self._received = self._received, set()
        return sent, received

    def failed_blocks(self) -> Set[int]:
        ret, self._failed = self._failed, set()
        return ret
