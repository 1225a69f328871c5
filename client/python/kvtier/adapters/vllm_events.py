# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.vllm_events - when an engine announces a block that kvtier has, and when it takes that back.

A router that sends a prompt to where its KV is hears of blocks by events. kvtierd does not announce blocks by itself,
but the index that it shares with its clients is read without a system call. So a block that was planned to be saved is
looked up until it is there, and looked up again now and then until it is gone.

    planned --it is there in each space--> told, with its medium --it moved--> told again --it is gone--> taken back
    planned --not there after PATIENT_S--> forgotten

A router may drop a block whose parent it was not told of. So a block is not told while its parent is planned.
"""
from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

from .. import Keys, Space, Tier

__all__ = ["Event", "Events"]

PENDING_MAX, TOLD_MAX = 4096, 65536     # how many blocks; beyond that the oldest are forgotten, or taken back
PATIENT_S = 10.0
EVERY_S, LOOKS = 0.025, 32              # planned and told blocks that are looked at, so often: 65,536 within a minute


class Event(NamedTuple):
    stored: bool        # False: it is not there any more
    payload: Any        # the one that planned() was given
    tiers: Tier         # where it lies, or lay


class _Block(NamedTuple):
    payload: Any
    where: Sequence[Tuple[Space, Keys]]
    until: float


class Events:
    """medium: gives the medium that an event names for tiers. If the medium of a block changes, its old event is taken
    back, and the block is told again."""

    def __init__(self, medium: Callable[[Tier], Any]) -> None:
        self._medium = medium
        self._pending: "OrderedDict[bytes, _Block]" = OrderedDict()
        self._told: "OrderedDict[bytes, Tuple[_Block, Tier]]" = OrderedDict()
        self._next = 0.0

    def planned(self, payload: Any, where: Sequence[Tuple[Space, Keys]]) -> None:
        """A save of a block was planned. where: the block's key in each of its spaces."""
        if not where or where[0][1][0] in self._told:
            return
        self._pending[where[0][1][0]] = _Block(payload, where, time.monotonic() + PATIENT_S)
        if len(self._pending) > PENDING_MAX:
            self._pending.popitem(last=False)

    def take(self) -> List[Event]:
        """The events since the last call. It looks at most every EVERY_S."""
        now, ret = time.monotonic(), []
        if now < self._next or not (self._pending or self._told):
            return ret
        self._next = now + EVERY_S
        for _ in range(min(LOOKS, len(self._pending))):
            key, block = self._pending.popitem(last=False)
            tiers = Tier(0) if block.where[0][1].parent in self._pending else _tiers(block)
            if tiers:
                ret.append(Event(True, block.payload, tiers))
                self._told[key] = block, tiers
            elif now < block.until:
                self._pending[key] = block
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
        """Takes all blocks back, as the engine's keys are others from now on."""
        self._pending.clear()
        ret = [Event(False, block.payload, tiers) for block, tiers in self._told.values()]
        self._told.clear()
        return ret


def _tiers(block: _Block) -> Tier:
    """The furthest of the tiers in which the block's spaces have it. Tier(0): a space lacks it."""
    furthest = Tier(0)
    for space, key in block.where:
        hit = space.lookup(key)
        if not hit.blocks:
            return Tier(0)
        furthest = max(furthest, hit.tiers & -hit.tiers)    # the nearest of this part
    return Tier(furthest)
