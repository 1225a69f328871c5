# SPDX-License-Identifier: Apache-2.0
"""kvtier.events - what routers hear of the blocks that a node's kvtierd has, whichever engine stored them.

    kvtierd --its admin socket: `kvtierctl events`--> Follower --changes--> Picture --events--> publisher (__main__.py)
    engines --descriptions, by events.sock (describe.py)------------------> Picture

A Picture has each block that the daemon has, and what routers were told of it. Once a Follower has nothing more to say,
the Picture is the daemon's table of blocks. The events are vLLM's: BlockStored, BlockRemoved, AllBlocksCleared.

The daemon knows a block's key, its space and its tiers, and neither tokens nor an engine's hashes. An engine describes
its blocks: their keys, one of each rank and KV cache group, and the BlockStored events that its own connector would
publish. Such a block is published under the engine's hashes while all its parts are there. A block that no engine has
described is published under its key of 32 bytes, with no tokens and a block_size of 0, as vLLM publishes a block that
it cannot describe.
"""
from __future__ import annotations

import json
import socket
import struct
from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .describe import unpacked

__all__ = ["CLEARED", "Change", "Follower", "Picture", "batch", "pack"]

DESCRIBED_BYTES = 256 << 20     # of descriptions; beyond that the oldest ones of absent blocks are forgotten
REPLY_BYTES = 64 << 10
CLEARED = {"type": "AllBlocksCleared"}


class Change(NamedTuple):
    key: bytes
    space: int          # its number, as `kvtierctl spaces` has it
    tiers: str          # "gpu+host+nvme", or "none": the block has left


class Follower:
    """Asks a daemon for changes. admin: path of its admin socket, which answers root and the daemon's own user."""

    def __init__(self, admin: str, timeout_s: float = 5.0) -> None:
        self._admin, self._timeout_s = admin, timeout_s
        self._socket: Optional[socket.socket] = None
        self._instance, self._since = "", 0
        self._from: Optional[int] = 0       # the next block to be looked at; None: all were

    def step(self) -> Tuple[bool, List[Change], bool]:
        """(whether all that was said before is void, what changed then, whether there may be more now). OSError: the
        daemon is away, and all that was said is void. While blocks are looked at their changes come too, so that no
        more of them are missed than a reply is long."""
        void, changes = False, []
        if self._from is not None:
            reply = self._ask("--from", self._from)
            void = self._from == 0 or reply["instance"] != self._instance
            if self._from and void:         # another daemon's blocks have other numbers
                self._from = 0
                return True, [], True
            if void:
                self._instance, self._since = reply["instance"], reply["next"]
            self._from = reply.get("more")
            changes = reply["events"]
        reply = self._ask("--since", self._since)
        if reply["lost"] or reply["instance"] != self._instance:
            self._from = 0
            return True, [], True
        self._since = reply["next"]
        changes += reply["events"]
        return void, [Change(bytes.fromhex(c["key"]), c["space"], c["tiers"]) for c in changes], \
            bool(reply["events"]) or self._from is not None

    def spaces(self) -> Dict[int, str]:
        """The model of each space, by its number."""
        return {space["number"]: space["model"] for space in self._asked("spaces")["spaces"]}

    def close(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket = None

    def _ask(self, option: str, number: int) -> Dict[str, Any]:
        return self._asked("events", option, str(number))

    def _asked(self, *words: str) -> Dict[str, Any]:
        try:
            if not self._socket:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._socket.settimeout(self._timeout_s)
                self._socket.connect(self._admin)
            self._socket.send(b"\0".join(word.encode() for word in words))
            parts: List[bytes] = []
            while True:
                packet = self._socket.recv(REPLY_BYTES)
                if packet[:1] not in (b"+", b"."):
                    raise ConnectionError(packet[1:].decode(errors="replace") or "kvtierd ended the connection")
                parts.append(packet[1:])
                if packet[:1] == b".":
                    return json.loads(b"".join(parts))
        except (OSError, ValueError) as error:
            self.close()
            self._from = 0      # the next daemon may be another one
            raise error if isinstance(error, OSError) else ConnectionError(str(error))


class _Told:
    """A block as routers know it: its keys, and the events that describe it, packed. medium: under which it was told;
    None: it was not."""
    __slots__ = ("keys", "packed", "medium")

    def __init__(self, keys: Sequence[bytes], packed: bytes) -> None:
        self.keys, self.packed, self.medium = tuple(keys), packed, None


class Picture:
    """All events are dicts with the fields of vLLM's structs, and "type"."""

    def __init__(self) -> None:
        self._tiers: Dict[bytes, str] = {}          # of each block that is there, by its key
        self._plain: Dict[bytes, _Told] = {}        # blocks that are there, and are not described
        self._described: "OrderedDict[bytes, _Told]" = OrderedDict()    # by each of their keys
        self._bytes = 0
        self._counts: Dict[Tuple[Any, ...], int] = {}   # how often an event was told; spaces may share an engine's hash

    def void(self) -> None:
        """The daemon's blocks are not known any more. Routers are to be told CLEARED."""
        self._tiers.clear()
        self._plain.clear()
        self._counts.clear()
        for told in self._described.values():
            told.medium = None

    def again(self) -> List[Dict[str, Any]]:
        """All that was told, once more, for routers that have missed events."""
        self._counts.clear()
        ret = [CLEARED]
        for key, told in [*self._plain.items(), *self._described.items()]:
            if told.medium and key == told.keys[0]:
                ret += self._said(told, "BlockStored", told.medium)
        return ret

    def changed(self, change: Change) -> List[Dict[str, Any]]:
        key = change.key
        if change.tiers == "none":
            self._tiers.pop(key, None)
        else:
            self._tiers[key] = change.tiers
        told = self._described.get(key) or self._plain.get(key)
        if told is None:
            told = self._plain[key] = _Told((key,), b"")
        ret = self._tell(told)
        if told.medium is None:
            self._plain.pop(key, None)
        return ret

    def described(self, packed: bytes) -> List[Dict[str, Any]]:
        """An engine described a block. The first description of a key counts. ValueError: it is not one."""
        keys, _ = unpacked(packed)
        if any(key in self._described for key in keys):
            return []
        ret: List[Dict[str, Any]] = []
        for key in keys:
            told = self._plain.pop(key, None)
            if told:
                ret += self._said(told, "BlockRemoved", told.medium)
        told = _Told(keys, packed)
        for key in keys:
            self._described[key] = told
        self._bytes += len(packed)
        self._forget()
        return ret + self._tell(told)

    def _forget(self) -> None:
        """Forgets old descriptions, where there are too many. Those of blocks that are there stay."""
        for _ in range(len(self._described) if self._bytes > DESCRIBED_BYTES else 0):
            key, told = self._described.popitem(last=False)
            if any(other in self._tiers for other in told.keys):
                self._described[key] = told
                continue
            for other in told.keys:
                self._described.pop(other, None)
            self._bytes -= len(told.packed)
            if self._bytes <= DESCRIBED_BYTES:
                break

    def _tell(self, told: _Told) -> List[Dict[str, Any]]:
        before, ret = told.medium, []
        tiers = [self._tiers.get(key) for key in told.keys]
        told.medium = None if None in tiers else "CPU" if all("host" in t or "gpu" in t for t in tiers) else "STORAGE"
        if told.medium and told.medium != before:
            ret += self._said(told, "BlockStored", told.medium)
        if before and told.medium != before:
            ret += self._said(told, "BlockRemoved", before)
        return ret

    def _said(self, told: _Told, kind: str, medium: str) -> List[Dict[str, Any]]:
        """The events; a block whose hash is told of another space, too, is stored once, and removed with the last."""
        ret = []
        for event in unpacked(told.packed)[1] if told.packed else [{"block_hashes": [told.keys[0]]}]:
            name = (medium, event.get("group_idx"), *event["block_hashes"])
            before = self._counts.pop(name, 0)
            after = before + (1 if kind == "BlockStored" else -1)
            if after:
                self._counts[name] = after
            if before + after == 1:         # it came, or it left
                ret.append({"parent_block_hash": None, "token_ids": [], "block_size": 0, **event, "type": kind,
                            "medium": medium, "locality": "LOCAL"})
        return ret


# --- vLLM's schema in msgpack: a batch is an array, an event a map, or in older releases an array ---

_FIELDS = {     # of each event, in vLLM's order; those in front of None are always there
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
                    None, "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality",
                    "ownership", "session_id"),
    "BlockRemoved": ("block_hashes", "medium", None, "group_idx", "locality", "ownership"),
    "AllBlocksCleared": (None,),
}


