# SPDX-License-Identifier: Apache-2.0
"""The cases of sys_python_engines_nodes.sh."""
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "client" / "examples"), str(TREE / "client" / "python")]

import torch_double  # noqa: E402,F401
import vllm_double  # noqa: E402

vllm_double.install()

from kvtier import Client, Space, Tier  # noqa: E402
from kvtier import vllm as adapter  # noqa: E402
from llama_demo import Daemon  # noqa: E402
from vllm_double import Engine  # noqa: E402

BUILD = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else TREE / "build"
PATIENT_S = 60
CONFIG = "[host]\nbytes = 64M\nslab_bytes = 4M\nhuge_pages = no\n[nvme]\nbytes = 0\n"
SHARED = "[redis]\nendpoints = unix:{socket}\nsecret_file = {secret}\n{more}"


class Redis:
    """A redis-server without a disk."""

    def __init__(self, work: Path) -> None:
        self.socket = work / "redis.sock"       # no other test can have it
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no",
             "--dir", str(work)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        end = time.monotonic() + PATIENT_S
        while not self.socket.exists():
            assert self.process.poll() is None and time.monotonic() < end, "redis-server does not start"
            time.sleep(0.02)

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class Nodes(unittest.TestCase):
    def setUp(self) -> None:
        work = tempfile.TemporaryDirectory(prefix="kvtier-test-")
        self.addCleanup(work.cleanup)
        self.work, self.tokens = Path(work.name), list(range(83))       # ten full blocks
        self.redis = Redis(self.work)
        self.addCleanup(self.redis.close)
        self.prefetches = 0
        prefetch = Space.prefetch

        def counted(space, keys):
            self.prefetches += 1
            return prefetch(space, keys)

        patch = mock.patch.object(Space, "prefetch", counted)
        patch.start()
        self.addCleanup(patch.stop)
        self.secret = self.work / "secret"
        self.secret.write_text("a secret that nodes share, of thirty-two bytes and more\n")
        self.secret.chmod(0o600)

    def node(self, name: str, more: str = "", shares: bool = True) -> Daemon:
        shared = SHARED.format(socket=self.redis.socket, secret=self.secret, more=more) if shares else ""
        daemon = Daemon(BUILD, self.work / name, CONFIG + shared)
        self.addCleanup(daemon.close)
        end = time.monotonic() + PATIENT_S
        while shares and daemon.stats()["tiers"]["redis"]["state"] != "up":
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        return daemon

    def engine(self, daemon: Daemon, **extra) -> Engine:
        options = {"socket": str(daemon.socket), "codec": "raw", "timeout_ms": 2000, "model": "tiny", **extra}
        engine = Engine(adapter.KvtierConnector, options)
        self.addCleanup(engine.close)
        return engine

    def until(self, daemon: Daemon, holds) -> None:
        end = time.monotonic() + PATIENT_S
        while not holds(daemon.stats()):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def warm(self) -> None:
        """Another node has stored the prompt, and Redis has it."""
        first = self.node("first")
        self.assertEqual(self.engine(first).answer(self.tokens), 0)
        self.until(first, lambda stats: stats["tiers"]["redis"]["written_blocks_total"] >= 10)
        self.prefetches = 0

    def test_a_prompt_of_another_node_is_loaded(self):
        self.warm()
        second = self.node("second")
        engine = self.engine(second, prefetch_ms=600000)    # it ends when it is over, not with its time
        self.assertEqual(engine.answer(self.tokens + [7] * 9), 10)
        self.assertEqual(engine.answer(self.tokens), 10)
        self.assertEqual(self.prefetches, 1, "never for blocks that are here")
        self.until(second, lambda stats: stats["prefetch"]["blocks_total"] == 10)

    def test_a_redis_that_answers_at_once_is_waited_for(self):
        self.warm()
        second = self.node("second")
        engine = self.engine(second, prefetch_ms=600000)
        prefetch = Space.prefetch

        def over(space, keys):      # the result is there when the scheduler looks for it
            op = prefetch(space, keys)
            self.until(second, lambda stats: stats["prefetch"]["blocks_total"] == 10)
            return op

        with mock.patch.object(Space, "prefetch", over):
            self.assertEqual(engine.answer(self.tokens), 10)

    def test_a_request_asks_once(self):
        engine = self.engine(self.node("only"))
        request = engine.request(self.tokens)
        for _ in range(3):
            self.assertEqual(engine.matched(request), 0)
        self.assertEqual(self.prefetches, 1)

    def test_no_request_waits_where_it_may_not(self):
        self.warm()
        engine = self.engine(self.node("second"), prefetch_ms=0)
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(engine.request(self.tokens), 0), (0, False))

    def test_a_daemon_without_redis_is_not_asked(self):
        engine = self.engine(self.node("alone", shares=False))
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(engine.request(self.tokens), 0), (0, False))
        self.assertEqual(self.prefetches, 0)

    def test_a_redis_that_stands_still_costs_the_wait_alone(self):
        self.warm()
        second = self.node("second", "timeout_ms = 60000\n")
        engine = self.engine(second, prefetch_ms=50)
        self.redis.process.send_signal(signal.SIGSTOP)
        request = engine.request(self.tokens)
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (None, False))
        self.assertEqual(engine.matched(request), 0)
        self.redis.process.send_signal(signal.SIGCONT)
        self.until(second, lambda stats: stats["prefetch"]["blocks_total"] == 10)
        self.assertEqual(engine.answer(self.tokens), 10, "what came later serves the next request")

    def test_a_request_that_is_aborted_meanwhile_is_forgotten(self):
        self.warm()
        second = self.node("second", "timeout_ms = 60000\n")
        engine = self.engine(second)
        self.redis.process.send_signal(signal.SIGSTOP)
        request = engine.request(self.tokens)
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (None, False))
        self.assertEqual(engine.scheduler.request_finished(request, []), (False, None))
        self.redis.process.send_signal(signal.SIGCONT)
        self.assertEqual(engine.answer(self.tokens), 10)
        self.assertEqual(len(engine.scheduler._scheduler._under_way), 0)

    def test_a_daemon_that_dies_meanwhile_is_a_miss(self):
        second = self.node("second", "timeout_ms = 60000\n")
        engine = self.engine(second)
        self.redis.process.send_signal(signal.SIGSTOP)
        request = engine.request(self.tokens)
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (None, False))
        second.kill()
        self.assertEqual(engine.matched(request), 0)
        self.redis.process.send_signal(signal.SIGCONT)

    def test_a_client_knows_the_tiers_of_its_daemon(self):
        for name, shares in (("shares", True), ("alone", False)):
            with Client(str(self.node(name, shares=shares).socket)) as client:
                self.assertEqual(client.tiers, Tier.HOST | (Tier.REDIS if shares else Tier(0)))
        with self.assertRaises(OSError):
            print(client.tiers)


if __name__ == "__main__":
    unittest.main()
