# SPDX-License-Identifier: Apache-2.0
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: the Python binding says what libkvtier says: bytes, statuses, errors, lifetimes.
Method: the standard library alone, against a kvtierd of its own on embedded defaults.
"""
import array
import contextlib
import ctypes as C
import errno
import multiprocessing
import os
import random
import select
import signal
import struct
import threading
import time
import unittest

import kvtier
from kvtier import (BLOCK_OK, BLOCK_PRESENT, Action, Answers, Codec, Dtype, Geometry, Kind, Region, Segment,
                    SharedMemory, Tier)
from world import started

TOKENS, LAYERS, HEADS, DIM = 16, 2, 2, 32
ROW = HEADS * DIM * 2
PLANE = TOKENS * ROW
PAGE = 4096 * 4
assert 2 * LAYERS * PLANE <= PAGE


def geometry(model: str, **changes) -> Geometry:
    return Geometry(model, "test", Dtype.FP16, LAYERS, HEADS, DIM, DIM, TOKENS)._replace(**changes)


def segments():
    """[layer][K|V][token][head][dim], pages one after another."""
    return [Segment(kind, (2 * layer + i) * PLANE, PAGE, layer=layer, head_stride=2 * DIM, token_stride=ROW)
            for layer in range(LAYERS) for i, kind in enumerate((Kind.K, Kind.V))]


def content(seed: int) -> bytes:
    """The KV bytes of a page, finite FP16 values that depend on seed and place."""
    values = (((seed * 977 + i * 31) % 2001 - 1000) / 64 for i in range(2 * LAYERS * PLANE // 2))
    return b"".join(struct.pack("<e", v) for v in values)


class Tensor:
    """No buffer itself, as torch's: it can say what array it is."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __array__(self):
        return array.array("q", self.tokens)


