# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.vllm_core - what kvtier.vllm does, so that it is read and tested without vLLM and torch.

The Scheduler (in one process) looks blocks up and plans. A Worker (one for each rank) moves bytes. Each step of the
engine carries a plan from the scheduler to the workers.

    a request in the scheduler: matched() --Redis was asked, once--> matched() --blocks allocated--> load planned
    load planned --worker has loaded--> computing
    computing --a block is full after this step--> save planned --> ... --finished()--> forgotten

The pages of a transfer are held from its plan until every worker has said that nobody touches them any more. So the
engine may end or preempt a request, or take blocks in front of a window back, and need not wait for a save.

After a load the worker names every block that was not proven good: the engine computes again from the first block on
that is missing, late or wrong. If a daemon that stands still may yet write into a load's pages, its request is computed
from the beginning, in other pages. A save names blocks that the engine has computed in full; a block that a load
brought is not saved. While the daemon is away no prompt matches, loads fail at once, and saves are dropped.

A model may have several KV cache groups, each with pages of its own (sliding windows beside full attention). Each group
of each rank is a space: a block of tokens is there when every rank and every group has it. A load of such a model is
whole, or its request is computed from the beginning.

A group of states (Mamba) has in a page what layers know of all tokens before the page's end. The engine says which
pages have a state that others may continue from, at the end of some blocks alone. So each state is kept by itself, and
a prompt continues behind the last block that has the states of all groups, from these states and the blocks of the
other groups.

