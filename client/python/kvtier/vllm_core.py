# SPDX-License-Identifier: Apache-2.0
"""kvtier.vllm_core - what kvtier.vllm does, without vLLM and torch: so it can be read and tested without them.

Scheduler (one process) looks blocks up and plans; Worker (one for each rank) moves bytes. A plan goes from one to the
other with each step of the engine.

    a request in the scheduler: matched() --Redis was asked, once--> matched() --blocks allocated--> load planned
    load planned --worker has loaded--> computing
    computing --a block is full after this step--> save planned --> ... --finished()--> its blocks are freed when the
    worker has read what was planned

A load names every block that was not proven good: from the first one on that is missing, late or wrong, the engine
computes again. A save names blocks that the engine has computed in full; a block that a load brought is not saved.
The daemon may be away at any time: then nothing matches, loads fail at once, saves are dropped.

A model may have several KV cache groups, each with pages of its own (sliding windows beside full attention). Each group
is a space, so is each rank: a block of tokens is there when every rank and every group has its part. Where a group has
a window, the engine gives blocks back while their request runs: their saves are waited for in the step that plans them.
A load of such a model is whole, or its request is computed from the beginning.
"""
from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import struct
import time
from typing import Any, Callable, Container, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import MAX_BLOCKS, Client, Error, Keys, Op, Result, Space, Tier, lent
from .vllm_hints import Hint, Hints, UnderWay

__all__ = ["NO_PAGE", "Scheduler", "Transfer", "Worker", "root_of"]

AGAIN_S = 5.0           # between two tries to reach a daemon that is away
SLACK_S = 0.5           # an op ends at its deadline, and is heard of a little later
LENT_LOOK_S = 0.5       # between two looks at pages that a daemon which stands still has
NO_PAGE = 0             # the engine's block that stands for one outside of a window


def root_of(what: Dict[str, Any]) -> Optional[bytes]:
    """A digest of what changes a request's KV beside tokens (adapter, salt, images). None: nothing. Equal in each
    process and after each start."""
    said = {key: value for key, value in what.items() if value}
    if not said:
        return None
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).digest()


def is_named(request: Any) -> bool:
    """Whether the request's token ids say all of its prompt, but for what root_of() is told. Those of a part that came
    as embeddings are zeros, so two such prompts would be one."""
    return request.prompt_token_ids is not None and getattr(request, "prompt_embeds", None) is None


# --- what goes from scheduler to worker ---

class Transfer(NamedTuple):
    """A load or a save of blocks of one group."""
    request: str
    group: int
    keys: List[bytes]               # of each rank
    parents: List[Optional[bytes]]  # of each rank
    pages: List[int]                # the engine's block numbers, one for each key


class _Line:
    """A daemon that may be away: asked again after AGAIN_S. say: told when it is reached, and when no more."""

    def __init__(self, open_now: Callable[[], Any], say: Callable[[str], None]) -> None:
        self._open, self._say, self.got, self._again = open_now, say, None, 0.0
        self.why = ""       # it is away

    def get(self) -> Any:
        """What the function returned, or None."""
        if self.got is None and time.monotonic() >= self._again:
            try:
                self.got = self._open()
                self.why = ""
                self._say("kvtierd is reached")
            except OSError as error:        # kvtier's, or there is no libkvtier
                self.lost(str(error))
        return self.got

    def lost(self, why: str) -> None:
        if not self.why:
            self._say(f"kvtierd is not reached, and asked again every {AGAIN_S:.0f} s: {why}")
        self.got, self.why, self._again = None, why, time.monotonic() + AGAIN_S


