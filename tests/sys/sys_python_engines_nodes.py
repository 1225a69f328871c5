# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=15
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: a vLLM request hits what only another node has stored: the scheduler waits until Redis was asked, once a request,
not longer than it may, and only where the daemon has a Redis.
Method: kvtier.vllm over doubles of torch and of vLLM's classes, two kvtierd, a redis-server.
"""
import signal
import sys
import tempfile
from pathlib import Path
from unittest import mock

import vllm_double

vllm_double.install()

from kvtier import Client, Space, Tier  # noqa: E402
from kvtier import vllm as adapter  # noqa: E402
from llama_demo import Daemon, Redis  # noqa: E402
from vllm_double import Engine, hybrid  # noqa: E402
from world import BUILD, Waits, host  # noqa: E402

REDIS = Redis.find()
if not REDIS:
    print("skipped: no redis-server")
    sys.exit(77)


class Nodes(Waits):
    def setUp(self) -> None:
        work = tempfile.TemporaryDirectory(prefix="kvtier-test-")
        self.addCleanup(work.cleanup)
        self.work, self.tokens = Path(work.name), list(range(83))       # ten full blocks
        self.redis = Redis(REDIS, self.work)
        self.addCleanup(self.redis.close)
        self.prefetches = 0
        prefetch = Space.prefetch

        def counted(space, keys):
            self.prefetches += 1
            return prefetch(space, keys)

        patch = mock.patch.object(Space, "prefetch", counted)
        patch.start()
        self.addCleanup(patch.stop)

    def node(self, name: str, shares: bool = True) -> Daemon:
        daemon = Daemon(BUILD, self.work / name, self.redis.config().replace("256M", "16M") if shares else host(16))
        self.addCleanup(daemon.close)
        if shares:
            daemon.tier("redis")
        return daemon

    def engine(self, daemon: Daemon, how: dict = {}, **extra) -> Engine:
        options = {"socket": str(daemon.socket), "codec": "raw", "timeout_ms": 2000, "model": "tiny", **extra}
        engine = Engine(adapter.KvtierConnector, options, **how)
        self.addCleanup(engine.close)
        return engine.connected()

    def warm(self) -> None:
        """Another node has stored the prompt, and Redis has it."""
        first = self.node("first")
        self.assertEqual(self.engine(first).answer(self.tokens), 0)
        self.until(lambda: first.stats()["tiers"]["redis"]["written_blocks_total"] >= 10)
        self.prefetches = 0

    def test_a_prompt_of_another_node_is_loaded(self):
        self.warm()
        second = self.node("second")
        engine = self.engine(second, prefetch_ms=600000)    # it ends when it is over, not with its time
        self.assertEqual(engine.answer(self.tokens + [7] * 9), 10)
        self.assertEqual(engine.answer(self.tokens), 10)
        self.assertEqual(self.prefetches, 1, "never for blocks that are here")
        self.until(lambda: second.stats()["prefetch"]["blocks_total"] == 10)

    def test_a_state_of_another_node_is_found(self):
        """Two blocks in front of the prompt's last one."""
        first, second = self.node("first"), self.node("second")
        self.engine(first, hybrid()).computes_states(self.tokens, 7)
        self.until(lambda: first.stats()["tiers"]["redis"]["written_blocks_total"] >= 11)
        self.assertTrue(self.engine(second, hybrid(), prefetch_ms=600000).loads_states(self.tokens, 7))

    def test_a_redis_that_answers_at_once_is_waited_for(self):
        self.warm()
        second = self.node("second")
        engine = self.engine(second, prefetch_ms=600000)
        prefetch = Space.prefetch

        def over(space, keys):      # the result is there when the scheduler looks for it
            op = prefetch(space, keys)
            self.until(lambda: second.stats()["prefetch"]["blocks_total"] == 10)
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
        second = self.node("second")
        engine = self.engine(second, prefetch_ms=50)
        self.redis.process.send_signal(signal.SIGSTOP)
        request = engine.request(self.tokens)
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (None, False))
        self.assertEqual(engine.matched(request), 0)
        self.redis.process.send_signal(signal.SIGCONT)
        self.until(lambda: second.stats()["prefetch"]["blocks_total"] == 10)
        self.assertEqual(engine.answer(self.tokens), 10, "what came later serves the next request")

    def test_a_request_that_is_aborted_meanwhile_is_forgotten(self):
        self.warm()
        second = self.node("second")
        engine = self.engine(second)
        self.redis.process.send_signal(signal.SIGSTOP)
        request = engine.request(self.tokens)
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (None, False))
        self.assertEqual(engine.scheduler.request_finished(request, []), (False, None))
        self.redis.process.send_signal(signal.SIGCONT)
        self.assertEqual(engine.answer(self.tokens), 10)
        self.assertEqual(len(engine.scheduler._scheduler._under_way), 0)

    def test_a_daemon_that_dies_meanwhile_is_a_miss(self):
        second = self.node("second")
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