No call waits for the daemon, but for Worker.end(): a thread connects, and ops end while the engine makes its steps. Nor
does a call touch an engine's memory on a CPU for the first time: a thread submits the ops.
"""
from __future__ import annotations

import _thread
import errno
import functools
import hashlib
import json
import os
import time
from concurrent.futures import Future, wait
from types import MappingProxyType
from typing import Any, Callable, Container, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from .. import MAX_BLOCKS, Client, Error, Hit, Keys, Op, Result, Space, State, Tier, lent
from ..block_cache import as_tokens
from .vllm_hints import Hint, Hints, UnderWay

__all__ = ["NO_PAGE", "Limits", "Scheduler", "Transfer", "Worker", "is_named", "limits_of", "marks_of", "root_of"]

AGAIN_S = 5.0           # between two tries to reach a daemon that is away
START_S = 0.02          # how long the start of an engine waits for its daemon
CUT_MS = 1              # how long the closing of a connection waits for a daemon that stands still
SLACK_S = 0.5           # an op ends at its deadline, and its end is seen a little later
LENT_LOOK_S = 0.5       # between two looks at pages that are lent to a daemon which stands still
STATES_FAR = 8          # of so many blocks, a prompt's last ones, Redis is asked for states
NO_PAGE = 0             # the engine's number for a block outside of a window
ALL = 1 << 62           # tokens: no limit


def root_of(what: Dict[str, Any]) -> Optional[bytes]:
    """A digest of what changes a request's KV beside its tokens (weights, adapter, salt). None: only the tokens do. The
    digest is the same in each process and after each start."""
    said = {key: value for key, value in what.items() if value}
    if not said:
        return None
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).digest()


def marks_of(images: Iterable[Tuple[str, int, int]], block_tokens: int) -> Dict[int, bytes]:
    """What enters a request's chain in front of a block, by the number of the block in which an image begins. So a
    prompt shares all before it, and nothing from that block on. images: name, first token, how many tokens."""
    marks: Dict[int, List[Any]] = {}
    for name, first, tokens in images:
        marks.setdefault(first // block_tokens, []).append((name, first % block_tokens, tokens))
    return {block: root_of({"images": sorted(said)}) or b"" for block, said in marks.items()}


def is_named(request: Any) -> bool:
    """Whether the request's token ids say all of its prompt, apart from what keys have beside them. Tokens that came as
    embeddings have zeros as ids, so two such prompts would look the same."""
    return request.prompt_token_ids is not None and getattr(request, "prompt_embeds", None) is None


class Limits(NamedTuple):
    """How many tokens a request may load, beyond those that the engine has; how many leading ones are kept; and how
    many leading ones another engine is saving, so that they are worth a wait."""
    load: int = ALL
    save: int = ALL
    coming: int = 0


def limits_of(params: Any, role: Optional[str], say: Callable[[str], None]) -> Limits:
    """params: the request's kv_transfer_params, by the names of vLLM's OffloadingConnector. role: the engine's kv_role.
    say: told of a value that is left out."""
    said = {}
    for name, limit in (("max_load_tokens", "load"), ("max_offload_tokens", "save"), ("kvtier_tokens", "coming")):
        value = params.get(name) if isinstance(params, dict) else None
        if type(value) is int and value >= 0:
            said[limit] = value
        elif value is not None:
            say(f"kv_transfer_params: {name} is {value!r}, must be a number of tokens; it is left out")
    if role == "kv_producer":
        said["load"] = 0
    elif role == "kv_consumer":
        said["save"] = 0
    return Limits(**said)


# --- what goes from scheduler to worker ---

class Transfer(NamedTuple):
    """A load or a save of blocks of one group."""
    number: int                     # by which workers say that it is over
    request: str
    group: int
    keys: List[bytes]               # one for each rank
    parents: List[Optional[bytes]]  # one for each rank
    pages: List[int]                # the engine's block numbers, one for each key


def _in_a_thread(function: Callable, *arguments: Any) -> Future:
    """Thread.start() would wait until the thread runs, which a step of an engine on a busy machine must not."""
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except Exception as error:      # kvtier's, or there is no libkvtier
            future.set_exception(error)

    _thread.start_new_thread(run, ())
    return future


class _Line:
    """A daemon that may be away, and is tried again after AGAIN_S. A thread connects, as that may take the client's
    timeout. open_now: returns a client and what it has opened. say: told when the daemon is reached, and when not."""

    def __init__(self, open_now: Callable[[], Tuple[Client, Any]], say: Callable[[str], None]) -> None:
        self._open, self._say, self.got, self._again = open_now, say, None, 0.0
        self.why = ""       # why it is away; "": it is not
        self._coming: Optional[Future] = None
        self.get()
        if self._coming:
            wait([self._coming], START_S)
        self.get()

    def get(self) -> Optional[Tuple[Client, Any]]:
        """What the function returned, or None."""
        if self.got is None and self._coming is None and time.monotonic() >= self._again:
            self._coming = _in_a_thread(self._open)
        if self._coming and self._coming.done():
            coming, self._coming = self._coming, None
            if coming.exception():
                self.lost(str(coming.exception()))
            else:
                self.got, self.why = coming.result(), ""
                self._say("kvtierd is reached")
        return self.got

    def lost(self, why: str) -> None:
        if not self.why:
            self._say(f"kvtierd is not reached, and asked again every {AGAIN_S:.0f} s: {why}")
        self.got, self.why, self._again = None, why, time.monotonic() + AGAIN_S

    def close(self) -> None:
        """Closes the connection, for the client's timeout at most, until open()."""
        self._again = float("inf")
        got, coming, self.got, self._coming = self.got, self._coming, None, None
        if coming:      # it is closed when it comes
            coming.add_done_callback(lambda of: of.exception() or of.result()[0].close())
        elif got:
            got[0].close()

    def open(self) -> None:
        """Connects, though it was closed."""
        self._again = 0.0
        self.get()


class _Request:
    def __init__(self, tokens: Callable[[], Sequence[int]], root: Optional[bytes], marks: Mapping[int, bytes],
                 groups: int, limits: Limits = Limits(), older: Optional[bytes] = None) -> None:
        self.tokens, self.root, self.marks, self.limits = tokens, root, marks, limits
        self.older = _Request(tokens, older, marks, groups) if older else None      # its keys under an older name
        self.source = self          # whose keys the last match was by: its own, or those under the older name
        self.keys: Dict[Tuple[int, int], bytes] = {}    # by rank and group
        self.pages: List[List[int]] = [[] for _ in range(groups)]
        self.next_save = 0          # the first block that was not planned to be saved or loaded
        self.saving = 0             # how many of its saves are not over
        self.ended = False
        self.asked = 0              # how many tokens the engine had when it asked last
        self.brought = 0            # how many it has with its last load; 0: no load, or it was preempted since
        self.tiers = Tier(0)        # where the last block lay that the engine was told of
        self.loading: Set[int] = set()      # the blocks that a worker loads
        self.loads = self.served = True     # whether it may load; whether it may also save
        self.far: Optional[int] = None      # how many of its prefetches are under way; None: Redis was not asked yet
        self.far_until = 0.0                # the wait for blocks that are on their way ends then
        self.hints: List[Hint] = []         # these are said again when its blocks were saved
        self.prompt = 0                     # how many full blocks the prompt has

    def came(self, result: Optional[Result]) -> None:
        """A prefetch for the request is over. None: its daemon is away."""
        self.far -= 1


