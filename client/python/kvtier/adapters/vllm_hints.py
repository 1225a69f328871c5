# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.vllm_hints - says the `kv_hints` envelope of a vLLM request to kvtierd, without vLLM and torch.

vLLM carries the envelope and leaves the meaning of actions to whoever executes them. kvtier executes these:

    {"protocol_version": "1", "message_id": "m-1", "actions": [
        {"action_id": "a-1", "action_type": "retain", "action_version": "1",
         "payload": {"session": "chat-17", "turn_number": 3, "ttl_s": 600, "priority": 50}}]}

action_type     one of daemon/HINTS.md: retain, pin, demote, prefetch, release, superseded, ended. Other types belong to
                other components, and are left alone.
action_version  "1", or "1." and anything
payload         all of it may be left out
    scope       "prompt" (default): the full blocks of the request's prompt; "session"; "revision": these weights
    tokens      of a prompt: the first so many alone
    session     text, or a number above 0: blocks of the prompt join it, or it is what the hint is about
    turn_number, ttl_s
                numbers from 0 on
    priority    -100 to 100, of retain
    expected_back_s
                of retain, without a priority: seconds until the blocks are used again; 2**32 - 1: never

An action that breaks a rule is named in the log and left out; the request is served all the same. A hint on a prompt is
said when the request arrives, for the blocks that there are. Except for prefetch, it is said once more when the
request's own blocks have been saved.
"""
from __future__ import annotations

import hashlib
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from .. import MAX_BLOCKS, Action, Answers, Client, Error, Keys, Op, Result, Space

__all__ = ["Hint", "Hints", "UnderWay", "hints_of"]

MAX_ACTIONS = 16        # how many actions of one request are said; more are left out
MAX_UNDER_WAY = 128     # how many ops there are whose results were not taken yet

_ACTIONS = {action.name.lower(): action for action in Action}
_NUMBERS = {"tokens": (1, 2 ** 32 - 1), "turn_number": (0, 2 ** 32 - 1), "ttl_s": (0, 2 ** 32 - 1),
            "priority": (-100, 100), "expected_back_s": (1, 2 ** 32 - 1)}


class Hint(NamedTuple):
    """One action. options: those of Space.hint(). tokens: how many leading tokens of the prompt; None: all of it."""
    action: Action
    scope: str
    tokens: Optional[int]
    options: Dict[str, int]

    def again(self) -> bool:
        """Whether it is also about the blocks that its request will have saved."""
        return self.scope == "prompt" and self.action != Action.PREFETCH


def _session(value: Any) -> int:
    """The session as a number from 1 on, the same in every process and for every engine."""
    if isinstance(value, str) and value:
        return int.from_bytes(hashlib.sha256(value.encode()).digest()[:8], "little") or 1
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2 ** 64:
        return value
    raise ValueError(f"session is {value!r}, must be a text or a number in 1..2^64-1")


def _hint(name: str, version: str, payload: Dict[str, Any]) -> Hint:
    if version != "1" and not version.startswith("1."):
        raise ValueError(f"action_version is {version!r}, only 1 is known")
    unknown = set(payload) - set(_NUMBERS) - {"scope", "session"}
    if unknown:
        raise ValueError(f"no such field: {', '.join(sorted(map(str, unknown)))}")
    options = {}
    for field, (least, most) in _NUMBERS.items():
        value = payload.get(field)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"{field} is {value!r}, must be in {least}..{most}")
        options[field] = value
    if "expected_back_s" in options and (name != "retain" or options.get("priority") or
                                         payload.get("scope") == "revision"):
        raise ValueError("expected_back_s is for retain of a prompt or a session, without a priority")
    scope = payload.get("scope", "prompt")
    if scope not in ("prompt", "session", "revision"):
        raise ValueError(f"scope is {scope!r}, must be prompt, session or revision")
    if payload.get("session") is not None:
        options["session"] = _session(payload["session"])
    if scope == "session" and "session" not in options:
        raise ValueError("scope is session, and there is no session")
    if scope == "revision":
        if "session" in options:
            raise ValueError("scope is revision, and there is a session")
        options["revision"] = True
    return Hint(_ACTIONS[name], scope, options.pop("tokens", None), options)


def hints_of(envelope: Any, say: Callable[[str], None]) -> List[Hint]:
    """The hints in an envelope, which is a KvHintsEnvelope or None. say: told of each action that is left out."""
    ret: List[Hint] = []
    for action in getattr(envelope, "actions", None) or ():
        name = str(getattr(action, "action_type", "")).lower()
        if name not in _ACTIONS:
            continue
        try:
            if len(ret) == MAX_ACTIONS:
                raise ValueError(f"more than {MAX_ACTIONS} actions")
            payload = getattr(action, "payload", None)
            ret.append(_hint(name, str(getattr(action, "action_version", "")), dict(payload or {})))
        except (TypeError, ValueError) as error:
            say(f"kv_hints: action {getattr(action, 'action_id', '?')} ({name}) is left out: {error}")
    return ret


class UnderWay:
    """The scheduler's hints and prefetches whose results were not taken yet."""

    def __init__(self) -> None:
        self._ops: Dict[Tuple[int, int], Tuple[Client, Callable[[Optional[Result]], None]]] = {}    # by client and op

    def __len__(self) -> int:
        return len(self._ops)

    def begin(self, client: Client, submit: Callable[[], Op], done: Callable[[Optional[Result]], None]) -> bool:
        """Begins an op. done: told its result, or None if the client was closed before. False: the op did not begin, as
        the daemon is away or MAX_UNDER_WAY ops are under way."""
        if len(self._ops) >= MAX_UNDER_WAY:
            return False
        try:
            op = submit()
        except Error:
            return False
        self._ops[id(client), op.id] = client, done
        return True

    def poll(self) -> None:
        """Takes the results that there are. No system call while no hint is under way."""
        for client in {id(client): client for client, _ in self._ops.values()}.values():
            try:
                results = client.poll(16, 1)
            except Error:               # the client was closed, so its ops are over
                for at in [at for at, (owner, _) in self._ops.items() if owner is client]:
                    self._ops.pop(at)[1](None)
                continue
            for result in results:
                _, done = self._ops.pop((id(client), result.op), (None, None))
                if done:
                    done(result)


