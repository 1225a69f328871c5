# SPDX-License-Identifier: Apache-2.0
"""The cases of sys_llama_server.sh."""
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
import unittest
from pathlib import Path

from engine_process import MOMENTS, Engine, Trouble, blocks
from kvtier.llama_server import SlotFile
from kvtier.adapters.llama_state import LayoutError
from kvtier.adapters.weights import SETTLED_S
from llama_engine import find_model
from world import PATIENT_S, TREE, World

PROCESS = Path(__file__).with_name("llama_server_process.py")
TEXT = (TREE / "LICENSE").read_text()
BLOCK_TOKENS = 16       # a token takes the server some 5 ms: blocks and prompts are short


def lora() -> bytes:
    """A file of an adapter that turns the values of the first layer over: of rank 1."""
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    width, rows = 576, 192      # of SmolLM2-135M: of a token, and of its values in a layer
    of = random.Random(0)
    words = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    data = struct.pack("<4sIQQ", b"GGUF", 3, 2, len(words) + 1)
    data += b"".join(text(name) + struct.pack("<I", 8) + text(word) for name, word in words.items())
    data += text("adapter.lora.alpha") + struct.pack("<If", 6, 1)
    for name, shape, at in (("a", (width, 1), 0), ("b", (1, rows), 4 * width)):
        data += text(f"blk.0.attn_v.weight.lora_{name}") + struct.pack("<IQQIQ", 2, *shape, 0, at)
    data += bytes(-len(data) % 32)
    return data + struct.pack(f"<{width + rows}f", *[of.uniform(-1, 1) for _ in range(width + rows)])


