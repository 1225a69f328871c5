# SPDX-License-Identifier: Apache-2.0
"""world.py - what tests in Python have in common: each case has a kvtierd of its own, on the build in $BUILD.

Who runs such a test (lib/python.sh, lib/llama.sh, test-engines.sh) puts this directory, the demo's and kvtier's into
PYTHONPATH.
"""
import os
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from llama_demo import Daemon

TREE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["BUILD"])
PATIENT_S = 120
os.environ["XDG_CACHE_HOME"] = str(BUILD / "tests" / "cache")       # not its user's


def host(mib: int) -> str:
    """A daemon's configuration: so much host memory, and nothing else."""
    return f"[host]\nbytes = {mib}M\nslab_bytes = 4M\nhuge_pages = no\n[nvme]\nbytes = 0\n"


def started(cleanup, config: str = host(16)) -> tuple:
    """A directory, and a kvtierd in it. cleanup: addCleanup() of a case, or addClassCleanup()."""
    work = tempfile.TemporaryDirectory(prefix="kvtier-test-")
    cleanup(work.cleanup)
    daemon = Daemon(BUILD, Path(work.name), config)
    cleanup(daemon.close)
    return Path(work.name), daemon


class Waits(unittest.TestCase):
    def until(self, holds, every_s: float = 0.02) -> None:
        """Asks again and again until it holds."""
        end = time.monotonic() + PATIENT_S
        while not holds():
            self.assertLess(time.monotonic(), end, "it does not come")
            time.sleep(every_s)


def one_name(cleanup) -> None:
    """Weights in files have the name by their inodes and times alone; sys_python_weights has the change of the name."""
    from kvtier.adapters.weights import Weights
    only = mock.patch.object(Weights, "_learn", lambda names: None)
    only.start()
    cleanup(only.stop)


class World(Waits):
    settings = host(16)

    def setUp(self) -> None:
        self.work, self.daemon = started(self.addCleanup, self.settings)
