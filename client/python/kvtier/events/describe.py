# SPDX-License-Identifier: Apache-2.0
"""kvtier.events.describe - how an engine describes its blocks to the publisher of its node, which knows their keys
alone. A description is a packet of JSON on a Unix socket beside the daemon's: {"keys": [HEX, ...], "events": [{...}]}.
The events have fields of vLLM's BlockStored, without medium and locality; hashes are integers, or bytes in hex.
"""
from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

__all__ = ["Describer", "daemon_path", "engines_path", "packed", "unpacked"]

AGAIN_S = 5.0               # between two tries to reach a publisher
WAITING_MAX = 4096          # descriptions; beyond that the oldest ones are forgotten
PACKET_BYTES = 128 << 10
KEYS_MAX, EVENTS_MAX = 4096, 64
_TEXT, _LIST, _HASH = (str, type(None)), (list, type(None)), (int, str, type(None))
_TYPES = {"block_hashes": list, "parent_block_hash": _HASH, "token_ids": list, "block_size": int,
          "lora_id": (int, type(None)), "lora_name": _TEXT, "extra_keys": _LIST, "group_idx": (int, type(None)),
          "kv_cache_spec_kind": _TEXT, "kv_cache_spec_sliding_window": (int, type(None)), "session_id": _TEXT}


def daemon_path(said: Optional[str] = None) -> str:
    """The daemon's socket: the one that was said, or $KVTIER_SOCKET, or this user's own, or the node's."""
    path, xdg = said or os.environ.get("KVTIER_SOCKET"), os.environ.get("XDG_RUNTIME_DIR", "")
    own = os.path.join(xdg, "kvtier", "kvtier.sock")
    return path or (own if os.geteuid() and xdg.startswith("/") and os.path.exists(own) else "/run/kvtier/kvtier.sock")


def engines_path(daemon_socket: str) -> str:
    """Where the publisher listens for descriptions."""
    return os.path.join(os.path.dirname(daemon_socket), "events.sock")


def packed(keys: Sequence[bytes], events: Sequence[Dict[str, Any]]) -> bytes:
    def hexed(value: Any) -> Any:
        return value.hex() if isinstance(value, bytes) else value

    said = [{**{name: event[name] for name in _TYPES if event.get(name) is not None},
             "block_hashes": [hexed(value) for value in event["block_hashes"]],
             "parent_block_hash": hexed(event.get("parent_block_hash"))} for event in events]
    return json.dumps({"keys": [key.hex() for key in keys], "events": said}, separators=(",", ":"),
                      default=str).encode()


def unpacked(data: bytes) -> Tuple[List[bytes], List[Dict[str, Any]]]:
    """The keys and the events. ValueError: data is no description."""
    def read(value: Any) -> Any:
        if isinstance(value, int) and 0 <= value < 1 << 64:
            return value
        return None if value is None else bytes.fromhex(value)

    try:
        said = json.loads(data)
        keys, events = [bytes.fromhex(key) for key in said["keys"]], said["events"]
        if not 0 < len(keys) <= KEYS_MAX or {len(key) for key in keys} != {32} or not 0 < len(events) <= EVENTS_MAX:
            raise ValueError("no keys of 32 bytes, or no events")
        for event in events:
            for name, value in event.items():
                if not isinstance(value, _TYPES[name]) or (isinstance(value, int) and not 0 <= value < 1 << 63
                                                           and name != "parent_block_hash"):
                    raise ValueError(f"{name} is {value!r}")
            if not all(isinstance(token, int) and 0 <= token < 1 << 63 for token in event.get("token_ids", ())):
                raise ValueError("token_ids are no numbers")
            event["block_hashes"] = [read(value) for value in event["block_hashes"]]
            event["parent_block_hash"] = read(event.get("parent_block_hash"))
            if not event["block_hashes"] or None in event["block_hashes"]:
                raise ValueError("a block without a hash")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"no description of a block: {error}") from None
    return keys, events


class Describer:
    """Sends descriptions to the publisher at path, if there is one. No call waits, and none raises."""

    def __init__(self, path: str) -> None:
        self._path, self._socket, self._again = path, None, 0.0
        self._waiting: Deque[bytes] = deque(maxlen=WAITING_MAX)

    def there(self) -> bool:
        """Whether a publisher is there. It is looked for every AGAIN_S."""
        if self._socket is None and time.monotonic() >= self._again:
            self._again = time.monotonic() + AGAIN_S
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.setblocking(False)
            if one.connect_ex(self._path) == 0:
                self._socket = one
            else:
                one.close()
        return self._socket is not None

    def say(self, keys: Sequence[bytes], events: Sequence[Dict[str, Any]]) -> None:
        self._waiting.append(packed(keys, events))
        self.flush()

    def flush(self) -> None:
        """Sends what waits, as far as the publisher takes it now."""
        while self._waiting and self._socket is not None:
            try:
                self._socket.send(self._waiting[0])
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.EMSGSIZE:       # a block that is too large to describe is not described
                    self.close()
                    return
            self._waiting.popleft()

    def close(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket = None