class Server(Trouble, World):
    def setUp(self) -> None:
        super().setUp()
        self.slots = self.work / "slots"
        self.slots.mkdir()
        os.environ["KVTIER_ENGINE_LOGS"] = str(self.work)

    def server(self, slots: bool = True, **options) -> Engine:
        engine = Engine(PROCESS, self.daemon.socket, f"{self.slots}/" if slots else "", str(BLOCK_TOKENS),
                        json.dumps(options))
        self.addCleanup(engine.kill)
        return engine

    @staticmethod
    def question(start: int, **body) -> dict:
        """A prompt of two or three blocks."""
        return {"path": "/completion",
                "body": {"prompt": TEXT[start:start + 200], "n_predict": 4, "temperature": 0, "n_probs": 2, **body}}

    def test_a_prefix_outlives_its_server(self):
        cold = self.server()
        first = cold.ask(**self.question(0))
        self.assertEqual((first["refused"], first["loaded_tokens"], first["error"]), ("", 0, ""))
        self.assertGreater(first["stored_blocks"], 1)
        again = cold.ask(**self.question(0, n_predict=8))
        cold.kill()
        warm = self.server()
        second = warm.ask(**self.question(0))
        self.assertEqual(second["loaded_tokens"], BLOCK_TOKENS * first["stored_blocks"])
        self.assertGreaterEqual(second["answer"]["timings"]["cache_n"], second["loaded_tokens"])
        for name in ("content", "completion_probabilities"):    # its batches are a block long: bit for bit
            self.assertEqual(second["answer"][name], first["answer"][name])
        self.assertTrue(again["answer"]["content"].startswith(first["answer"]["content"]))
        self.assertEqual(list(self.slots.iterdir()), [])

    def test_chats_share_what_they_share(self):
        server, path = self.server(), "/v1/chat/completions"
        turns = [{"role": "user", "content": TEXT[:150]}]
        first = server.ask(path=path, body={"messages": turns, "max_tokens": 4, "temperature": 0})
        turns += [first["answer"]["choices"][0]["message"], {"role": "user", "content": "Why?"}]
        other = self.server().ask(path=path, body={"messages": turns, "max_tokens": 4, "temperature": 0})
        self.assertEqual(other["loaded_tokens"], BLOCK_TOKENS * first["stored_blocks"])
        parts = [{"role": "user", "content": [{"type": "text", "text": text} for text in (TEXT[:150], TEXT[150:250])]}]
        stored = server.ask(path=path, body={"messages": parts, "max_tokens": 1, "temperature": 0})
        self.assertGreater(stored["stored_blocks"], 0)
        body = {"messages": parts, "max_tokens": 3, "temperature": 0, "stream": True}
        fresh = self.server(key="secret")
        streamed = fresh.ask(path=path, body=body)
        self.assertEqual(streamed["loaded_tokens"] // BLOCK_TOKENS, (stored["prompt_tokens"] - 1) // BLOCK_TOKENS)
        again = server.ask(path=path, body={**body, "stream": False})["answer"]["choices"][0]["message"]["content"]
        deltas = [part["choices"][0]["delta"].get("content") or "" for part in streamed["answer"]]
        self.assertEqual("".join(deltas), again)

    def test_the_scales_of_an_adapter_change(self):
        adapter = Path(self.slots.parent) / "adapter.gguf"
        adapter.write_bytes(lora())
        server = self.server(lora=str(adapter))
        answers = {}
        for scale in (1.0, 0.0, 1.0, 0.0):
            server.ask(around=True, path="/lora-adapters", body=[{"id": 0, "scale": scale}])
            for start, loads in ((0, scale in answers), (700, scale in answers), (0, True)):
                got = server.ask(**self.question(start))
                self.assertEqual((got["skipped"], got["error"], got["loaded_tokens"] > 0), ("", "", loads))
                said = [got["answer"][name] for name in ("content", "completion_probabilities")]
                if start == 0:
                    self.assertEqual(answers.setdefault(scale, said), said)
        self.assertNotEqual(answers[0.0], answers[1.0])

    def test_another_server_of_the_same_file(self):
        first = self.server().ask(**self.question(0))
        other = self.server(rope=1e6)
        got = other.ask(**self.question(0))
        self.assertEqual((got["loaded_tokens"], got["stored_blocks"]), (0, first["stored_blocks"]))

    def test_the_program_of_the_readme_as_it_is_written(self):
        """Judged by the daemon: what the first process stores the second one loads."""
        # The content of a file that has just been installed is not remembered from one process to the next.
        model = os.stat(find_model())
        time.sleep(max(0.0, max(model.st_mtime, model.st_ctime) + SETTLED_S + 1 - time.time()))
        program, = blocks("xllamacpp, llama-server", "python")
        own = f"""
from llama_server_process import made
params, messages = made(64), [{{"role": "user", "content": {TEXT[:240]!r}}}]
"""
        program = own + program.replace("/dev/shm/slots/", f"{self.slots}/new/") + "print(answer['choices'])"
        answers = [subprocess.run([sys.executable, "-B", "-c", program], timeout=PATIENT_S, check=True, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  env={**os.environ, "KVTIER_SOCKET": self.daemon.socket}).stdout for _ in range(2)]
        counts = self.daemon.stats()
        self.assertGreater(counts["store"]["blocks_total"], 0)
        self.assertGreater(counts["load"]["blocks_total"], 0)
        self.assertEqual(*[answer.splitlines()[-1] for answer in answers])

    def test_a_server_that_saves_no_slots_answers(self):
        answer = self.server(slots=False).ask(**self.question(0, n_predict=1))
        self.assertNotEqual(answer["refused"], "")
        self.assertTrue(answer["answer"]["stop"])

    def test_the_daemon_is_stopped_and_killed(self):
        server = self.server()
        wanted = [server.ask(**self.question(start))["answer"]["content"] for start in (0, 50)]
        self.daemon.process.send_signal(signal.SIGSTOP)
        for start, content in zip((0, 50), wanted):
            self.assertEqual(server.ask(**self.question(start))["answer"]["content"], content)
        server.ask(**self.question(2000))
        self.daemon.process.send_signal(signal.SIGCONT)
        self.daemon.kill()
        self.assertEqual(server.ask(**self.question(0))["answer"]["content"], wanted[0])
        server.ask(**self.question(2700))
        self.daemon.start()
        self.until(lambda: server.ask(**self.question(random.randrange(3000, 9000)))["stored_blocks"] > 0)

    def trouble(self, number: int, after) -> None:
        """The daemon gets a signal around the load of a prompt, and around the store of another one."""
        server = self.server()

        def question(i: int) -> dict:       # of one block
            body = {"prompt": TEXT[100 * i + 100:100 * i + 200], "n_predict": 1, "temperature": 0, "n_probs": 1}
            return {"path": "/completion", "body": body}

        def is_kept() -> bool:      # a slot that holds it already loads no token of it
            got = server.ask(**question(0))
            return not got["error"] and not got["stored_blocks"]

        for i, (op, moment) in enumerate((op, moment) for op in ("load", "store") for moment in MOMENTS):
            with self.subTest(f"{moment} {op}"):
                self.until(is_kept)
                server.begin(stop=op, **question(0 if op == "load" else i))
                server.strikes(self.daemon.process, number, moment)
                struck = server.read()
                if moment != "after":
                    self.assertEqual((struck["loaded_tokens"], struck["stored_blocks"]), (0, 0))
                    self.assertNotEqual(struck["error"], "")
                after()
                again = server.ask(**question(0 if op == "load" else i))
                self.assertEqual(struck["answer"]["content"], again["answer"]["content"])
        self.until(is_kept)


class Files(unittest.TestCase):
    def file(self, n: int, streams: int = 1, transposed: int = 0, order: int = 1, fewer: int = 0) -> bytes:
        of, words = random.Random(n), [-1, 1, n - fewer, *range(n - fewer), 0]
        data = struct.pack(f"<3I{len(words)}i2I", 0x67677371, 4, len(words), *words, streams, n)
        data += b"".join(struct.pack("<iIi", i * order, 1, 0) for i in range(n))
        data += struct.pack("<4I", transposed, 2, 0, 0)
        for plane in range(4):
            head = struct.pack("<iII", 1, 2, 3) if transposed and plane > 1 else struct.pack("<iQ", 1, 6)
            data += head + of.randbytes(6 * n)
        return data + bytes(4 * (streams - 1))

    def test_a_file_made_of_blocks_is_the_one_that_gave_them(self):
        for streams in (1, 3):
            for transposed in (0, 1):
                data = self.file(12, streams, transposed)
                form = SlotFile(data)
                layout, pages = form.layout(4), []
                for p0 in (0, 4, 8):
                    page = bytearray(layout.size)
                    form.give(layout, memoryview(page), p0)
                    self.assertEqual(layout.difference(memoryview(page), layout.head(p0)), "")
                    pages.append(bytes(page))
                self.assertEqual(form.of_pages(layout, form.tokens, pages), data)
                self.assertEqual(len(set(pages)), 3)

    def test_files_that_are_not_so_are_refused(self):
        data = self.file(5)
        for n in set(range(len(data))) - {len(data) - 2 * (12 + 6 * 5)}:      # without V: as of a model that has none
            with self.assertRaises(LayoutError):
                SlotFile(data[:n])
        for bad in (b"ggla" + data[4:], data + bytes(4), self.file(5, order=2), data[:12] + b"\2" + data[13:],
                    self.file(5, fewer=1)):
            with self.assertRaises(LayoutError):
                SlotFile(bad)


if __name__ == "__main__":
    unittest.main(verbosity=2)
