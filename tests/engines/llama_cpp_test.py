# SPDX-License-Identifier: Apache-2.0
"""llama_cpp_test.py BUILD - KvtierCache under the real llama-cpp-python and llama.cpp: what one process
computed another one continues from, bit for bit; the engine answers every prompt, whatever becomes of the
daemon; what the README says to run works as it is written."""
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "client" / "examples"), str(TREE / "tests" / "engines")]

from engine_process import Engine, blocks, commands  # noqa: E402
from llama_demo import Daemon  # noqa: E402
from llama_cpp_engine import TEXT, find_model  # noqa: E402

BUILD = Path(sys.argv.pop(1)).resolve()
ENGINE = Path(__file__).with_name("llama_cpp_engine.py")
CONFIG = "[host]\nbytes = 256M\nhuge_pages = no\n[nvme]\nbytes = 0\n"
PATIENT_S = 120


def stopped(process: subprocess.Popen) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class LlamaCppPython(unittest.TestCase):
    def setUp(self) -> None:
        work = tempfile.TemporaryDirectory(prefix="kvtier-engines-")
        self.addCleanup(work.cleanup)
        self.daemon = Daemon(BUILD, Path(work.name), CONFIG)
        self.addCleanup(self.daemon.close)

    def engine(self, **options) -> Engine:
        engine = Engine(ENGINE, self.daemon.socket, json.dumps(options))
        self.addCleanup(engine.kill)
        return engine

    def until(self, holds) -> None:
        end = time.monotonic() + PATIENT_S
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def same(self, answer: dict, as_in: dict) -> None:
        for name in ("text", "held", "logits"):
            self.assertEqual(answer[name], as_in[name], name)

    def test_a_prefix_outlives_its_engine(self):
        q8_0 = 8
        for options in ({}, {"flash_attn": True}, {"flash_attn": True, "type_k": q8_0, "type_v": q8_0}):
            with self.subTest(options):
                cold = self.engine(**options)
                plain = cold.ask(start=0, tokens=210, plain=True)
                first = cold.ask(start=0, tokens=210)
                cold.kill()
                warm = self.engine(**options)
                second = warm.ask(start=0, tokens=210)
                warm.kill()
                self.assertEqual((first["refused"], first["loaded_tokens"], first["stored_blocks"]), ("", 0, 3))
                self.assertEqual((second["loaded_tokens"], second["stored_blocks"]), (192, 0))
                self.same(first, plain)
                self.same(second, plain)
        self.assertEqual(self.daemon.stats()["load"]["blocks_total"], 9)

    def test_a_conversation_that_the_context_holds_is_not_loaded(self):
        engine = self.engine()
        engine.ask(start=0, tokens=200)
        longer = engine.ask(start=0, tokens=260, goes_on=True)
        self.assertEqual((longer["loaded_tokens"], longer["stored_blocks"]), (0, 1))
        self.assertEqual(engine.ask(start=0, tokens=260)["loaded_tokens"], 256)

    def trouble(self, number: int, after) -> None:
        """The daemon gets a signal while the engine has given it an op, or is about to."""
        engine = self.engine()
        plain = engine.ask(start=0, tokens=150, plain=True)
        for i, place in enumerate(("before load", "after load", "before store", "after store")):
            with self.subTest(place):
                self.until(lambda: engine.ask(start=0, tokens=150)["loaded_tokens"] == 128)
                what = {"start": 0 if "load" in place else 300 + i, "tokens": 150}
                wanted = engine.ask(**what, plain=True)
                engine.begin(**what, stop=place)
                self.until(lambda: stopped(engine.process))
                self.daemon.process.send_signal(number)
                os.kill(engine.process.pid, signal.SIGCONT)
                self.same(engine.read(), wanted)
                self.same(engine.ask(start=0, tokens=150), plain)
                after()
        self.until(lambda: engine.ask(start=0, tokens=150)["loaded_tokens"] == 128)

    def test_a_daemon_that_is_killed_costs_hits_alone(self):
        def again():
            self.daemon.kill()
            self.daemon.start()
        self.trouble(signal.SIGKILL, again)

    def test_a_daemon_that_stands_still_costs_hits_alone(self):
        self.trouble(signal.SIGSTOP, lambda: self.daemon.process.send_signal(signal.SIGCONT))

    def test_an_engine_that_starts_first_finds_the_daemon_later(self):
        self.daemon.kill()
        engine = self.engine()
        self.assertNotEqual(engine.ask(start=0, tokens=100)["error"], "")
        self.daemon.start()
        self.until(lambda: engine.ask(start=0, tokens=100)["stored_blocks"] == 1)
        self.assertEqual(engine.ask(start=0, tokens=100)["loaded_tokens"], 64)


