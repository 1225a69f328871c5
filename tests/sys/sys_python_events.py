# SPDX-License-Identifier: Apache-2.0
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: a router that follows the events of a node knows exactly the blocks that its kvtierd has, under the names that
engines gave them: under load, after lost events, and after the daemon was killed.
Method: a Subscriber applies events as routers do; its picture is compared with lookups of every key. The publisher's
sockets are ZeroMQ's own, where Python has it; with vLLM's own decoder behind them: make test-engines.
"""
import argparse
import os
import random
import select
import socket
import struct
import subprocess
import sys
import unittest

try:
    import msgpack
    import zmq
except ImportError:
    zmq = None

from kvtier import Client, Codec, Dtype, Geometry, Keys, Kind, Segment, SharedMemory
from kvtier.events import CLEARED, Follower, Picture, batch, pack
from kvtier.events.__main__ import AWAY_S, LOOK_S, Engines, Node
from kvtier.events.describe import WAITING_MAX, Describer, packed, unpacked
from world import World, host

TOKENS, PAGE, PAGES = 8, 4096, 32


class Engine:
    """Stores chains of blocks in a space of its own. keys: all that it ever stored."""

    def __init__(self, daemon, model: str = "m@1", pages: int = PAGES) -> None:
        self.client = Client(daemon.socket, name="engine", timeout_ms=5000)
        self.memory = SharedMemory(pages * PAGE)
        segments = [Segment(kind, i * 1024, PAGE, head_stride=32, token_stride=32) for i, kind in
                    enumerate((Kind.K, Kind.V))]
        self.space = self.client.open_space(Geometry(model, "test", Dtype.FP16, 1, 1, 16, 16, TOKENS, codec=Codec.RAW),
                                            [self.memory.region()], segments)
        self.keys = []

    def store(self, chain: int, blocks: int) -> list:
        keys = self.space.keys([chain] * (TOKENS * blocks))
        self.client.wait(self.space.store(keys, range(blocks)))
        self.keys += [key for key in map(bytes, keys) if key not in set(self.keys)]
        return [bytes(key) for key in keys]

    def there(self) -> set:
        """The keys that the daemon has, by lookups alone."""
        return {key for key in self.keys if self.space.lookup(Keys.of(key)).blocks}

    def close(self) -> None:
        self.space.close()
        self.client.close()
        self.memory.close()


class Subscriber:
    """A router: which blocks are there, by hash, and in which media."""

    def __init__(self) -> None:
        self.blocks = {}

    def hear(self, events) -> None:
        for event in events:
            if event["type"] == "AllBlocksCleared":
                self.blocks.clear()
                continue
            for name in event["block_hashes"]:
                media = self.blocks.setdefault(name, set())
                if event["type"] == "BlockStored":
                    assert event["medium"] not in media, "stored twice"
                    media.add(event["medium"])
                else:
                    media.remove(event["medium"])
                    if not media:
                        del self.blocks[name]


class Router(Subscriber):
    """Hears of events by ZeroMQ, and asks the replay socket for what it lacks."""

    def __init__(self, publish: str, replay: str) -> None:
        super().__init__()
        self.next, context = 0, zmq.Context.instance()
        self.sub, self.again = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.sub.connect(publish)
        self.sub.setsockopt(zmq.SUBSCRIBE, b"kv@")
        self.again.connect(replay)

    def look(self) -> set:
        self.again.send_multipart([b"", self.next.to_bytes(8, "big")])
        for one in (self.again, self.sub):
            while one.poll(200):
                *_, number, data = one.recv_multipart()
                if int.from_bytes(number, "big") == self.next:
                    self.next += 1
                    self.hear(msgpack.unpackb(data)[1])
        return set(self.blocks)

    def close(self) -> None:
        self.sub.close(0)
        self.again.close(0)


class Events(World):
    settings = host(1).replace("4M", "256K").replace("bytes = 0\n", "bytes = 64M\n")

    def setUp(self) -> None:
        super().setUp()
        self.admin = os.path.join(os.path.dirname(self.daemon.socket), "admin.sock")
        self.follower, self.picture, self.router = Follower(self.admin), Picture(), Subscriber()
        self.addCleanup(self.follower.close)

    def engine(self, **how) -> Engine:
        engine = Engine(self.daemon, **how)
        self.addCleanup(engine.close)
        return engine

    def follow(self) -> bool:
        """One step. False: nothing was new."""
        void, changes, more = self.follower.step()
        if void:
            self.picture.void()
            self.router.hear([CLEARED])
        for change in changes:
            self.router.hear(self.picture.changed(change))
        return more

    def catch_up(self) -> None:
        while self.follow():
            pass

    def test_a_router_knows_what_the_daemon_has(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        dice, engine = random.Random(seed), self.engine()
        for turn in range(60):
            engine.store(dice.randrange(12), dice.randrange(1, PAGES))
            if dice.random() < 0.2:
                self.daemon.ctl("evict", "--bytes", "200K")
            if dice.random() < 0.1:
                self.daemon.ctl("flush")
            if turn == 30:
                self.daemon.ctl("purge", "--tenant", "default")
            if dice.random() < 0.5:
                self.follow()
        self.daemon.ctl("flush")
        self.catch_up()
        there = engine.there()
        self.assertGreater(len(there), PAGES)
        self.assertEqual(set(self.router.blocks), there)
        self.daemon.ctl("evict", "--all")
        self.catch_up()
        self.assertEqual(set(self.router.blocks), engine.there())
        self.assertEqual({medium for media in self.router.blocks.values() for medium in media}, {"STORAGE"})

    def test_a_follower_that_lost_events_begins_anew(self):
        engine = self.engine()
        engine.store(1, 20)
        self.catch_up()
        self.daemon.ctl("purge", "--tenant", "default")
        engine.store(2, 3)
        self.follower._since = 1 << 40      # as if this many were said meanwhile
        self.catch_up()
        self.assertEqual(set(self.router.blocks), engine.there())
        self.assertEqual(len(self.router.blocks), 3)

    def test_another_daemon_has_other_blocks(self):
        engine = self.engine()
        engine.store(1, 20)
        self.catch_up()
        self.daemon.kill()
        with self.assertRaises(OSError):
            self.follower.step()
        self.daemon.start()
        second = self.engine(model="n@1")
        second.store(1, 2)
        self.until(lambda: self.daemon.tier("nvme"))
        self.catch_up()
        known = set(self.router.blocks)
        self.assertLessEqual(second.there(), known)
        self.until(lambda: len(known) == self.daemon.stats()["index"]["entries"])

    def described(self, keys: list, name: int, **more) -> list:
        return self.picture.described(packed(keys, [{
            "block_hashes": [name], "parent_block_hash": None, "token_ids": [1] * TOKENS, "block_size": TOKENS,
            **more}]))

    def test_a_block_has_the_engines_hash_while_all_its_parts_are_there(self):
        engine = self.engine()
        one, two = engine.store(1, 1), engine.store(2, 1)
        late = engine.store(3, 1)
        self.assertEqual(self.described([one[0], two[0]], 77, group_idx=0, extra_keys=[["salt"]]), [])
        self.catch_up()
        self.assertEqual(set(self.router.blocks), {77, late[0]})
        self.router.hear(self.described(late, 78))
        self.assertEqual(set(self.router.blocks), {77, 78})
        self.assertEqual(self.described(late, 79), [])      # the first one counts
        again = Subscriber()
        again.hear(self.picture.again())
        self.assertEqual(again.blocks, self.router.blocks)
        self.daemon.ctl("purge", "--tenant", "default")
        engine.store(1, 1)
        engine.store(3, 1)
        self.catch_up()
        self.assertEqual(set(self.router.blocks), {78})     # the other part of 77 is gone
        engine.store(2, 1)
        self.catch_up()
        self.assertEqual(set(self.router.blocks), {77, 78})

    def test_spaces_that_share_a_hash_keep_it_until_the_last_block_leaves(self):
        engine = self.engine()
        one, two = engine.store(1, 1), engine.store(2, 1)
        self.described(one, 77)
        self.described(two, 77)
        self.catch_up()
        self.assertEqual(set(self.router.blocks), {77})
        self.daemon.ctl("purge", "--tenant", "default")
        engine.store(2, 1)
        self.catch_up()
        self.assertEqual(set(self.router.blocks), {77})
        self.daemon.ctl("purge", "--tenant", "default")
        self.catch_up()
        self.assertEqual(self.router.blocks, {})

    def test_what_is_no_description_is_refused(self):
        good = packed([bytes(32)], [{"block_hashes": [b"\1" * 32, 5], "parent_block_hash": b"\2", "token_ids": [1]}])
        keys, events = unpacked(good)
        self.assertEqual((keys, events[0]["block_hashes"], events[0]["parent_block_hash"]),
                         ([bytes(32)], [b"\1" * 32, 5], b"\2"))
        key = "00" * 32
        for bad in (b"", b"[]", b"{}", b'{"keys":[],"events":[]}', b'{"keys":["00"],"events":[{"block_hashes":[1]}]}',
                    b"[" * 100000, *(f'{{"keys":["{key}"],"events":[{said}]}}'.encode() for said in (
                        "", "1", "{}", '{"block_hashes":[]}', '{"block_hashes":[null]}', '{"block_hashes":[-1]}',
                        '{"block_hashes":["x"]}', '{"block_hashes":[1],"other":1}',
                        '{"block_hashes":[1],"block_size":"1"}',
                        '{"block_hashes":[1],"token_ids":[1.5]}', '{"block_hashes":[1],"token_ids":[-1]}',
                        '{"block_hashes":[1],"group_idx":18446744073709551616}'))):
            with self.assertRaises(ValueError, msg=bad):
                unpacked(bad)

    def test_the_schema_is_vllms(self):
        stored = {"type": "BlockStored", "block_hashes": [5], "parent_block_hash": None, "token_ids": [1],
                  "block_size": 1, "lora_id": None, "lora_name": None, "medium": "CPU", "group_idx": 0,
                  "locality": "LOCAL"}
        named = {"type": "BlockStored", "block_hashes": [5], "parent_block_hash": None, "token_ids": [1],
                 "block_size": 1, "lora_id": None, "medium": "CPU", "lora_name": None, "group_idx": 0,
                 "locality": "LOCAL"}
        self.assertEqual(batch(1.5, [stored, CLEARED]), pack([1.5, [named, {"type": "AllBlocksCleared"}], 0]))
        self.assertEqual(batch(1.5, [stored, CLEARED], arrays=True), pack(
            [1.5, [["BlockStored", [5], None, [1], 1, None, "CPU", None, None, 0, None, None, "LOCAL"],
                   ["AllBlocksCleared"]], 0]))
        self.assertEqual(pack([None, True, 7, 1 << 63, -2, "a", b"b"]), struct.pack(
            ">BI3BBQBqBI1sBI1s", 0xdd, 7, 0xc0, 0xc3, 7, 0xcf, 1 << 63, 0xd3, -2, 0xdb, 1, b"a", 0xc6, 1, b"b"))

    def test_a_node_hears_of_its_daemon_and_of_its_engines(self):
        how = argparse.Namespace(model="m")
        node, path = Node(how, self.daemon.socket), str(self.work / "events.sock")
        engines, describer = Engines(path, self.daemon.socket), Describer(path)
        for one in (engines, describer, node.follower):
            self.addCleanup(one.close)
        self.assertTrue(describer.there())
        engine, other = self.engine(), self.engine(model="other@1")
        other.store(1, 3)
        keys = engine.store(1, 3)

        def look() -> set:
            self.router.hear(node.look(engines)[0])
            return set(self.router.blocks)

        for number, key in enumerate(keys[:2]):     # one as its block is heard of, one later
            describer.say([key], [{"block_hashes": [number + 1], "token_ids": [], "block_size": 0}])
            self.until(lambda: look() == {*range(1, number + 2), *keys[number + 1:]})
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wrong:
            wrong.connect(path)
            wrong.send(b"{}")
            self.until(lambda: look() and select.select([wrong], [], [], 0)[0])
            self.assertEqual(wrong.recv(1), b"")
        self.daemon.kill()
        self.assertEqual(look(), set())
        self.assertEqual(node.look(engines), ([], AWAY_S))
        self.daemon.start()
        self.daemon.tier("nvme")
        self.until(lambda: node.look(engines)[1] == LOOK_S)

    @unittest.skipIf(zmq is None, "no ZeroMQ: Debian's python3-zmq and python3-msgpack")
    def test_routers_hear_by_zeromq_and_ask_for_what_they_missed(self):
        sockets = [f"ipc://{self.work}/{name}" for name in ("publish", "replay")]
        publisher = subprocess.Popen([sys.executable, "-B", "-m", "kvtier.events", "--bind", sockets[0], "--replay",
                                      sockets[1], "--topic", "kv@node@m", "--socket", self.daemon.socket])
        self.addCleanup(publisher.wait)
        self.addCleanup(publisher.terminate)
        first, late, engine = Router(*sockets), Router(*sockets), self.engine()
        for router in (first, late):
            self.addCleanup(router.close)
        engine.store(1, 5)
        self.until(lambda: first.look() == engine.there())
        engine.store(2, 3)
        self.until(lambda: first.look() == late.look() == engine.there())
        self.assertEqual(len(late.blocks), 8)
        self.daemon.ctl("purge", "--tenant", "default")
        self.until(lambda: first.look() == late.look() == set())

    def test_an_engine_never_waits_for_the_publisher(self):
        path = str(self.work / "events.sock")
        describer = Describer(path)
        self.addCleanup(describer.close)
        self.assertFalse(describer.there())
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen(1)
            describer._again = 0.0
            self.assertTrue(describer.there())
            event = {"block_hashes": [1], "token_ids": list(range(256)), "block_size": 256}
            for number in range(2 * WAITING_MAX):       # the publisher reads nothing
                describer.say([number.to_bytes(32, "big")], [event])
            publisher, _ = listener.accept()
            with publisher:
                publisher.settimeout(5)
                first = int.from_bytes(unpacked(publisher.recv(1 << 17))[0][0], "big")
                describer.flush()
                self.assertEqual(first, 0)
        describer.say([bytes(32)], [event])
        self.assertFalse(describer.there())