class Hints:
    """Says hints and takes their answers. answers: the sum until now. unsaid: how many hints no daemon has answered, as
    it is away, stands still, or has too many ops under way."""

    def __init__(self, under_way: UnderWay) -> None:
        self.answers, self.unsaid, self._under_way = Answers(), 0, under_way

    def say(self, hint: Hint, prompt: Iterable[Tuple[Space, Optional[Keys]]]) -> None:
        """Says a hint. prompt: each space, with the keys of the prompt's blocks there."""
        of_prompt = hint.scope == "prompt"
        spaces = list(prompt)
        if not spaces:
            self.unsaid += 1
        if not of_prompt and hint.action != Action.PREFETCH:
            spaces = spaces[:1]         # one is enough, as the hint is about the tenant's blocks in every space
        for space, keys in spaces:
            if not of_prompt:
                self._begin(space, hint, None)
            elif keys is not None:
                raw = bytes(keys)
                for at in range(0, len(raw), 32 * MAX_BLOCKS):
                    self._begin(space, hint, Keys.of(raw[at:at + 32 * MAX_BLOCKS]))

    def _begin(self, space: Space, hint: Hint, keys: Optional[Keys]) -> None:
        if not self._under_way.begin(space.client, lambda: space.hint(hint.action, keys, **hint.options),
                                     self._answered):
            self.unsaid += 1

    def _answered(self, result: Optional[Result]) -> None:
        if result and any(result.answers):
            self.answers = Answers(*map(sum, zip(self.answers, result.answers)))
        else:
            self.unsaid += 1
