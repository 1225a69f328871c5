# SPDX-License-Identifier: Apache-2.0
"""engine_process.py - how the tests of this folder talk to an engine of their own, in a process of its own.

A question is a JSON object on a line, so is an answer. They travel by descriptors of their own, as engines write to
standard output what they like.
"""
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Callable


class Engine:
    """The test's end. The program is run with the number of each descriptor and these arguments."""

    def __init__(self, program: Path, *arguments: str, **environment: str) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.log = Path(os.environ["KVTIER_ENGINE_LOGS"]) / f"{program.stem}.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-B", str(program), str(theirs[0]), str(ours[1]), *arguments], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, pass_fds=(theirs[0], ours[1]), env={**os.environ, **environment},
                start_new_session=True)
        os.close(theirs[0])
        os.close(ours[1])
        self._to, self._from = os.fdopen(theirs[1], "w"), os.fdopen(ours[0])
        self.read()

    def read(self) -> dict:
        line = self._from.readline()
        if not line:
            raise AssertionError(f"the engine ended with {self.process.wait()}; its log is {self.log}")
        return json.loads(line)

    def begin(self, **question) -> None:
        self._to.write(json.dumps(question) + "\n")
        self._to.flush()

    def ask(self, **question) -> dict:
        self.begin(**question)
        return self.read()

    def kill(self) -> None:
        """Twice is fine."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)     # an engine may have processes of its own
        self.process.wait()
        self._from.close()
        try:
            self._to.close()
        except BrokenPipeError:
            pass


def serve(answer: Callable[[dict], dict]) -> None:
    """The engine's end: answers until there are no more questions."""
    questions, answers = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in questions:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