class _Request:
    def __init__(self, tokens: Callable[[], Sequence[int]], root: Optional[bytes], groups: int) -> None:
        self.tokens, self.root = tokens, root
        self.keys: Dict[Tuple[int, int], bytes] = {}    # of a rank and group
        self.pages: List[List[int]] = [[] for _ in range(groups)]
        self.next_save = 0          # the first block that was not planned to be saved, nor loaded
        self.saves = False          # there was one
        self.asked = 0              # tokens that the engine had when it asked last
        self.brought = 0            # tokens that it has with its last load; 0: it had none, or was preempted since
        self.tiers = Tier(0)        # where the last block lay that it was told of
        self.loading: Set[int] = set()      # blocks that a worker loads
        self.loads = self.served = True     # it may load; it may also save
        self.far: Optional[int] = None      # prefetches of it that are under way; None: Redis was not asked yet
        self.far_until = 0.0                # then it is no longer waited for them
        self.hints: List[Hint] = []         # that are said again when its blocks were saved
        self.prompt = 0                     # full blocks of the prompt

    def came(self, result: Optional[Result]) -> None:
        """A prefetch of it is over. None: its daemon went away."""
        self.far -= 1


class Scheduler:
    """open_spaces: connects, and opens the space of each rank and group, without memory of its own: [rank][group].
    planned: told of each block that is about to be saved: request, number of the block, and its key in each space.
    prefetch_s: how long a request waits for a Redis that nodes share; 0: it is not asked."""

    def __init__(self, block_tokens: int, open_spaces: Callable[[], List[List[Space]]],
                 say: Callable[[str], None] = lambda text: None, groups: int = 1,
                 planned: Optional[Callable[[str, int, List[Tuple[Space, Keys]]], None]] = None,
                 prefetch_s: float = 0.0) -> None:
        self.block_tokens, self._line, self._groups = block_tokens, _Line(open_spaces, say), groups
        self._planned, self._prefetch_s = planned, prefetch_s
        self._epoch = b""           # beside the tokens, in each key
        self._line.get()
        self._requests: Dict[str, _Request] = {}
        self._ended: Dict[str, _Request] = {}       # requests with hints, whose last blocks are being saved
        self._loads: List[Transfer] = []
        self._under_way = UnderWay()
        self.hints = Hints(self._under_way)

    def add(self, request: str, tokens: Callable[[], Sequence[int]], root: Optional[bytes],
            hints: Sequence[Hint] = (), loads: bool = True) -> None:
        """tokens: gives all tokens that the request has by then. loads: False: its blocks are kept, and none is looked
        up. A request that is known stays as it is."""
        if request not in self._requests:
            if self._epoch:
                root = hashlib.sha256(self._epoch + (root or b"")).digest()
            self._requests[request] = r = _Request(tokens, root, self._groups)
            r.loads = loads
            if hints:
                r.prompt = len(tokens()) // self.block_tokens
                self._hint(r, hints)
                r.hints = [hint for hint in hints if hint.again()]

    def _hint(self, r: _Request, hints: Iterable[Hint]) -> None:
        """Of its prompt's blocks, and of whatever else the hints are about."""
        known = self._make_keys(r, r.prompt)
        for hint in hints:
            n = r.prompt if hint.tokens is None else min(r.prompt, hint.tokens // self.block_tokens)
            self.hints.say(hint, [(space, self._keys(r, where, 0, n) if n else None)
                                  for where, space in self._spaces()] if known else [])

    def knows(self, request: str) -> bool:
        return request in self._requests

    def matched(self, request: str, computed: int, limit: int) -> Optional[int]:
        """How many tokens beyond `computed`, in whole blocks and at most up to token `limit`, can be loaded. Plans
        nothing. None: Redis is being asked for what this node lacks: to be called again."""
        r, bt = self._requests[request], self.block_tokens
        r.asked = computed
        if computed < r.brought:
            r.loads = False     # the engine refused the load, as its checksum was another: the next one would be, too
        first, last = computed // bt, limit // bt
        if not (r.loads and r.served) or computed % bt or last <= first or not self._make_keys(r, last):
            return 0
        self._under_way.poll()          # before the lookup, which so sees what a prefetch that is over brought
        hits = [space.lookup(Keys.of(r.keys[where][:32 * last])) for where, space in self._spaces()]
        worst = min(hits, key=lambda hit: hit.blocks)
        if worst.blocks < last and self._is_asked(r, last):
            return None
        r.tiers = worst.tiers
        return max(0, min(worst.blocks, last) - first) * bt

    def _is_asked(self, r: _Request, last: int) -> bool:
        """Redis is asked for the leading blocks, once for each request: True while it is waited for. What comes later
        serves the next one."""
        if r.far is None:
            r.far, r.far_until = 0, time.monotonic() + self._prefetch_s
            for where, space in self._spaces() if self._prefetch_s > 0 else ():
                # from the chain's beginning, as a block from Redis is kept only under the one before it
                keys = self._keys(r, where, 0, min(last, MAX_BLOCKS))
                if space.client.tiers & Tier.REDIS:
                    r.far += self._under_way.begin(space.client, functools.partial(space.prefetch, keys), r.came)
        return r.far > 0 and time.monotonic() < r.far_until

    def tier(self, request: str) -> Tier:
        """Where the last block of matched() lay."""
        return self._requests[request].tiers

    def allocated(self, request: str, pages: Sequence[Sequence[int]], external: int) -> None:
        """The engine gave these blocks to the request, of each group, from its first token on, and takes so many of the
        tokens of the last matched() from here."""
        r, bt = self._requests[request], self.block_tokens
        r.pages = [list(own) for own in pages]
        if external > 0:
            first, last = r.asked // bt, (r.asked + external) // bt
            self._plan(self._loads, request, first, last)
            r.brought = last * bt
            r.loading = {page for own in r.pages for page in own[first:last] if page != NO_PAGE}
            r.next_save = max(r.next_save, last)

    def loaded(self, requests: Iterable[str], failed_pages: Iterable[int], failed: Iterable[str]) -> None:
        """What workers said since: requests whose loads are over, blocks and requests of failed loads. A request asks
        no second time for what a daemon promised and did not give."""
        bad, failed = set(failed_pages), set(failed)
        if bad or failed:
            for name, r in self._requests.items():
                if name in failed or r.loading & bad:
                    r.loads = False
        for name in requests:
            if name in self._requests:
                self._requests[name].loading = set()

    def step(self, request: str, computed: int, scheduled: int, new_pages: Optional[Sequence[Sequence[int]]],
             anew: bool, saves: List[Transfer]) -> None:
        """The engine computes `scheduled` tokens from token `computed` on. new_pages: all blocks of the request (anew),
        else more of them, of each group. Adds the blocks that are full after the step to saves."""
        r, bt = self._requests[request], self.block_tokens
        more = [list(own) for own in new_pages] if new_pages else [[] for _ in range(self._groups)]
        r.pages = more if anew else [own + new for own, new in zip(r.pages, more)]
        # tokens that the engine only guesses are not the request's yet
        last = min(computed + scheduled, len(r.tokens())) // bt
        first = min(r.next_save, computed // bt)
        last = min(last, min(len(own) for own in r.pages))
        if last > first and r.served:
            r.saves |= self._plan(saves, request, self._not_kept(r, first, last), last, self._planned)
        r.next_save = max(first, last)

    def _not_kept(self, r: _Request, first: int, last: int) -> int:
        """The first block that is worth a save. Blocks that are kept are not copied again, but for the last of them:
        so the daemon hears that its chain is in use."""
        if not self._make_keys(r, last):
            return first
        kept = min(space.lookup(self._keys(r, where, first, last)).blocks for where, space in self._spaces())
        return first + max(0, kept - 1)

    def take_loads(self) -> List[Transfer]:
        self._under_way.poll()
        ret, self._loads = self._loads, []
        return ret

    def preempted(self, requests: Iterable[str]) -> None:
        """The engine took their blocks back. A worker that reads them is waited for before they are used."""
        for name in requests:
            if name in self._requests:
                self._requests[name].saves = False
                self._requests[name].brought = 0

    def finished(self, request: str) -> bool:
        """True: a save of it was planned, so its blocks stay until the worker says that it has read them."""
        r = self._requests.pop(request, None)
        if r and r.hints:
            self._ended[request] = r
            if not r.saves:
                self.saved((request,))
        return bool(r and r.saves)

    def saved(self, requests: Iterable[str]) -> None:
        """What workers said since: requests that have ended, and whose blocks were read."""
        for name in requests:
            r = self._ended.pop(name, None)
            if r:
                self._hint(r, r.hints)

    def reset(self) -> None:
        """The engine's weights are others now: no block from before is found any more, by no request to come, and none
        is kept of the requests that there are. Later blocks are this engine's alone."""
        self._epoch = os.urandom(32)
        for r in self._requests.values():
            r.served = False

    def _spaces(self) -> List[Tuple[Tuple[int, int], Space]]:
        got = self._line.get() or []
        return [((rank, group), space) for rank, groups in enumerate(got) for group, space in enumerate(groups)]

    def _plan(self, to: List[Transfer], request: str, first: int, last: int, tell: Any = None) -> bool:
        r = self._requests[request]
        if not self._make_keys(r, last):
            return False
        before = len(to)
        ranks = len(r.keys) // self._groups
        for group, pages in enumerate(r.pages):
            begin = first
            while begin < last and pages[begin] == NO_PAGE:     # in front of a window
                begin += 1
            for at in range(begin, last, MAX_BLOCKS):
                end = min(last, at + MAX_BLOCKS)
                some = [self._keys(r, (rank, group), at, end) for rank in range(ranks)]
                to.append(Transfer(request, group, [bytes(keys) for keys in some], [keys.parent for keys in some],
                                   pages[at:end]))
        if tell:
            for block in range(first, last):
                tell(request, block, [(space, self._keys(r, where, block, block + 1))
                                      for where, space in self._spaces()])
        return len(to) > before

    @staticmethod
    def _keys(r: _Request, where: Tuple[int, int], first: int, last: int) -> Keys:
        keys = r.keys[where]
        return Keys.of(keys[32 * first:32 * last], keys[32 * first - 32:32 * first] if first else None)

    def _make_keys(self, r: _Request, blocks: int) -> bool:
        """Of so many leading blocks at least; each is made once. False: no daemon has said how."""
        spaces, bt = self._spaces(), self.block_tokens
        for where, space in spaces:
            own = r.keys.get(where, b"")
            have = len(own) // 32
            if have < blocks:
                # what a root is made of comes first, as tokens: so other tenants and spaces have other keys
                before = own[-32:] or (r.root and bytes(space.keys(_as_tokens(r.root, bt)))[-32:])
                r.keys[where] = own + bytes(space.keys(r.tokens()[have * bt:blocks * bt], before or None))
        return bool(spaces)


def _as_tokens(digest: bytes, block_tokens: int) -> List[int]:
    """Whole blocks of them."""
    words = struct.unpack(f"<{len(digest) // 4}I", digest)
    return [*words, *[0] * (-len(words) % block_tokens)]


# --- the worker ---

# what a worker counts; seconds are those from the begin of an op until its end was seen
COUNTS = ("loads", "loaded_blocks", "missed_blocks", "load_seconds", "saves", "saved_blocks", "unsaved_blocks",
          "save_seconds")


class _Running(NamedTuple):
    transfer: Transfer
    load: bool
    begun: float
    until: float        # a daemon that has not ended it by then stands still


class Worker:
    """open_spaces: connects, and opens the space of each group over the engine's memory. stream: of a GPU, which the
    ops wait for. timeout_s: the client's. An op that a daemon has not ended by then is given up, and the connection
    with it. rank: which of a transfer's keys. saves: False where another rank has the same KV, and saves it.
    whole: a load that is not whole fails its request, and a save is over when save() returns. take_back: of memory that
    the daemon maps: makes its pages free at once, when no space uses them."""

    def __init__(self, open_spaces: Callable[[], Tuple[Client, List[Space]]], timeout_s: float,
                 stream: Callable[[], Any] = lambda: None, say: Callable[[str], None] = lambda text: None,
                 rank: int = 0, saves: bool = True, whole: bool = False,
                 take_back: Optional[Callable[[], None]] = None) -> None:
        self._line, self._stream, self._timeout_s = _Line(open_spaces, say), stream, timeout_s
        self._rank, self._saves, self._whole, self._take_back = rank, saves, whole, take_back
        self._line.get()
        self._running: Dict[int, _Running] = {}
        self._left: Dict[str, int] = {}             # ops of a request that have not ended
        self._receiving: Set[str] = set()
        self._sent: Set[str] = set()                # requests that had a save
        self._ending: Set[str] = set()              # of these, whose blocks wait to be freed
        self._received: Set[str] = set()
        self._failed: Set[int] = set()              # blocks
        self._failing: Set[str] = set()             # requests, with `whole`
        self._lent: List[Tuple[str, Set[int]]] = []     # requests and ops whose pages a daemon that stands still has
        self._lent_look = 0.0
        self.counts = {name: 0 for name in COUNTS}

    def load(self, loads: Iterable[Transfer]) -> None:
        for transfer in loads:
            self._receiving.add(transfer.request)
            self._begin(transfer, True)
        self._settle()

    def save(self, saves: Iterable[Transfer], others: Container[str] = ()) -> None:
        """others: requests whose blocks are not what their keys say, so that none is kept."""
        requests = set()
        for transfer in saves:
            self._sent.add(transfer.request)
            if self._saves and transfer.request in others:
                self._count(transfer, False, 0, 0.0)
            elif self._saves:
                self._begin(transfer, False)
                requests.add(transfer.request)
        if self._whole and requests:
            self.wait(requests)

    def _begin(self, transfer: Transfer, load: bool) -> None:
        got = self._line.get()
        now = time.monotonic()
        try:
            if got is None:
                raise Error(errno.ENOTCONN, self._line.why)
            space = got[1][transfer.group]
            stream = self._stream()
            how = {} if stream is None else {"stream": stream}
            keys = Keys.of(transfer.keys[self._rank], transfer.parents[self._rank])
            op: Op = (space.load if load else space.store)(keys, transfer.pages, **how)
        except Error:
            self._count(transfer, load, 0, 0.0)
            return
        self._running[op.id] = _Running(transfer, load, now, now + self._timeout_s + SLACK_S)
        self._left[transfer.request] = self._left.get(transfer.request, 0) + 1

    def _count(self, transfer: Transfer, load: bool, good: int, seconds: float) -> None:
        """good: leading blocks of a load, blocks of a save."""
        n, what = len(transfer.pages), "load" if load else "save"
        self.counts[f"{what}s"] += 1
        self.counts[f"{what}_seconds"] += seconds
        self.counts["loaded_blocks" if load else "saved_blocks"] += good
        self.counts["missed_blocks" if load else "unsaved_blocks"] += n - good
        if load and good < n:
            if self._whole:
                self._failing.add(transfer.request)
            else:
                self._failed.update(transfer.pages[good:])

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
                    self._ended(self._line.get()[0].wait(Op(op, len(running.transfer.pages), running.until)))
                except Error:
                    self._cut()
        self._settle()

    def _cut(self) -> None:
        """A daemon stands still. Waits for the client's timeout at most; then no op is under way any more."""
        if self._line.got is not None:
            client, spaces = self._line.got
            for space in spaces:
                space.close()
            client.close()
        if self._take_back:
            self._take_back()
        self._line.lost("the daemon stood still")
        held = {page.op for page in lent()}
        for op, running in list(self._running.items()):
            self._ended(Result(op, -errno.ETIMEDOUT, 0, 0, 0, [], op in held))

    def _ended(self, result: Result) -> None:
        running = self._running.pop(result.op, None)
        if running is None:
            return
        transfer = running.transfer
        self._count(transfer, running.load, result.prefix if running.load else result.ok,
                    time.monotonic() - running.begun)
        if result.lent and self._take_back:
            self._cut()         # others' results follow; this one's pages are ours again
            self._done(transfer.request)
        elif result.lent:
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

    def preempted(self, requests: Set[str]) -> None:
        """Their blocks are about to be others': waits for the saves, and nobody waits for word of them."""
        self.wait(requests)
        self._sent -= requests

    def finished(self, ended: Set[str]) -> Tuple[Set[str], Set[str]]:
        """ended: requests that the engine has finished since. Whose saves and whose loads are over."""
        self._ending |= ended & self._sent
        self.poll()
        sent = {request for request in self._ending if request not in self._left}
        self._ending -= sent
        self._sent -= sent
        received, self._received = self._received, set()
        return sent, received

    def failed_requests(self, received: Set[str]) -> Set[str]:
        """Of these, whose loads are over: the ones to compute from the beginning."""
        ret = self._failing & received
        self._failing -= ret
        return ret

    def failed_blocks(self) -> Set[int]:
        ret, self._failed = self._failed, set()
        return ret
