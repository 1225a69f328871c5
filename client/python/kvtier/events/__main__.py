# SPDX-License-Identifier: Apache-2.0
"""python -m kvtier.events - publishes the blocks of this node's kvtierd by ZeroMQ, as vLLM publishes its own.

    python -m kvtier.events --bind tcp://*:5557 --replay tcp://*:5558 --topic kv@$(hostname)@MODEL

It runs as root or as the daemon's own user, and needs pyzmq. A message has the topic, a sequence number (8 bytes, big
endian, from 0 on) and a KVEventBatch in msgpack. A subscriber that misses numbers sends the first of them to the
replay socket, as to vLLM's: it gets the batches from there on, and -1 at the end. If they are not kept any more, all
blocks are published again, behind an AllBlocksCleared. The same follows when kvtierd was started again.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

from . import CLEARED, Change, Follower, Picture, batch
from .describe import PACKET_BYTES, daemon_path, engines_path

LOOK_S = 0.1            # between two looks at the daemon; and between two tries to reach one that is away: AWAY_S
AWAY_S = 1.0
BATCH = 512             # events
AGAIN_S = 10.0          # all blocks are published again so often at most
ENGINES_MAX = 256       # connections of engines that describe blocks


def say(text: str) -> None:
    print(f"kvtier.events: {text}", file=sys.stderr, flush=True)


class Publisher:
    """The sockets, sequence numbers and the last batches. zmq: the module."""

    def __init__(self, zmq: Any, how: argparse.Namespace) -> None:
        self._zmq, self._how, self._topic = zmq, how, how.topic.encode()
        self._kept: Deque[Tuple[bytes, bytes]] = deque(maxlen=how.keep)
        self._next = 0
        context = zmq.Context.instance()
        self._pub = context.socket(zmq.PUB)
        self._pub.set_hwm(100_000)
        (self._pub.bind if how.bind else self._pub.connect)(how.bind or how.connect)
        self.replay = context.socket(zmq.ROUTER) if how.replay else None
        if self.replay:
            self.replay.bind(how.replay)

    def send(self, events: Sequence[Dict[str, Any]]) -> None:
        for at in range(0, len(events), BATCH):
            number, data = self._next.to_bytes(8, "big"), batch(time.time(), events[at:at + BATCH], self._how.arrays)
            self._next += 1
            self._kept.append((number, data))
            self._pub.send_multipart((self._topic, number, data))

    def answer(self) -> bool:
        """Answers the questions at the replay socket. True: one was for batches that are not kept any more."""
        behind = False
        while self.replay and self.replay.poll(0):
            frames = self.replay.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            who, _, first = frames
            behind |= bool(self._kept) and first < self._kept[0][0]
            for number, data in self._kept:
                if number >= first:
                    self.replay.send_multipart((who, b"", self._topic, number, data))
            self.replay.send_multipart((who, b"", b"", b"\xff" * 8, b""))
        return behind


class Engines:
    """Takes the descriptions of engines. An engine that says something else is disconnected."""

    def __init__(self, path: str, beside: str) -> None:
        """beside: the daemon's socket; engines that may use it may describe blocks."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        with contextlib.suppress(OSError):      # the daemon is not there yet, or its group is not ours to give
            there = os.stat(beside)
            os.chown(path, -1, there.st_gid)
            os.chmod(path, there.st_mode & 0o777)
        self._listener.listen(16)
        self._listener.setblocking(False)
        self._engines: List[socket.socket] = []

    def sockets(self) -> List[socket.socket]:
        return [self._listener, *self._engines]

    def close(self) -> None:
        for one in self.sockets():
            one.close()

    def take(self, picture: Picture) -> List[Dict[str, Any]]:
        with contextlib.suppress(BlockingIOError):
            engine, _ = self._listener.accept()
            engine.setblocking(False)
            if len(self._engines) < ENGINES_MAX:
                self._engines.append(engine)
            else:
                engine.close()
        events: List[Dict[str, Any]] = []
        for engine in list(self._engines):
            try:
                for _ in range(BATCH):
                    data = engine.recv(PACKET_BYTES)
                    if not data:
                        raise ConnectionError
                    events += picture.described(data)
            except BlockingIOError:
                pass
            except (OSError, ValueError) as error:
                if isinstance(error, ValueError):
                    say(f"an engine was disconnected: {error}")
                self._engines.remove(engine)
                engine.close()
        return events