def batch(now: float, events: Sequence[Dict[str, Any]], arrays: bool = False) -> bytes:
    """A KVEventBatch. arrays: of events that are arrays, as vLLM before 0.30 wrote them."""
    return pack([now, [(_array if arrays else _map)(event) for event in events], 0])


def _map(event: Dict[str, Any]) -> Dict[str, Any]:
    fields = _FIELDS[event["type"]]
    always = fields.index(None)
    return {"type": event["type"], **{name: event.get(name) for i, name in enumerate(fields)
                                      if name and (i < always or event.get(name) is not None)}}


def _array(event: Dict[str, Any]) -> List[Any]:
    fields = _FIELDS[event["type"]]
    ret = [event["type"], *(event.get(name) for name in fields if name)]
    while len(ret) > 1 + fields.index(None) and ret[-1] is None:
        ret.pop()
    return ret


def pack(value: Any) -> bytes:
    """msgpack of None, bool, int (64 bits), float, str, bytes, list, tuple and dict."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        if 0 <= value < 128:
            return bytes([value])
        return struct.pack(">BQ", 0xcf, value) if value >= 0 else struct.pack(">Bq", 0xd3, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0xcb, value)
    if isinstance(value, str):
        data = value.encode()
        return struct.pack(">BI", 0xdb, len(data)) + data
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xc6, len(value)) + value
    if isinstance(value, (list, tuple)):
        return struct.pack(">BI", 0xdd, len(value)) + b"".join(map(pack, value))
    if isinstance(value, dict):
        pairs = (pack(key) + pack(each) for key, each in value.items())
        return struct.pack(">BI", 0xdf, len(value)) + b"".join(pairs)
    raise TypeError(f"msgpack of {type(value).__name__}")