class Documented(unittest.TestCase):
    """What client/python/README.md says, as it is written there, in a directory that has a model and a prompt."""
    until = LlamaCppPython.until

    def setUp(self) -> None:
        LlamaCppPython.setUp(self)
        work = tempfile.TemporaryDirectory(prefix="kvtier-engines-")
        self.addCleanup(work.cleanup)
        self.work, self.prompt = work.name, TEXT[:900].decode()
        Path(self.work, "model.gguf").symlink_to(find_model())
        Path(self.work, "prompt.txt").write_text(self.prompt)

    def run_as_written(self, *arguments: str) -> subprocess.Popen:
        with open(Path(os.environ["KVTIER_ENGINE_LOGS"]) / "llama_cpp_documented.log", "ab") as log:
            return subprocess.Popen([sys.executable, "-B", *arguments], cwd=self.work, stdin=subprocess.DEVNULL,
                                    stdout=log, stderr=log, env={**os.environ, "KVTIER_SOCKET": self.daemon.socket})

    def twice(self, run) -> None:
        """Judged by the daemon: what the first process stores the second one loads."""
        first = run()
        stored, loaded = [self.daemon.stats()[name]["blocks_total"] for name in ("store", "load")]
        self.assertGreater(stored, 1)
        self.assertEqual(loaded, 0)
        self.assertEqual(run(), first)
        self.assertGreater(self.daemon.stats()["load"]["blocks_total"], 1)

    def test_the_program(self):
        program, = blocks("llama-cpp-python", "python")
        self.twice(lambda: self.assertEqual(self.run_as_written("-c", program).wait(PATIENT_S), 0))

    def served(self) -> str:
        """The answer of a server that is started for it, and killed."""
        command, = commands("llama-cpp-python")
        self.assertEqual(command[:2], ["python", "-m"])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = self.run_as_written(*command[1:], "--port", str(port))
        try:
            body = json.dumps({"prompt": self.prompt, "max_tokens": 4, "temperature": 0}).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body,
                                             {"Content-Type": "application/json"})

            def up():
                self.assertIsNone(server.poll(), "it ended; see llama_cpp_documented.log")
                with socket.socket() as probe:
                    return probe.connect_ex(("127.0.0.1", port)) == 0

            self.until(up)
            with urllib.request.urlopen(request, timeout=PATIENT_S) as answer:
                return json.load(answer)["choices"][0]["text"]
        finally:
            server.kill()
            server.wait()

    def test_the_server(self):
        self.twice(self.served)


class InC(unittest.TestCase):
    """client/examples/llama_kvtier.c, with the library and the headers that llama-cpp-python has installed."""
    setUp = LlamaCppPython.setUp

    def test_a_prefix_outlives_its_engine(self):
        headers = Path(sysconfig.get_path("platlib")) / "include"
        libraries = Path(importlib.util.find_spec("llama_cpp").origin).parent / "lib"
        if not (headers / "llama.h").exists():
            self.skipTest(f"there is no {headers}/llama.h")
        with tempfile.TemporaryDirectory() as work:
            program, prompt = Path(work) / "llama_kvtier", Path(work) / "prompt.txt"
            subprocess.run(["gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I", TREE / "client",
                            "-I", headers, TREE / "client/examples/llama_kvtier.c", "-o", program, "-L", libraries,
                            "-lllama", "-lggml", "-lggml-base", BUILD / "libkvtier.so.0",
                            f"-Wl,-rpath,{libraries}:{BUILD}"], check=True)
            prompt.write_bytes(TEXT[:900])

            def run():
                done = subprocess.run([program, find_model(), prompt, "8"], capture_output=True, text=True, check=True,
                                      timeout=PATIENT_S, env={**os.environ, "KVTIER_SOCKET": self.daemon.socket})
                return done.stdout, int(done.stderr.partition(" tokens came")[0].split()[-3])

            (cold, none), (warm, some) = run(), run()
            self.daemon.kill()
            alone, away = run()
            self.assertEqual((none, some > 0 and some % 64, away), (0, 0, 0))
            self.assertEqual((warm, alone), (cold, cold))


if __name__ == "__main__":
    unittest.main(verbosity=2)
