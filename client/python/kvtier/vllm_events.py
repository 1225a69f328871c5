# SPDX-License-Identifier: Apache-2.0
"""kvtier.vllm_events - which blocks an engine may say that kvtier has, and when it takes that back.

A router that sends a prompt where its KV is hears of blocks by events. kvtierd tells its clients nothing by itself, but
the index that it shares with them costs no system call to read. So a block that a save was planned for is looked up
until it is there, and looked up again now and then until it is gone.

    planned --it is there in each space--> told, with its medium --it moved--> told again --it is gone--> taken back
    planned --not there after PATIENT_S--> forgotten
"""
from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import Any, Callable, Deque, List, NamedTuple, Sequence, Tuple

from . import Keys, Space, Tier

__all__ = ["Event", "Events"]

PENDING_MAX, TOLD_MAX = 4096, 65536     # blocks; beyond, the oldest are forgotten, or taken back
PATIENT_S = 10.0
EVERY_S, LOOKS = 0.05, 64               # told blocks that are looked at, so often: 65,536 within a minute


class Event(NamedTuple):
    stored: bool        # False: it is there no more
    payload: Any        # of planned()
    tiers: Tier         # where it lies, or lay


class _Block(NamedTuple):
    payload: Any
    where: Sequence[Tuple[Space, Keys]]
    until: float


class Events:
    """medium: what an event says of tiers; a block whose medium changes is taken back there and told here."""

    def __init__(self, medium: Callable[[Tier], Any]) -> None:
        self._medium = medium
        self._pending: Deque[_Block] = deque()
        self._told: "OrderedDict[bytes, Tuple[_Block, Tier]]" = OrderedDict()
        self._next = 0.0

    def planned(self, payload: Any, where: Sequence[Tuple[Space, Keys]]) -> None:
        """where: its key, in each space that has a part of it."""
        if not where or where[0][1][0] in self._told:
            return
        if len(self._pending) == PENDING_MAX:
            self._pending.popleft()
        self._pending.append(_Block(payload, where, time.monotonic() + PATIENT_S))

    def take(self) -> List[Event]:
        """Since the last call. Looks at most every EVERY_S."""
        now, ret = time.monotonic(), []
        if now < self._next or not (self._pending or self._told):
            return ret
        self._next = now + EVERY_S
        for _ in range(len(self._pending)):
            block = self._pending.popleft()
            tiers = _tiers(block)
            if tiers:
                ret.append(Event(True, block.payload, tiers))
                self._told[block.where[0][1][0]] = block, tiers
            elif now < block.until:
                self._pending.append(block)
        for _ in range(min(LOOKS, len(self._told))):
            key, (block, before) = self._told.popitem(last=False)
            tiers = _tiers(block)
            if tiers and self._medium(tiers) != self._medium(before):
                ret += [Event(True, block.payload, tiers), Event(False, block.payload, before)]
            elif not tiers:
                ret.append(Event(False, block.payload, before))
            if tiers:
                self._told[key] = block, tiers
        while len(self._told) > TOLD_MAX:
            _, (block, tiers) = self._told.popitem(last=False)
            ret.append(Event(False, block.payload, tiers))
        return ret

    def clear(self) -> List[Event]:
        """Takes all back: the engine's keys are others from now on."""
        self._pending.clear()
        ret = [Event(False, block.payload, tiers) for block, tiers in self._told.values()]
        self._told.clear()
        return ret


def _tiers(block: _Block) -> Tier:
    """Of the part that is furthest away; none: a part is not there."""
    furthest = Tier(0)
    for space, key in block.where:
        hit = space.lookup(key)
        if not hit.blocks:
            return Tier(0)
        furthest = max(furthest, hit.tiers & -hit.tiers)    # the nearest of this part
    return Tier(furthest)
