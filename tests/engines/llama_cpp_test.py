# SPDX-License-Identifier: Apache-2.0
"""llama_cpp_test.py - KvtierCache under the real llama-cpp-python and llama.cpp. A process continues bit for bit from
what another one computed, the engine answers every prompt whatever becomes of the daemon, and what the README says to
run works as it is written."""
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import unittest
from pathlib import Path

from engine_process import MOMENTS, Engine, Trouble, blocks, commands, served
from llama_cpp_engine import TEXT, find_model
from world import BUILD, PATIENT_S, TREE, World, host

ENGINE = Path(__file__).with_name("llama_cpp_engine.py")


class OneDaemon(World):
    settings = host(256)


class LlamaCppPython(Trouble, OneDaemon):
    def engine(self, **options) -> Engine:
        engine = Engine(ENGINE, self.daemon.socket, json.dumps(options))
        self.addCleanup(engine.kill)
        return engine

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
        engine = self.engine()
        plain = engine.ask(start=0, tokens=150, plain=True)
        for i, (op, moment) in enumerate(itertools.product(("load", "store"), MOMENTS)):
            with self.subTest(f"{moment} {op}"):
                self.until(lambda: engine.ask(start=0, tokens=150)["loaded_tokens"] == 128)
                what = {"start": 0 if op == "load" else 300 + i, "tokens": 150}
                wanted = engine.ask(**what, plain=True)
                engine.begin(**what, stop=op)
                engine.strikes(self.daemon.process, number, moment)
                self.same(engine.read(), wanted)
                self.same(engine.ask(start=0, tokens=150), plain)
                after()
        self.until(lambda: engine.ask(start=0, tokens=150)["loaded_tokens"] == 128)

    def test_an_engine_that_starts_first_finds_the_daemon_later(self):
        self.daemon.kill()
        engine = self.engine()
        self.assertNotEqual(engine.ask(start=0, tokens=100)["error"], "")
        self.daemon.start()
        self.until(lambda: engine.ask(start=0, tokens=100)["stored_blocks"] == 1)
        self.assertEqual(engine.ask(start=0, tokens=100)["loaded_tokens"], 64)


class Documented(OneDaemon):
    """Runs what client/python/README.md says, as it is written, in a directory that has a model and a prompt."""

    def setUp(self) -> None:
        super().setUp()
        self.prompt = TEXT[:900].decode()
        (self.work / "model.gguf").symlink_to(find_model())
        (self.work / "prompt.txt").write_text(self.prompt)
        self.how = {"cwd": self.work, "env": {**os.environ, "KVTIER_SOCKET": self.daemon.socket}}

    def twice(self, run) -> None:
        """The second process loads what the first one stores, as the daemon counts it."""
        first = run()
        stored, loaded = [self.daemon.stats()[name]["blocks_total"] for name in ("store", "load")]
        self.assertGreater(stored, 1)
        self.assertEqual(loaded, 0)
        self.assertEqual(run(), first)
        self.assertGreater(self.daemon.stats()["load"]["blocks_total"], 1)

    def test_the_program(self):
        program, = blocks("llama-cpp-python", "python")
        self.twice(lambda: subprocess.run([sys.executable, "-B", "-c", program], check=True, timeout=PATIENT_S,
                                          **self.how).returncode)

    def test_the_server(self):
        command, = commands("llama-cpp-python")
        self.assertEqual(command[:2], ["python", "-m"])
        body = {"prompt": self.prompt, "max_tokens": 4, "temperature": 0}
        self.twice(lambda: served(command[1:], "llama_cpp_documented.log", body, **self.how))


class InC(OneDaemon):
    """client/examples/llama_kvtier.c, built with the library and the headers that llama-cpp-python has installed."""

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
