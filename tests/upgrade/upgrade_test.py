# SPDX-License-Identifier: Apache-2.0
"""
Goal: kvtierd and libkvtier of this tree and of the release before go together, whichever is upgraded first, and
what one has written to NVMe or Redis the other reads. Method: programs and libraries of both, built (RELEASES), and
engines that live through the exchange of their daemon. Each case is run for each tree of RELEASES.
"""
import os
import signal
import subprocess
import time
import unittest
from pathlib import Path

from engine_process import Engine
from llama_demo import Daemon, Redis
from world import BUILD, TREE, Waits, host

HERE = Path(__file__).resolve().parent
CHAIN = 64
BLOCKS_ON_DISK = 8000
DISK = host(64).replace("[nvme]\nbytes = 0", "[nvme]\nbytes = 512M")


class Programs:
    """A tree's programs, and an engine of its library and binding."""

    def __init__(self, tree: Path, build: Path) -> None:
        self.tree, self.build = tree, build

    def engine(self, case: unittest.TestCase, daemon: Daemon) -> Engine:
        engine = Engine(HERE / "upgrade_engine.py", daemon.socket,
                        PYTHONPATH=f"{self.tree}/client/python", KVTIER_LIBRARY=f"{self.build}/libkvtier.so.0")
        case.addCleanup(engine.kill)
        return engine

    def ctl(self, daemon: Daemon, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([self.build / "kvtierctl", "--socket", daemon.socket, *words], timeout=60, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


NEW = Programs(TREE, BUILD)


class Cases(Waits):
    old: Programs
    released: bool

    def daemon(self, programs: Programs, config: str = host(16), name: str = "node") -> Daemon:
        daemon = Daemon(programs.build, Path(os.environ["KVTIER_ENGINE_LOGS"]) / self.id() / name, config)
        self.addCleanup(daemon.close)
        return daemon

    def exchange(self, daemon: Daemon, programs: Programs) -> None:
        """The daemon ends as at an upgrade, and the other one starts on its directories."""
        daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.process.wait(60), 0)
        daemon.build = programs.build
        daemon.start()

    def all_of(self, answer: dict, blocks: int) -> None:
        self.assertEqual(answer, {"ok": blocks, "wrong": 0})

    def speak(self, library: Programs, daemon: Programs) -> None:
        """An engine of this library stores and loads, and finds what one of the daemon's own has stored."""
        node = self.daemon(daemon)
        engine, other = library.engine(self, node), daemon.engine(self, node)
        self.all_of(engine.ask(do="store", chains=2), 2 * CHAIN)
        for one in (engine, other):
            self.all_of(one.ask(do="lookup", chains=2), 2 * CHAIN)
            self.all_of(one.ask(do="load", chains=2), 2 * CHAIN)
        self.all_of(other.ask(do="store", chains=4), 4 * CHAIN)
        self.all_of(engine.ask(do="load", chains=4), 4 * CHAIN)

    def test_old_library_new_daemon(self):
        self.speak(self.old, NEW)

    def test_new_library_old_daemon(self):
        self.speak(NEW, self.old)

    def lives(self, library: Programs, before: Programs, after: Programs) -> None:
        """The engine's requests are answered all the while, and then it has its blocks again, from NVMe."""
        node = self.daemon(before, DISK)
        engine = library.engine(self, node)
        self.all_of(engine.ask(do="store", chains=4), 4 * CHAIN)
        engine.begin(do="serve", chains=4)
        self.exchange(node, after)
        began = time.monotonic()
        served = engine.read()
        self.assertLess(time.monotonic() - began, 2, "from the start of the daemon to the first hit")
        self.assertTrue(served["back"], served)
        self.assertNotIn("wrong", {name for name, n in served.items() if n})
        self.assertLess(served["longest_s"], 30)    # an op has 2 s
        self.all_of(engine.ask(do="load", chains=4), 4 * CHAIN)

    def test_engine_lives_through_the_upgrade_of_its_daemon(self):
        self.lives(self.old, self.old, NEW)

    def test_new_engine_lives_through_the_upgrade_of_its_daemon(self):
        self.lives(NEW, self.old, NEW)

    def test_engine_lives_through_a_restart(self):
        self.lives(NEW, NEW, NEW)

    def test_engine_lives_through_an_upgrade_that_is_taken_back(self):
        self.lives(NEW, NEW, self.old)

    def test_disk_of_the_release_before(self):
        chains = BLOCKS_ON_DISK // CHAIN
        node = self.daemon(self.old, DISK)
        engine = self.old.engine(self, node)
        self.all_of(engine.ask(do="store", chains=chains), BLOCKS_ON_DISK)
        engine.kill()
        self.exchange(node, NEW)
        self.until(lambda: node.tier("nvme")["blocks"] == BLOCKS_ON_DISK)
        self.all_of(NEW.engine(self, node).ask(do="load", chains=chains), BLOCKS_ON_DISK)

    @unittest.skipUnless(Redis.find(), "no redis-server")
    def test_redis_shared_by_both(self):
        redis = Redis(Redis.find(), Path(os.environ["KVTIER_ENGINE_LOGS"]))
        self.addCleanup(redis.close)
        nodes = [self.daemon(programs, redis.config(), name) for programs, name in ((self.old, "old"), (NEW, "new"))]
        engines = [self.old.engine(self, nodes[0]), NEW.engine(self, nodes[1])]
        for chains, writer, reader in ((1, *engines), (2, *reversed(engines))):
            self.all_of(writer.ask(do="store", chains=chains), chains * CHAIN)
            self.until(lambda: reader.ask(do="load", chains=chains) == {"ok": chains * CHAIN, "wrong": 0})

    def test_kvtierctl_of_the_other_release_says_so(self):
        if not self.released:
            self.skipTest("a tree between releases")
        for ctl, daemon in ((self.old, NEW), (NEW, self.old)):
            node = self.daemon(daemon)
            for command in ("status", "stats"):
                said = ctl.ctl(node, command)
                self.assertEqual(said.returncode, 3, said.stdout)
                self.assertIn("use the kvtierctl that came with", said.stdout)
            self.assertEqual(ctl.ctl(node, "clients").stdout, "no clients\n")
            if ctl is NEW:
                self.assertRegex(ctl.ctl(node, "version").stdout, r"kvtierd +0\.\d+\.\d+, pid \d+")
            node.close()


def load_tests(loader, _tests, _pattern):
    suite = unittest.TestSuite()
    for i, tree in enumerate(map(Path, os.environ["KVTIER_RELEASES"].split())):
        case = type(f"Release_{tree.name}", (Cases,), {"old": Programs(tree, tree / "build"), "released": i == 0})
        suite.addTests(loader.loadTestsFromTestCase(case))
    return suite