class Binding(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work, cls.daemon = started(cls.addClassCleanup, "")

    def setUp(self):
        self.client = kvtier.Client(self.daemon.socket, name="python-binding")
        self.addCleanup(self.client.close)
        self.memory = SharedMemory(8 * PAGE)
        self.addCleanup(self.memory.close)
        self.addCleanup(self.client.close)      # before the memory: cleanups run last to first
        self.tokens = list(range(4 * TOKENS + 3))

    def open(self, **changes):
        return self.client.open_space(geometry(self.id(), **{"codec": Codec.RAW, **changes}),
                                      [self.memory.region()], segments())

    def fill(self, n):
        for page in range(n):
            data = content(page)
            self.memory.view[page * PAGE:page * PAGE + len(data)] = data

    def page(self, page):
        return bytes(self.memory.view[page * PAGE:page * PAGE + 2 * LAYERS * PLANE])

    def stored(self, space):
        """Four blocks stored from pages 0..3; their keys."""
        keys = space.keys(self.tokens)
        self.fill(4)
        self.assertEqual(self.client.wait(space.store(keys, range(4))).blocks, [BLOCK_OK] * 4)
        return keys

    def test_version(self):
        self.assertRegex(kvtier.version(), r"^\d+\.\d+\.\d+$")

    def test_connect_without_daemon(self):
        with self.assertRaises(kvtier.Error) as caught:
            kvtier.Client("/nonexistent/kvtier.sock")
        self.assertIn(caught.exception.errno, (errno.ENOENT, errno.ECONNREFUSED))
        self.assertTrue(caught.exception.strerror)

    def test_raw_round_trip_is_exact(self):
        space = self.open()
        keys = self.stored(space)
        hit = space.lookup(keys)
        self.assertEqual(hit.blocks, 4)
        self.assertIn(Tier.HOST, hit.tiers)     # and NVMe, as soon as it is written there
        result = self.client.wait(space.load(keys, range(4, 8)))
        self.assertEqual((result.status, result.n, result.ok, result.prefix), (0, 4, 4, 4))
        for i in range(4):
            self.assertTrue(self.page(4 + i) == content(i), f"block {i}")

    def test_second_store_is_present(self):
        space = self.open()
        keys = self.stored(space)
        self.assertEqual(self.client.wait(space.store(keys, range(4))).blocks, [BLOCK_PRESENT] * 4)

    def test_later_blocks_with_their_parent(self):
        space = self.open()
        keys = space.keys(self.tokens)
        self.fill(4)
        self.client.wait(space.store(keys[:2], range(2)))
        self.assertEqual(self.client.wait(space.store(keys[2:], range(2, 4))).blocks, [BLOCK_OK] * 2)
        self.assertEqual(space.lookup(keys).blocks, 4)

    def test_fp8_is_near(self):
        space = self.open(codec=Codec.FP8)
        keys = self.stored(space)
        self.client.wait(space.load(keys, range(4, 8)))
        for want, got in zip(struct.iter_unpack("<e", content(0)), struct.iter_unpack("<e", self.page(4))):
            self.assertLessEqual(abs(got[0] - want[0]), abs(want[0]) / 16 + 0.05)

    def test_codecs_are_spaces_apart(self):
        keys = self.stored(self.open())
        other = self.open(codec=Codec.FP8)
        self.assertEqual(other.lookup(other.keys(self.tokens)).blocks, 0)
        self.assertNotEqual(other.keys(self.tokens)[0], keys[0])

    def test_private_memory_round_trip(self):
        pages = (C.c_uint8 * (2 * PAGE))()
        data = content(5)
        C.memmove(pages, data, len(data))
        space = self.client.open_space(geometry(self.id(), codec=Codec.RAW),
                                       [Region(len(pages), base=C.addressof(pages))], segments())
        keys = space.keys(self.tokens[:TOKENS])
        self.assertEqual(self.client.wait(space.store(keys, [0])).blocks, [BLOCK_OK])
        self.assertEqual(self.client.wait(space.load(keys, [1])).blocks, [BLOCK_OK])
        self.assertTrue(bytes(pages)[PAGE:PAGE + len(data)] == data)
        space.close()

    def test_a_space_says_how_its_pages_are_reached(self):
        with self.open() as space:
            self.assertEqual((space.memory, space.reach), ("memfd", kvtier.Reach.MEMFD))

    def test_a_quiet_space_comes_back(self):
        with self.open() as space:
            keys = self.stored(space)
            self.assertEqual(space.quiesce(), 0)
            self.assertEqual(space.lookup(keys).blocks, 0)
            with self.refused(errno.ENOTCONN):
                space.load(keys, range(len(keys)))
            with self.refused(errno.EINVAL):
                space.resume()          # the descriptor was not kept
            space.resume([self.memory.region()])
            self.assertEqual(space.lookup(keys).blocks, len(keys))

    def test_memory_of_a_gpu_needs_a_driver(self):
        with self.refused(errno.ENODEV, "has not loaded the CUDA driver"):
            self.client.open_space(geometry("gpu@1"), [kvtier.Region(1 << 20, cuda=4096)], segments())

    def test_a_stream_needs_memory_of_a_gpu(self):
        with self.open() as space:
            with self.refused(errno.EINVAL, "op.stream"):
                space.store(space.keys(range(16)), [0], stream=0)

    def test_hints_are_answered_by_the_block(self):
        space = self.open()
        keys = self.stored(space)
        told = self.client.wait(space.hint("pin", keys, session=7, ttl_s=60))
        self.assertEqual((told.status, told.answers, told.blocks), (0, Answers(accepted=4), [0] * 4))
        absent = space.keys([1000 + token for token in self.tokens])
        told = self.client.wait(space.hint(Action.RELEASE, absent))
        self.assertEqual((told.answers, told.blocks), (Answers(missing=4), [-errno.ENOENT] * 4))
        told = self.client.wait(space.hint(Action.ENDED, session=7))
        self.assertEqual((told.answers, len(told.blocks)), (Answers(accepted=4), 1))
        self.assertEqual(self.client.wait(space.hint("ended", session=7)).answers, Answers(missing=1))
        self.assertEqual(self.client.wait(space.hint("superseded", revision=True)).answers.accepted, 1)

    def test_hints_out_of_their_limits_are_refused(self):
        space = self.open()
        keys = space.keys(self.tokens)
        for how in ({"priority": 101}, {"priority": -101}):
            with self.refused(errno.EINVAL):
                space.hint(Action.RETAIN, keys, **how)
        for how in ({}, {"keys": keys, "revision": True}, {"session": 7, "revision": True}):
            with self.assertRaises(ValueError):
                space.hint(Action.PIN, **how)
        with self.assertRaises(KeyError):
            space.hint("forget", keys)

    @contextlib.contextmanager
    def refused(self, number, sentence=""):
        with self.assertRaisesRegex(kvtier.Error, sentence) as caught:
            yield
        self.assertEqual(caught.exception.errno, number)

    def assert_refused(self, call, sentence):
        with self.refused(errno.EINVAL, sentence):
            call()

    def test_numbers_that_c_does_not_have_are_refused(self):
        space, keys = self.open(), self.open().keys(self.tokens)
        op = space.load(keys, range(4))
        self.addCleanup(self.client.wait, op)
        much = 2**32 + 5

        def client(**options):
            return lambda: kvtier.Client(self.daemon.socket, **options)

        def region(**fields):
            return lambda: self.client.open_space(geometry("m"), [Region(**{"length": PAGE, "base": 4096, **fields})],
                                                  segments())

        def segment(**fields):
            return lambda: self.client.open_space(geometry("m"), [self.memory.region()],
                                                  [part._replace(**fields) for part in segments()])

        for field in Geometry._fields[2:]:
            if field != "extras":
                for wrong in (much, -1):
                    with self.subTest(field=field, wrong=wrong):
                        self.assert_refused(lambda: self.open(**{field: wrong}),
                                            rf"geometry\.{field} is {wrong}, must be in 0\.\.4294967295")
        for name, call, sentence in (
                ("fd", region(fd=much), r"regions\[0\]\.fd is 4294967301, must be in -2147483648\.\."),
                ("offset", region(offset=-1), r"regions\[0\]\.offset is -1"),
                ("length", region(length=2**64 + PAGE), r"regions\[0\]\.length is"),
                ("base", region(base=2**64 + 4096), r"regions\[0\]\.base is"),
                ("cuda", region(cuda=-4096), r"regions\[0\]\.base is -4096"),
                ("kind", segment(kind=2**32 + 1), r"segments\[0\]\.kind is"),
                ("layer", segment(layer=2**32), r"segments\[0\]\.layer is"),
                ("region", segment(region=2**32), r"segments\[0\]\.region is"),
                ("stride", segment(page_stride=2**64 + PAGE), r"segments\[0\]\.page_stride is"),
                ("client timeout", client(timeout_ms=-1), r"options\.timeout_ms is -1"),
                ("staging", client(staging_bytes=2**64), r"options\.staging_bytes is"),
                ("spin", client(spin_us=-1), r"options\.spin_us is -1"),
                ("memory", lambda: SharedMemory(2**64 + PAGE), "length is"),
                ("memory", lambda: SharedMemory(-PAGE), f"length is -{PAGE}"),
                ("op", lambda: self.client.wait(op._replace(id=2**64 + op.id)), "op is"),
                ("wait", lambda: self.client.wait(op, 2**32), "timeout_ms is 4294967296"),
                ("cancel", lambda: self.client.cancel(op, 2**31), "timeout_ms is 2147483648"),
                ("group", lambda: self.client.wait_layers(op, 2**32), "group is 4294967296"),
                ("groups", lambda: self.client.store_layers(op, -1), "groups is -1"),
                ("stream", lambda: self.client.stream_wait(op, 2**64 + 1), "stream is"),
                ("hint ttl", lambda: space.hint("pin", keys, ttl_s=-1), r"hint\.ttl_s is -1"),
                ("hint session", lambda: space.hint("ended", session=2**64), r"hint\.session is"),
                ("hint priority", lambda: space.hint("retain", keys, priority=2**32), r"hint\.priority is")):
            with self.subTest(name):
                self.assert_refused(call, sentence)
        for option in ("timeout_ms", "turn_number", "ttl_s", "layer_groups", "session"):
            for wrong in (2**64, -1):
                with self.subTest(option=option, wrong=wrong):
                    self.assert_refused(lambda: space.load(keys, range(4), **{option: wrong}),
                                        rf"options\.{option} is {wrong}, must be in 0\.\.")

    def test_a_page_that_c_does_not_have_is_refused(self):
        space = self.open()
        keys = self.stored(space)
        for pages in ([0, 1, 2, 2**32 + 5], [-1, 0, 1, 2], (2**63, 1, 2, 3), [0, 1, 2**32, 3]):
            for call in (space.store, space.load):
                for given in (pages, iter(pages)):
                    with self.subTest(pages=pages, call=call.__name__):
                        self.assert_refused(lambda: call(keys, given),
                                            r"pages\[[0-3]\] is -?\d+, must be in 0\.\.4294967295")
        for pages in ([True, False, True, True], [0.0, 1.0, 2.0, 3.0], "abcd", [None] * 4):
            with self.assertRaisesRegex(TypeError, r"pages\[0\] is .*, must be an integer"):
                space.load(keys, pages)
        for page in range(4):       # the old code stored page 5, and loaded into page 0
            self.assertEqual(self.page(page), content(page))

    def test_a_bool_or_a_text_is_no_number(self):
        space = self.open()
        keys = space.keys(self.tokens)
        for call in (lambda: self.open(layers=True), lambda: space.load(keys, range(4), priority=False),
                     lambda: self.open(rank="0"), lambda: space.load(keys, range(4), timeout_ms=0.5),
                     lambda: kvtier.Client(self.daemon.socket, timeout_ms="5"), lambda: SharedMemory(4096.0)):
            with self.assertRaisesRegex(TypeError, "must be an integer"):
                call()

    def test_a_text_that_c_would_cut_is_refused(self):
        def named(**names):
            return self.client.open_space(geometry("m")._replace(**names))

        for field in ("model", "convention", "extras"):
            self.assert_refused(lambda: named(**{field: "name\0of another"}),
                                rf"geometry\.{field} has a NUL at byte 4")
        self.assert_refused(lambda: named(model="\ud800"), r"geometry\.model is .*UTF-8")
        self.assert_refused(lambda: kvtier.Client(self.daemon.socket, name="a\0b"), r"options\.name has a NUL")
        self.assert_refused(lambda: kvtier.Client(str(self.daemon.socket) + "\0x"), r"options\.socket_path has a NUL")
        self.assert_refused(lambda: SharedMemory(PAGE, "a\0b"), "name has a NUL")
        with self.assertRaisesRegex(TypeError, r"geometry\.model is 7, must be a text"):
            named(model=7)
        named(model="größer").close()

    def test_ctrl_c_ends_a_wait_at_once_and_close_does_not_wait_again(self):
        """A daemon that stands still, and a client that waits for a minute for it."""
        self.addCleanup(setattr, kvtier, "HURRY_MS", kvtier.HURRY_MS)
        kvtier.HURRY_MS = 100
        for name, wait in (("wait", lambda client, op: client.wait(op)),
                           ("wait with a time", lambda client, op: client.wait(op, 60000)),
                           ("wait_layers", lambda client, op: client.wait_layers(op, 0)),
                           ("cancel", lambda client, op: client.cancel(op, 60000))):
            with self.subTest(name), SharedMemory(8 * PAGE) as memory:
                client = kvtier.Client(self.daemon.socket, timeout_ms=60000)
                space = client.open_space(geometry(self.id(), codec=Codec.RAW), [memory.region()], segments())
                keys = space.keys(self.tokens)
                self.daemon.process.send_signal(signal.SIGSTOP)
                try:
                    op = space.load(keys, range(4), layer_groups=LAYERS)
                    until = time.monotonic() + 60
                    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                    with self.assertRaises(KeyboardInterrupt):
                        wait(client, op)
                    self.assertEqual([page.ended for page in client.lent() if page.op == op.id], [False] * 4)
                    client.close()
                    self.assertLess(time.monotonic(), until)
                finally:
                    self.daemon.process.send_signal(signal.SIGCONT)
                while kvtier.lent():
                    time.sleep(0.01)

    def test_a_space_left_by_ctrl_c_is_closed_in_a_hurry(self):
        with SharedMemory(8 * PAGE) as memory:
            with kvtier.Client(self.daemon.socket, timeout_ms=60000) as client:
                until = None
                try:
                    with self.assertRaises(KeyboardInterrupt):
                        with client.open_space(geometry(self.id(), codec=Codec.RAW), [memory.region()],
                                               segments()) as space:
                            self.daemon.process.send_signal(signal.SIGSTOP)
                            space.load(space.keys(self.tokens), range(4))
                            until = time.monotonic() + 60
                            raise KeyboardInterrupt
                    self.assertLess(time.monotonic(), until)
                finally:
                    self.daemon.process.send_signal(signal.SIGCONT)
                while kvtier.lent():
                    time.sleep(0.01)
                keys = self.stored(self.open())     # the other client's patience is as it was
                self.assertEqual(len(keys), 4)

    def test_layers_come_and_go_in_groups(self):
        with self.open() as space:
            layers = space.geometry.layers
            keys = space.keys(self.tokens)
            op = space.store(keys, range(len(keys)), layer_groups=layers)
            for groups in range(1, layers + 1):
                self.assertEqual(space.lookup(keys).blocks, 0)
                self.client.store_layers(op, groups)
            self.assertEqual(self.client.wait(op).status, 0)
            op = space.load(keys, range(len(keys)), layer_groups=layers)
            self.assertTrue(all(self.client.wait_layers(op, group) for group in range(layers)))
            self.assertEqual(self.client.wait(op).status, 0)
            op = space.load(space.keys(self.tokens[:TOKENS], parent=bytes(32)), [0], layer_groups=layers)
            self.assertFalse(self.client.wait_layers(op, 0))
            self.assertEqual(self.client.wait(op).status, -errno.ENOENT)
            with self.refused(errno.EINVAL):
                space.load(keys, range(len(keys)), layer_groups=layers + 1)

    def test_region_of_a_tensor(self):
        class Torch:            # what torch_region() asks of a tensor: a view of each second row
            shape, is_cuda = (4, 8), False
            def stride(self): return (16, 1)
            def element_size(self): return 2
            def data_ptr(self): return 0x1000
        self.assertEqual(kvtier.torch_region(Torch()), kvtier.Region((3 * 16 + 7 + 1) * 2, base=0x1000))
        Torch.is_cuda = True
        self.assertEqual(kvtier.torch_region(Torch()), kvtier.Region((3 * 16 + 7 + 1) * 2, cuda=0x1000))
        Torch.shape = (0, 8)
        with self.assertRaises(ValueError):
            kvtier.torch_region(Torch())

    def test_lookup_only_space(self):
        keys = self.stored(self.open())
        space = self.client.open_space(geometry(self.id(), codec=Codec.RAW))
        self.assertEqual(space.keys(self.tokens)[0], keys[0])
        self.assertEqual(space.lookup(keys).blocks, 4)
        result = self.client.wait(space.prefetch(keys, timeout_ms=9000, session=5, user=3))
        self.assertEqual((result.status, result.user), (0, 3))
        self.assert_refused(lambda: space.prefetch(keys, layer_groups=2), "op.layer_groups is set, which")
        self.assertEqual(self.client.state, kvtier.State.CONNECTED)

    def test_keys_are_a_chain(self):
        space = self.open()
        keys = space.keys(self.tokens)
        self.assertEqual(len(keys), 4)
        rest = space.keys(self.tokens[TOKENS:], parent=keys[0])
        self.assertEqual(list(rest), list(keys[1:]))
        self.assertEqual((keys.parent, keys[1:].parent, keys[1:][1:].parent), (None, keys[0], keys[1]))
        self.assertEqual(len(space.keys(self.tokens[:TOKENS - 1])), 0)

    def test_keys_of_any_buffer_are_those_of_the_list(self):
        space = self.open()
        want = list(space.keys(self.tokens))
        self.assertEqual(len(want), 4)
        unsigned = array.array("I", self.tokens)
        scattered = array.array("I", [t for token in self.tokens for t in (token, 77)])
        for name, tokens in {
            "tuple": tuple(self.tokens), "range": range(len(self.tokens)),
            "array I": unsigned, "array i": array.array("i", self.tokens), "array H": array.array("H", self.tokens),
            "array L": array.array("L", self.tokens), "array q": array.array("q", self.tokens),
            "array Q": array.array("Q", self.tokens), "ctypes": (C.c_uint32 * len(self.tokens))(*self.tokens),
            "memoryview": memoryview(unsigned), "read-only": memoryview(unsigned.tobytes()).cast("I"),
            "bytes": bytes(self.tokens), "every other one": memoryview(scattered)[::2],
            "every other one, 64 bits": memoryview(array.array("q", scattered))[::2], "tensor": Tensor(self.tokens),
        }.items():
            with self.subTest(name):
                self.assertEqual(list(space.keys(tokens)), want)

    def test_a_buffer_of_32_bits_is_read_where_it_lies(self):
        for tokens in (array.array("I", self.tokens), array.array("i", self.tokens)):
            with kvtier._lib.tokens(tokens) as (address, n):
                self.assertEqual((address, n), tokens.buffer_info())
                with self.assertRaises(BufferError):    # held meanwhile
                    tokens.append(1)
            tokens.append(1)

    def test_negative_tokens(self):
        space = self.open()
        tokens = array.array("i", range(-TOKENS, 0))
        self.assertEqual(list(space.keys(tokens)), list(space.keys([t + 2**32 for t in tokens])))
        for wrong in ([-1] * TOKENS, array.array("q", tokens), array.array("h", tokens), [2**32] * TOKENS,
                      array.array("Q", [2**32] * TOKENS)):
            with self.assertRaisesRegex(ValueError, "0 to 4294967295"):
                space.keys(wrong)

    def test_buffers_that_are_no_tokens(self):
        space = self.open()
        with self.assertRaisesRegex(ValueError, "'f'"):
            space.keys(array.array("f", self.tokens))
        with self.assertRaisesRegex(ValueError, "2 dimensions"):
            space.keys(memoryview(bytes(16 * TOKENS)).cast("I", (4, TOKENS)))
        with self.assertRaises(TypeError):
            space.keys(["a"] * TOKENS)
        self.assertEqual(len(space.keys(b"")), 0)
        self.assertEqual(len(space.keys([])), 0)

    def test_numpy(self):
        try:
            import numpy
        except ModuleNotFoundError:
            self.skipTest("no numpy here")
        space = self.open()
        want = list(space.keys(self.tokens))
        for kind in ("uint32", "int32", "int64", "uint64", "uint16"):
            self.assertEqual(list(space.keys(numpy.array(self.tokens, kind))), want)

    def test_absent_blocks_are_a_miss(self):
        space = self.open()
        result = self.client.wait(space.load(space.keys(self.tokens), range(4)))
        self.assertEqual((result.ok, result.blocks), (0, [-errno.ENOENT] * 4))

    def test_unsealed_memory_is_refused(self):
        fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, PAGE)
        with self.refused(errno.EPERM, "(?i)seal"):
            self.client.open_space(geometry(self.id()), [Region(PAGE, fd=fd)], segments())

    def test_bad_geometry_names_the_field(self):
        with self.refused(errno.EINVAL, "block_tokens"):
            self.open(block_tokens=5000)

    def test_poll_and_event_fd(self):
        space = self.open()
        fd = self.client.event_fd()
        keys = space.keys(self.tokens)
        self.fill(4)
        op = space.store(keys, range(4), user=2**64 - 1)
        results = []
        while not results:      # readable means that there may be a result
            self.assertTrue(select.select([fd], [], [], 10)[0])
            results = self.client.poll()
        self.assertEqual([(r.op, r.blocks, r.user) for r in results], [(op.id, [BLOCK_OK] * 4, 2**64 - 1)])

    def test_a_result_is_taken_once(self):
        space = self.open()
        op = space.load(space.keys(self.tokens), range(4))
        self.client.wait(op)
        with self.refused(errno.ENOENT):
            self.client.wait(op, 10)
        with self.refused(errno.ENOENT):
            self.client.cancel(op)

    def test_pages_and_keys_must_match(self):
        space = self.open()
        with self.assertRaisesRegex(ValueError, "4 keys"):
            space.load(space.keys(self.tokens), [0])

    def test_a_misspelt_option_is_a_type_error(self):
        space = self.open()
        keys = space.keys(range(TOKENS))
        for call in (space.store, space.load):
            for wrong in ("ttl", "size", "cuda_stream", "timeout"):
                with self.assertRaisesRegex(TypeError, f"no option {wrong}: the options are .*ttl_s"):
                    call(keys, [0], **{wrong: 60})
        for call in (lambda **wrong: space.hint("retain", keys, **wrong), Geometry, Region, Segment,
                     lambda **wrong: kvtier.Client(self.daemon.socket, **wrong)):
            with self.assertRaises(TypeError):
                call(ttl=60)

    def test_closed_things_say_so(self):
        space = self.open()
        space.close()
        space.close()
        with self.refused(errno.EBADF):
            space.keys(self.tokens)
        self.client.close()
        with self.refused(errno.EBADF):
            self.open()

    def test_a_forked_child_does_no_harm(self):
        space = self.open()
        keys = self.stored(space)

        def child():
            for call in (lambda: space.lookup(keys), lambda: space.load(keys, range(4)), self.client.poll, self.open):
                with self.refused(errno.EPERM):
                    call()
            self.client.close()
            with kvtier.Client(self.daemon.socket) as own:
                with own.open_space(geometry(self.id(), codec=Codec.RAW)) as mine:
                    self.assertEqual(mine.lookup(keys).blocks, 4)

        before = self.daemon.stats()["clients_total"]
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        self.assertEqual(process.exitcode, 0)
        self.assertEqual(space.lookup(keys).blocks, 4)      # the same connection, at once
        self.assertEqual(self.client.wait(space.load(keys, range(4, 8))).blocks, [BLOCK_OK] * 4)
        self.assertEqual(self.daemon.stats()["clients_total"], before + 1)

    def stopped_in_a_load(self, daemon, memory, bytes_of_page):
        """A space of large pages, closed while its daemon stands still in the middle of a load: how many are
        lent, and the client."""
        layers, heads, dim, tokens, pages = 64, 8, 128, 64, 4
        row, plane = heads * dim * 2, tokens * heads * dim * 2
        self.assertEqual(bytes_of_page, 2 * layers * plane)
        parts = [Segment(kind, (2 * layer + i) * plane, bytes_of_page, layer=layer, head_stride=2 * dim,
                         token_stride=row)
                 for layer in range(layers) for i, kind in enumerate((Kind.K, Kind.V))]
        for attempt in range(200):
            client = kvtier.Client(daemon.socket, timeout_ms=2000)
            self.addCleanup(client.close)
            space = client.open_space(Geometry("large", "test", Dtype.FP16, layers, heads, dim, dim, tokens,
                                               codec=Codec.RAW), [memory.region()], parts)
            keys = space.keys(list(range(pages * tokens)))
            if attempt == 0:
                client.wait(space.store(keys, range(pages)), 30000)
            op = space.load(keys, range(pages), timeout_ms=60000)
            time.sleep(random.random() * 0.006)
            daemon.process.send_signal(signal.SIGSTOP)
            time.sleep(0.02)
            running = client.lent()
            lent = space.close()
            if lent:
                self.assertIn((op.id, False), [(page.op, page.ended) for page in running])
                return lent, client
            daemon.process.send_signal(signal.SIGCONT)
            client.close()
        self.fail("the daemon was never stopped in the middle of a load")

    def test_stopped_daemon_and_memory_taken_back(self):
        large = 16 << 20
        _, daemon = started(self.addCleanup, "[host]\nbytes = 192M\n[nvme]\nbytes = 0\n")
        with SharedMemory(5 * large) as memory:
            memory.view[4 * large:4 * large + 5] = b"hello"
            old = memory.address
            lent, client = self.stopped_in_a_load(daemon, memory, large)
            self.assertIn(f"waits for kvtierd (pid {daemon.process.pid}) to answer or end: {lent} pages",
                          client.status)
            self.assertTrue(client.state & kvtier.State.WAITING)
            client.close()
            self.assertEqual((memory.lent(), len(kvtier.lent())), (lent, lent))
            self.assertEqual({page.daemon for page in kvtier.lent()}, {daemon.process.pid})
            memory.take_back()
            self.assertEqual((memory.lent(), kvtier.lent()), (0, []))
            self.assertEqual(memory.address, old)
            self.assertEqual(bytes(memory.view[4 * large:4 * large + 5]), b"hello")
            for page in range(4):
                memory.view[page * large:(page + 1) * large] = bytes([0xa5]) * large
            daemon.process.send_signal(signal.SIGCONT)
            while daemon.stats()["ops"]["outstanding"]:
                time.sleep(0.01)
            daemon.kill()
            for page in range(4):
                self.assertTrue(memory.view[page * large:(page + 1) * large] == bytes([0xa5]) * large)

    def test_lost_daemon(self):
        _, daemon = started(self.addCleanup)
        self.client.close()
        self.client = kvtier.Client(daemon.socket)
        space = self.open()
        keys = self.stored(space)
        daemon.kill()
        try:
            self.assertEqual(self.client.wait(space.load(keys, range(4))).blocks, [-errno.ECONNRESET] * 4)
        except kvtier.Error as error:       # noticed before it was submitted
            self.assertEqual(error.errno, errno.ENOTCONN)
        self.assertEqual(space.lookup(keys).blocks, 0)
        self.client.close()