class _Held:
    """The pages of a transfer. save: the request, if it is a save. workers: how many have not said that it is over."""

    def __init__(self, pages: List[int], save: Optional[_Request], workers: int) -> None:
        self.pages, self.save, self.workers = pages, save, workers


class Scheduler:
    """open_spaces: connects, and opens the space of each rank and group, [rank][group], without memory. hold: takes
    pages out of the engine's use while a transfer needs them. give_back: returns them. workers: how many there are.
    planned: told of blocks to be saved or loaded (the request, their numbers, a function that gives the key of one of
    them in each space; [] while the daemon is away; whether it is about states).
    states: the groups whose pages are states.
    prefetch_s: how long a request waits for a Redis that nodes share, or for an engine that is saving; 0: Redis is not
    asked. timeout_s: of an op."""

    def __init__(self, block_tokens: int, open_spaces: Callable[[], Tuple[Client, List[List[Space]]]],
                 hold: Callable[[List[int]], None], give_back: Callable[[List[int]], None],
                 say: Callable[[str], None] = lambda text: None, groups: int = 1, workers: int = 1,
                 planned: Optional[Callable[[str, range, Callable[[int], List[Any]], bool], None]] = None,
                 prefetch_s: float = 0.0, timeout_s: float = 0.0, states: Container[int] = ()) -> None:
        self.block_tokens, self._line, self._groups = block_tokens, _Line(open_spaces, say), groups
        self._states = states
        self._planned, self._prefetch_s = planned, prefetch_s
        self._epoch = b""           # each key has it beside the tokens
        self._hold, self._give_back, self._workers = hold, give_back, workers
        self._patient_s, self._busy_until = timeout_s + 2 * SLACK_S, 0.0
        self._held: Dict[int, _Held] = {}           # by the number of the transfer
        self._number = 0
        self._requests: Dict[str, _Request] = {}
        self._loads: List[Transfer] = []
        self._under_way = UnderWay()
        self.hints = Hints(self._under_way)

    def add(self, request: str, tokens: Callable[[], Sequence[int]], root: Optional[bytes],
            hints: Sequence[Hint] = (), limits: Limits = Limits(), older: Optional[bytes] = None,
            marks: Mapping[int, bytes] = MappingProxyType({}), lasts: bool = False) -> None:
        """Adds a request; one that is known stays as it is. tokens: gives all tokens that the request has when it is
        called. older: a root that the same blocks had before. What is found under it is loaded, and kept under `root`
        then. marks: as marks_of() gives them. lasts: the root names the engine's weights after any reset()."""
        if request not in self._requests:
            if self._epoch and not lasts:
                root, older = hashlib.sha256(self._epoch + (root or b"")).digest(), None
            self._requests[request] = r = _Request(tokens, root, marks, self._groups, limits, older)
            if hints:
                r.prompt = len(tokens()) // self.block_tokens
                self._hint(r, hints)
                r.hints = [hint for hint in hints if hint.again()]

    def _hint(self, r: _Request, hints: Iterable[Hint]) -> None:
        """Says the hints of a request, with the keys of its prompt's blocks where they name these."""
        known = self._make_keys(r, r.prompt)
        for hint in hints:
            n = r.prompt if hint.tokens is None else min(r.prompt, hint.tokens // self.block_tokens)
            self.hints.say(hint, [(space, self._keys(r, where, 0, n) if n else None)
                                  for where, space in self._spaces()] if known else [])

    def knows(self, request: str) -> bool:
        return request in self._requests

    def matched(self, request: str, computed: int, limit: int) -> Optional[int]:
        """How many tokens beyond `computed` can be loaded, in whole blocks and up to token `limit` at most. It makes no
        plan. None: blocks that this node lacks are on their way, so call it again."""
        r, bt = self._requests[request], self.block_tokens
        r.asked = computed
        if computed < r.brought:
            r.loads = False     # the engine refused the load by its checksum, and would refuse the next one, too
        first, last = computed // bt, min(limit, computed + r.limits.load) // bt
        if not (r.loads and r.served) or computed % bt or last <= first or not self._make_keys(r, last):
            return 0
        self._under_way.poll()          # before the lookup, so that this sees what finished prefetches brought
        r.source, worst = r, self._hit(r, last)
        if r.older and worst.blocks < last and self._make_keys(r.older, 1) and self._chain(r.older, 1).blocks:
            self._make_keys(r.older, last)
            older = self._hit(r.older, last)
            if older.blocks > worst.blocks:
                r.source, worst = r.older, older
        if worst.blocks < last and self._are_coming(r, worst.blocks, last):
            return None
        r.tiers = worst.tiers
        return max(0, min(worst.blocks, last) - first) * bt

    def _chain(self, r: _Request, last: int) -> Hit:
        """What each space, but for those of states, has of the leading blocks, whose keys are made."""
        hits = [space.lookup(self._keys(r, where, 0, last)) for where, space in self._spaces(states=False)]
        return min(hits, key=lambda hit: hit.blocks)

    def _hit(self, r: _Request, last: int) -> Hit:
        """What each space has of the leading blocks up to the last one that has states, if there are any."""
        hit, spaces = self._chain(r, last), self._spaces(states=True)
        n = min(hit.blocks, last)
        while n and not all(space.lookup(self._keys(r, where, n - 1, n)).blocks for where, space in spaces):
            n -= 1
        return hit._replace(blocks=n)

    def _are_coming(self, r: _Request, have: int, last: int) -> bool:
        """Asks Redis for the leading blocks, once for each request. True: its answer, or a save of another engine, is
        still waited for. Blocks that come after the wait serve the next request."""
        if r.far is None:
            r.far, r.far_until = 0, time.monotonic() + self._prefetch_s
            # from the chain's beginning, as a block from Redis is kept only under the one before it
            parts = [(0, min(last, MAX_BLOCKS), False), *((n - 1, n, True) for n in range(last, 0, -1)[:STATES_FAR])]
            for first, end, states in parts if self._prefetch_s > 0 else ():
                for where, space in self._spaces(states):
                    if space.client.tiers & Tier.REDIS:
                        keys = self._keys(r, where, first, end)
                        r.far += self._under_way.begin(space.client, functools.partial(space.prefetch, keys), r.came)
        saved = have >= min(last, r.limits.coming // self.block_tokens)
        return (r.far > 0 or not saved and self._is_there()) and time.monotonic() < r.far_until

    def _is_there(self) -> bool:
        """Whether the daemon is, so that it is worth a wait. It makes a system call."""
        return all(space.client.state & State.CONNECTED for _, space in self._spaces())

    def tier(self, request: str) -> Tier:
        """The tier in which the last block of matched() lay."""
        return self._requests[request].tiers

    def allocated(self, request: str, pages: Sequence[Sequence[int]], external: int) -> None:
        """Plans a load. pages: the blocks of each group that the engine gave to the request, from its first token on.
        external: how many tokens of the last matched() it takes from here."""
        r, bt = self._requests[request], self.block_tokens
        r.pages = [list(own) for own in pages]
        if external > 0:
            first, last = r.asked // bt, (r.asked + external) // bt
            self._plan(self._loads, r.source, request, first, last, save=False)
            r.brought = last * bt
            r.loading = {page for own in r.pages for page in own[first:last] if page != NO_PAGE}
            if r.source is r:
                r.next_save = max(r.next_save, last)

    def loaded(self, requests: Iterable[str], failed_pages: Iterable[int], failed: Iterable[str]) -> None:
        """Takes what workers said since: the requests whose loads are over, and the blocks and requests of failed
        loads. A request does not ask again for what a daemon promised and did not give."""
        bad, failed = set(failed_pages), set(failed)
        if bad or failed:
            for name, r in self._requests.items():
                if name in failed or r.loading & bad:
                    r.loads = False
        for name in requests:
            if name in self._requests:
                self._requests[name].loading = set()

    def over(self, numbers: Mapping[int, int]) -> None:
        """Takes what workers said since: for each transfer that is over, how many of them said so."""
        for number, workers in numbers.items():
            held = self._held.get(number)
            if held is None:
                continue
            held.workers -= workers
            if held.workers > 0:
                continue
            del self._held[number]
            self._give_back(held.pages)
            if held.save:
                held.save.saving -= 1
                self._hint_saved(held.save)

    def without_holds(self, function: Callable[[], bool]) -> bool:
        """Calls a function that gives no page to anybody, while no page is held."""
        held = [transfer.pages for transfer in self._held.values()]
        for pages in held:
            self._give_back(pages)
        try:
            return function()
        finally:
            for pages in held:
                self._hold(pages)

    @property
    def busy(self) -> bool:
        """Whether the engine should make steps so that pages come back. It need not for a daemon that stands still."""
        return bool(self._held) and time.monotonic() < self._busy_until

    def step(self, request: str, computed: int, scheduled: int, new_pages: Optional[Sequence[Sequence[int]]],
             anew: bool, saves: List[Transfer]) -> None:
        """Adds the blocks that are full after the step to saves. The engine computes `scheduled` tokens from token
        `computed` on. new_pages: all blocks of the request (anew), or else more of them, for each group."""
        r, bt = self._requests[request], self.block_tokens
        more = [list(own) for own in new_pages] if new_pages else [[] for _ in range(self._groups)]
        r.pages = more if anew else [own + new for own, new in zip(r.pages, more)]
        # tokens that the engine only guesses are not the request's yet
        last = min(computed + scheduled, len(r.tokens()), r.limits.save) // bt
        first = min(r.next_save, -(-computed // bt))
        last = min(last, min(len(own) for group, own in enumerate(r.pages) if group not in self._states))
        if last > first and r.served:
            self._plan(saves, r, request, self._not_kept(r, first, last), last, save=True)
        r.next_save = max(first, last)

    def _not_kept(self, r: _Request, first: int, last: int) -> int:
        """The first block that is worth a save. Blocks that are kept are not copied again, except for the last of them,
        which tells the daemon that its chain is in use."""
        if not self._make_keys(r, last):
            return first
        kept = min(space.lookup(self._keys(r, where, first, last)).blocks
                   for where, space in self._spaces(states=False))
        return first + max(0, kept - 1)

    def offered(self, request: str, states: Iterable[Tuple[int, int, int]], saves: List[Transfer]) -> None:
        """Adds states to saves. states: group, page and tokens: when the step is done, the page has the state behind so
        many leading tokens of the request, and the engine itself would continue from it."""
        r, bt = self._requests[request], self.block_tokens
        for group, page, tokens in states:
            end, rest = divmod(tokens, bt)
            if group not in self._states or page == NO_PAGE or rest or not r.served or \
                    not 0 < tokens <= min(len(r.tokens()), r.limits.save) or not self._make_keys(r, end):
                continue
            if not all(space.lookup(self._keys(r, where, end - 1, end)).blocks
                       for where, space in self._spaces() if where[1] == group):
                self._transfer(saves, r, request, group, range(end - 1, end), [page], True)
                self._tell(r, request, range(end - 1, end), states=True)

    def take_loads(self) -> List[Transfer]:
        self._under_way.poll()
        ret, self._loads = self._loads, []
        return ret

    def preempted(self, requests: Iterable[str]) -> None:
        """The engine took the blocks of these requests back."""
        for name in requests:
            if name in self._requests:
                self._requests[name].brought = 0

    def kept(self, request: str) -> int:
        """How many leading tokens of the request are kept, or are being saved."""
        r = self._requests.get(request)
        return r.next_save * self.block_tokens if r and r.served and self._spaces() else 0

    def finished(self, request: str) -> None:
        """Ends a request. Its blocks may be others' at once."""
        r = self._requests.pop(request, None)
        if r:
            r.ended = True
            self._hint_saved(r)

    def _hint_saved(self, r: _Request) -> None:
        """Says the hints of an ended request once more when its blocks were saved."""
        if r.ended and not r.saving and r.hints:
            self._hint(r, r.hints)

    def close(self) -> None:
        self._line.close()

    def reset(self) -> None:
        """Called when the engine has other weights: later requests find no block from before, and the blocks of current
        requests are not kept. Later blocks are this engine's alone, but for requests whose roots last."""
        self._epoch = os.urandom(32)
        for r in self._requests.values():
            r.served = False

    def _spaces(self, states: Optional[bool] = None) -> List[Tuple[Tuple[int, int], Space]]:
        """states: those of states alone, or the others alone."""
        got = self._line.get() or (None, [])
        return [((rank, group), space) for rank, groups in enumerate(got[1]) for group, space in enumerate(groups)
                if states in (None, group in self._states)]

    def _plan(self, to: List[Transfer], r: _Request, request: str, first: int, last: int, save: bool) -> None:
        """r: whose keys the blocks have. States are saved by offered()."""
        if not self._make_keys(r, last):
            return
        for group, pages in enumerate(self._requests[request].pages):
            begin = first
            if group in self._states:
                begin = last if save else last - 1
            while begin < last and pages[begin] == NO_PAGE:     # in front of a window
                begin += 1
            for at in range(begin, last, MAX_BLOCKS):
                end = min(last, at + MAX_BLOCKS)
                self._transfer(to, r, request, group, range(at, end), pages[at:end], save)
        self._tell(r, request, range(first, last), states=False)
        if self._states and not save:
            self._tell(r, request, range(last - 1, last), states=True)

    def _transfer(self, to: List[Transfer], r: _Request, request: str, group: int, blocks: range, pages: List[int],
                  save: bool) -> None:
        some = [self._keys(r, (rank, group), blocks.start, blocks.stop) for rank in range(len(r.keys) // self._groups)]
        self._number += 1
        to.append(Transfer(self._number, request, group, [bytes(keys) for keys in some], [keys.parent for keys in some],
                           pages))
        self._hold(pages)
        self._held[self._number] = _Held(pages, r if save else None, self._workers)
        self._busy_until = time.monotonic() + self._patient_s
        r.saving += save

    def _tell(self, r: _Request, request: str, blocks: range, states: bool) -> None:
        if self._planned:
            self._planned(request, blocks, lambda block: [
                (space, self._keys(r, where, block, block + 1)) for where, space in self._spaces(states)], states)

    def _keys(self, r: _Request, where: Tuple[int, int], first: int, last: int) -> Keys:
        keys, chained = r.keys[where], first and where[1] not in self._states
        return Keys.of(keys[32 * first:32 * last], keys[32 * first - 32:32 * first] if chained else None)

    def _make_keys(self, r: _Request, blocks: int) -> bool:
        """Makes the keys of at least so many leading blocks, each key once. False: no daemon has said how."""
        spaces, bt = self._spaces(), self.block_tokens
        for where, space in spaces:
            own = r.keys.get(where, b"")
            have = len(own) // 32
            while have < blocks:
                # root and marks are as tokens before the block's, so that other tenants and spaces have other keys
                before = own[-32:] or (r.root and bytes(space.keys(as_tokens(r.root, bt)))[-32:]) or None
                if have in r.marks:
                    before = bytes(space.keys(as_tokens(r.marks[have], bt), before))[-32:]
                end = min([block for block in r.marks if have < block < blocks], default=blocks)
                own += bytes(space.keys(r.tokens()[have * bt:end * bt], before))
                r.keys[where], have = own, end
        return bool(spaces)


# --- the worker ---

# What a worker counts. Seconds count from the begin of an op until its end was seen.
COUNTS = ("loads", "loaded_blocks", "missed_blocks", "load_seconds", "saves", "saved_blocks", "unsaved_blocks",
          "save_seconds")


class _Running:
    """A transfer that is under way. until: a daemon that has not ended its op by then stands still."""

    def __init__(self, transfer: Transfer, load: bool) -> None:
        self.transfer, self.load, self.begun = transfer, load, time.monotonic()
        self.op: Optional[Op] = None        # it was not submitted yet
        self.until = float("inf")


def _close(submitting: Future, *clients: Client) -> None:
    submitting.exception()      # a thread that is in a call on the client
    for client in clients:
        client.set_timeout(CUT_MS)
        client.close()


class Worker:
    """open_spaces: connects, and opens the space of each group over the engine's memory. stream: the GPU's stream that
    ops wait for. timeout_s: the client's; an op that a daemon has not ended by then is given up, and the connection
    with it. rank: which of a transfer's keys are this worker's. saves: False if another rank has the same KV and saves
    it. whole: a load that is not whole fails its request."""

    def __init__(self, open_spaces: Callable[[], Tuple[Client, List[Space]]], timeout_s: float,
                 stream: Callable[[], Any] = lambda: None, say: Callable[[str], None] = lambda text: None,
                 rank: int = 0, saves: bool = True, whole: bool = False) -> None:
        self._line, self._stream, self._timeout_s = _Line(open_spaces, say), stream, timeout_s
        self._rank, self._saves, self._whole = rank, saves, whole
        self._running: Dict[int, _Running] = {}     # by the number of the transfer
        self._refused: List[int] = []               # the numbers of transfers that became no op
        self._submitting: Future = Future()         # the last thread that submits transfers
        self._submitting.set_result(None)
        self._loading: Dict[str, int] = {}          # how many loads have not ended, by request
        self._received: Set[str] = set()
        self._failed: Set[int] = set()              # blocks
        self._failing: Set[str] = set()             # requests
        self._over: List[int] = []                  # numbers of transfers
        self._lent: Dict[int, int] = {}             # ops whose pages a daemon that stands still has: their transfers
        self._lent_look = 0.0
        self._cutting: Optional[Future] = None
        self.counts = {name: 0 for name in COUNTS}

    def load(self, loads: Iterable[Transfer]) -> None:
        loads = list(loads)
        for transfer in loads:
            self._loading[transfer.request] = self._loading.get(transfer.request, 0) + 1
        self._begin(loads, True)

    def save(self, saves: Iterable[Transfer], others: Container[str] = ()) -> None:
        """Begins saves. others: the requests whose blocks are not what their keys say, so they are not kept."""
        kept = []
        for transfer in saves:
            if not self._saves:
                self._over.append(transfer.number)
            elif transfer.request in others:
                self._ended(transfer, False, 0, 0.0)
            else:
                kept.append(transfer)
        self._begin(kept, False)

    def _begin(self, transfers: List[Transfer], load: bool) -> None:
        """Submits transfers in their order. On a CPU a thread does so: libkvtier touches the pages that a connection
        did not see yet, which takes milliseconds of a long prompt."""
        got = self._line.get() if transfers else None
        if got is None or self._cutting:
            for transfer in transfers:
                self._ended(transfer, load, 0, 0.0)
            return
        running = [_Running(transfer, load) for transfer in transfers]
        self._running.update((r.transfer.number, r) for r in running)
        stream = self._stream()
        if stream is None:
            self._submitting = _in_a_thread(self._submit, got[1], running, {}, self._submitting)
        else:
            self._submit(got[1], running, {"stream": stream}, self._submitting)

    def _submit(self, spaces: List[Space], transfers: List[_Running], how: Dict[str, Any], before: Future) -> None:
        before.exception()      # a chain's blocks are submitted from its beginning on
        for r in transfers:
            t = r.transfer
            submit = spaces[t.group].load if r.load else spaces[t.group].store
            r.until = time.monotonic() + self._timeout_s + SLACK_S
            try:
                r.op = submit(Keys.of(t.keys[self._rank], t.parents[self._rank]), t.pages, user=t.number, **how)
            except Error:
                self._refused.append(t.number)

    def _ended(self, transfer: Transfer, load: bool, good: int, seconds: float, lent_op: int = 0) -> None:
        """good: how many leading blocks of a load, or blocks of a save. lent_op: an op whose pages are lent still; 0:
        no page is touched any more."""
        n, what = len(transfer.pages), "load" if load else "save"
        self.counts[f"{what}s"] += 1
        self.counts[f"{what}_seconds"] += seconds
        self.counts["loaded_blocks" if load else "saved_blocks"] += good
        self.counts["missed_blocks" if load else "unsaved_blocks"] += n - good
        if lent_op:
            self._lent[lent_op] = transfer.number
        else:
            self._over.append(transfer.number)
        if not load:
            return
        if good < n and (self._whole or lent_op):
            self._failing.add(transfer.request)
        elif good < n:
            self._failed.update(transfer.pages[good:])
        self._loading[transfer.request] -= 1
        if self._loading[transfer.request] == 0:
            del self._loading[transfer.request]
            self._received.add(transfer.request)

    def poll(self) -> None:
        """Takes the results that there are. Without one it makes no system call."""
        got = self._line.get() if self._running else None
        while got is not None and self._running:
            results = got[0].poll(16, MAX_BLOCKS)
            for result in results:
                self._take(result)
            if len(results) < 16:
                break
        while self._refused:
            self._take(Result(0, -errno.ENOTCONN, 0, 0, 0, [], user=self._refused.pop()))
        if not self._cutting and self._running and time.monotonic() > min(r.until for r in self._running.values()):
            self._cut()
        if self._cutting and self._cutting.done():
            self._was_cut()
        self._look_at_lent()

    def _take(self, result: Result) -> None:
        running = self._running.pop(result.user, None)
        if running:
            self._ended(running.transfer, running.load, result.prefix if running.load else result.ok,
                        time.monotonic() - running.begun, result.op if result.lent else 0)

    def _cut(self) -> None:
        """Begins to cut the connection, as the daemon stands still. A thread closes it: to unmap an engine's KV takes
        many milliseconds."""
        got = self._line.got
        self._line.lost("the daemon stood still")
        self._cutting = _in_a_thread(_close, self._submitting, *got[:1] if got else ())

    def _was_cut(self) -> None:
        """Waits until the connection is cut. Then no op is under way any more."""
        self._cutting.exception()
        self._cutting, held = None, {page.op for page in lent()}
        for number, running in list(self._running.items()):
            op = running.op.id if running.op else 0
            self._take(Result(op, -errno.ETIMEDOUT, 0, 0, 0, [], op in held, user=number))

    def _look_at_lent(self) -> None:
        """Looks at the lent pages. Those of a load may yet be written, so they are over when the daemon has given them
        back, or is dead."""
        if not self._lent or time.monotonic() < self._lent_look:
            return
        self._lent_look = time.monotonic() + LENT_LOOK_S
        held = {page.op for page in lent()}
        for op in [op for op in self._lent if op not in held]:
            self._over.append(self._lent.pop(op))

    def end(self) -> None:
        """Waits until all ops have ended, at their deadline at the latest."""
        self._submitting.exception()
        self.poll()
        for running in list(self._running.values()):
            if self._cutting:
                break
            try:
                self._take(self._line.get()[0].wait(running.op))
            except Error:
                self._cut()
        if self._cutting:
            self._was_cut()
        self._lent_look = 0.0
        self._look_at_lent()

    def close(self) -> None:
        """end(), and gives the engine's memory back until open()."""
        self.end()
        self._line.close()

    def open(self) -> None:
        self._line.open()

    def received(self) -> Set[str]:
        """The requests whose loads are over since the last call."""
        self.poll()
        ret, self._received = self._received, set()
        return ret

    def over(self) -> List[int]:
        """The numbers of the transfers whose pages nobody touches any more, since the last call."""
        ret, self._over = self._over, []
        return ret

    def failed_requests(self, received: Set[str]) -> Set[str]:
        """The requests among these that must be computed from the beginning. Their loads are over."""
        ret = self._failing & received
        self._failing -= ret
        return ret

    def failed_blocks(self) -> Set[int]:
        ret, self._failed = self._failed, set()
        return ret