class Node:
    """The daemon's blocks, of one model or of all. It is asked every LOOK_S."""

    def __init__(self, how: argparse.Namespace, path: str) -> None:
        self.follower, self._model = Follower(os.path.join(os.path.dirname(path), "admin.sock")), how.model
        self._spaces: Dict[int, str] = {}
        self.picture, self._away = Picture(), ""

    def _is_wanted(self, change: Change) -> bool:
        if not self._model:
            return True
        if change.space not in self._spaces:
            self._spaces = self.follower.spaces()
        return self._spaces.get(change.space, "").split("@")[0] == self._model

    def look(self, engines: Engines) -> Tuple[List[Dict[str, Any]], float]:
        """(events, in their order; when to look again in seconds)"""
        events, wait = self._look()
        return events + engines.take(self.picture), wait

    def _look(self) -> Tuple[List[Dict[str, Any]], float]:
        try:
            void, changes, more = self.follower.step()
            wanted = [change for change in changes if self._is_wanted(change)]
        except OSError as error:
            said, self._away = self._away, str(error) or type(error).__name__
            if not said:
                say(f"kvtierd is away, and asked again every {AWAY_S:.0f} s: {self._away}")
            self._spaces.clear()
            self.picture.void()
            return ([] if said else [CLEARED]), AWAY_S
        self._away = ""
        events: List[Dict[str, Any]] = []
        if void:
            self._spaces.clear()
            self.picture.void()
            events.append(CLEARED)
        for change in wanted:
            events += self.picture.changed(change)
        return events, 0.0 if more else LOOK_S


def run(zmq: Any, how: argparse.Namespace) -> None:
    path = daemon_path(how.socket)
    publisher, engines, node = Publisher(zmq, how), Engines(engines_path(path), path), Node(how, path)
    poller, wait, again = zmq.Poller(), 0.0, 0.0
    watched: List[Any] = []
    while True:
        wanted = [*engines.sockets(), *([publisher.replay] if publisher.replay else [])]
        for one in watched:
            poller.unregister(one)
        for one in wanted:
            poller.register(one, zmq.POLLIN)
        watched = wanted
        poller.poll(int(1000 * wait))
        events, wait = node.look(engines)
        if publisher.answer() and time.monotonic() >= again:
            again = time.monotonic() + AGAIN_S
            publisher.send(events)
            events = node.picture.again()
        publisher.send(events)


def main(words: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser("python -m kvtier.events", description=__doc__.split("\n")[0].split(" - ")[1])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--bind", metavar="ENDPOINT", help="routers connect here: tcp://*:5557")
    where.add_argument("--connect", metavar="ENDPOINT", help="a router listens there: tcp://router:5557")
    parser.add_argument("--replay", metavar="ENDPOINT", help="of the replay socket: tcp://*:5558")
    parser.add_argument("--topic", default="", help="of each message; llm-d asks for kv@POD@MODEL")
    parser.add_argument("--model", default="", help="only blocks of this model, as kvtierctl spaces has it up to the @")
    parser.add_argument("--socket", metavar="PATH", help="the daemon's client socket; its admin socket is beside it")
    parser.add_argument("--keep", metavar="N", type=int, default=10_000, help="batches for the replay socket (10000)")
    parser.add_argument("--arrays", action="store_true", help="events are arrays, as older releases of vLLM wrote them")
    how = parser.parse_args(words)
    try:
        import zmq
    except ImportError:
        sys.exit("kvtier.events: it needs pyzmq: pip install pyzmq")
    with contextlib.suppress(KeyboardInterrupt):
        try:
            run(zmq, how)
        except zmq.ZMQError as error:
            sys.exit(f"kvtier.events: {how.bind or how.connect}, {how.replay}: {error}")
        except OSError as error:
            sys.exit(f"kvtier.events: {engines_path(daemon_path(how.socket))}: {error}")


if __name__ == "__main__":
    main()
