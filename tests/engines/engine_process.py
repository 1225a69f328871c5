# SPDX-License-Identifier: Apache-2.0
"""engine_process.py - how the tests of this folder talk to an engine of their own, in a process of its own.

A question is a JSON object on a line, and so is an answer. They have descriptors of their own, as engines write to
standard output what they like.
"""
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Callable

PATIENT_S = 120
MOMENTS = ("before", "while", "after")


class Engine:
    """The test's end. The program is run with the number of each descriptor and these arguments."""

    def __init__(self, program: Path, *arguments: str, **environment: str) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.log = Path(os.environ["KVTIER_ENGINE_LOGS"]) / f"{program.stem}.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-B", str(program), str(theirs[0]), str(ours[1]), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(theirs[0], ours[1]),
                env={**os.environ, **environment},
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

    def strikes(self, daemon: subprocess.Popen, number: int, moment: str) -> None:
        """Sends the daemon a signal: before the engine gives it the op of stops_around(), while it has the op and has
        not begun it, or at any time after."""
        for now in ("before", "after"):
            self._until_stopped()
            if moment == "while" and now == "before":
                daemon.send_signal(signal.SIGSTOP)
            elif moment == now or moment == "while":
                daemon.send_signal(number)
            os.kill(self.process.pid, signal.SIGCONT)

    def _until_stopped(self) -> None:
        end, stat = time.monotonic() + PATIENT_S, Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the engine gave the daemon no such op; its log is {self.log}")
            time.sleep(0.001)

    def kill(self) -> None:
        """Ends the process. It may be called twice."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)     # an engine may have processes of its own
        self.process.wait()
        self._from.close()
        try:
            self._to.close()
        except BrokenPipeError:
            pass


class Trouble:
    """The cases of every engine. trouble() strikes the daemon with a signal around the load of a prompt and around the
    store of another one, each at all MOMENTS, and calls after() when the engine has answered."""

    def test_a_daemon_that_is_killed_costs_hits_alone(self):
        def again():
            self.daemon.kill()
            self.daemon.start()
        self.trouble(signal.SIGKILL, again)

    def test_a_daemon_that_stands_still_costs_hits_alone(self):
        self.trouble(signal.SIGSTOP, lambda: self.daemon.process.send_signal(signal.SIGCONT))


@contextlib.contextmanager
def serving(command: list, log: str, **how):
    """A server with a port of its own, which is killed at the end; the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(Path(os.environ["KVTIER_ENGINE_LOGS"]) / log, "ab") as to:
        server = subprocess.Popen([sys.executable, "-B", *command, "--port", str(port)], stdin=subprocess.DEVNULL,
                                  stdout=to, stderr=to, start_new_session=True, **how)
    try:
        end = time.monotonic() + 3 * PATIENT_S
        while True:
            assert server.poll() is None and time.monotonic() < end, f"it serves nothing; see {log}"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def completed(port: int, body: dict) -> str:
    """The text that a server answers to /v1/completions, whole or in parts."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENT_S) as answer:
        if not body.get("stream"):
            return json.load(answer)["choices"][0]["text"]
        parts = [line[6:] for line in answer if line.startswith(b"data: {")]
    return "".join(json.loads(part)["choices"][0]["text"] for part in parts)


def served(command: list, log: str, body: dict, **how) -> str:
    """The answer of a server that is started for it."""
    with serving(command, log, **how) as port:
        return completed(port, body)


def blocks(section: str, language: str) -> list:
    """The blocks of code in a section of client/python/README.md."""
    readme = Path(__file__).resolve().parents[2] / "client" / "python" / "README.md"
    text = readme.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [block.partition("```")[0] for block in text.split(f"```{language}\n")[1:]]


def commands(section: str) -> list:
    """The shell commands of a section, each as a list of arguments."""
    return [shlex.split(block.replace("\\\n", " ")) for block in blocks(section, "sh")]


def stops_around(name: str) -> None:
    """Makes the process stop itself right before it gives the next op to the daemon, and right after. name: "load" or
    "store", the kind of the op."""
    from kvtier import Space
    submit = getattr(Space, name)

    def stop() -> None:
        """A signal to the process could be another thread's, and this one would go on for a moment."""
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def stopping(space, *arguments, **options):
        setattr(Space, name, submit)
        stop()
        try:
            return submit(space, *arguments, **options)
        finally:
            stop()

    setattr(Space, name, stopping)


def serve(answer: Callable[[dict], dict]) -> None:
    """The engine's end: answers until there are no more questions."""
    questions, answers = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in questions:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
