# SPDX-License-Identifier: Apache-2.0
"""The cases of sys_llama_proxy.sh."""
import http.client
import json
import os
import socket
import subprocess
import sys
import unittest
from pathlib import Path

from engine_process import Engine, commands
from world import PATIENT_S, TREE, World

PROCESS = Path(__file__).with_name("llama_server_process.py")
TEXT = (TREE / "LICENSE").read_text()
CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Behind(World):
    def setUp(self) -> None:
        """The README's command, with another port and directory. The server comes later."""
        super().setUp()
        os.environ["KVTIER_ENGINE_LOGS"] = str(self.work)
        self.slots, self.port, self.listen = self.work / "new" / "slots", free_port(), free_port()
        *_, command = commands("xllamacpp, llama-server")
        self.assertEqual(command[:3], ["python", "-m", "kvtier.llama_proxy"])
        ours = {"http://127.0.0.1:8080": f"http://127.0.0.1:{self.port}", "/dev/shm/slots": str(self.slots)}
        self.log = self.work / "proxy.log"
        with open(self.log, "w") as log:
            proxy = subprocess.Popen(
                [sys.executable, "-B", *[ours.get(word, word) for word in command[1:]],
                 "--listen", f"127.0.0.1:{self.listen}"], stdout=log, stderr=log,
                env={**os.environ, "KVTIER_SOCKET": self.daemon.socket})
        self.addCleanup(proxy.wait)
        self.addCleanup(proxy.kill)
        self.until(lambda: "serves what" in self.log.read_text())

    def server(self) -> Engine:
        engine = Engine(PROCESS, self.daemon.socket, f"{self.slots}/", "64", json.dumps({"port": self.port}))
        self.addCleanup(engine.kill)
        return engine

    def begin(self, path: str, body: dict) -> http.client.HTTPResponse:
        client = http.client.HTTPConnection("127.0.0.1", self.listen, timeout=PATIENT_S)
        self.addCleanup(client.close)
        client.request("POST", path, json.dumps({"temperature": 0, **body}), {"Content-Type": "application/json"})
        self.client = client
        return client.getresponse()

    def ask(self, path: str, body: dict) -> tuple:
        """(status, answer). When this returns, the proxy has done what it does afterwards."""
        told = self.log.read_text().count(f" {path}: ")
        answer = self.begin(path, body)
        said = answer.status, json.loads(answer.read())
        if answer.status == 200:
            self.until(lambda: self.log.read_text().count(f" {path}: ") > told)
        return said

    def test_prompts_outlive_their_server(self):
        """Of a chat the last token is computed alone, or with 40 others: its numbers differ a little, its text does
        not."""
        text = [{"type": "text", "text": part} for part in (TEXT[:250], "What is this?")]
        chat = {"messages": [{"role": "user", "content": text}], "tools": TOOLS, "max_tokens": 5}
        plain = {"prompt": TEXT[300:700], "n_predict": 5}
        first = self.server()
        cold = [self.ask(CHAT, chat)[1]["choices"][0]["message"], self.ask("/completion", plain)[1]["content"]]
        first.kill()
        status, said = self.ask(CHAT, chat)
        self.assertEqual((status, said["error"]["type"]), (502, "kvtier_proxy_error"))
        second = self.server()
        stream = self.begin(CHAT, {**chat, "stream": True, "stream_options": {"include_usage": True}})
        parts = [json.loads(line[6:]) for line in stream.read().splitlines()[:-2] if line.startswith(b"data: {")]
        told = "".join(choice["delta"].get("content") or "" for part in parts for choice in part["choices"])
        self.assertEqual(told, cold[0]["content"])
        self.assertGreaterEqual(parts[-1]["usage"]["prompt_tokens_details"]["cached_tokens"], 64)
        status, said = self.ask("/completion", plain)
        self.assertEqual((status, said["content"]), (200, cold[1]))
        self.assertEqual(said["timings"]["cache_n"], 64, self.log.read_text())
        status, said = self.ask("/v1/completions", {"prompt": [plain["prompt"]], "max_tokens": 5})
        self.assertEqual((status, said["choices"][0]["text"]), (200, cold[1]))
        self.assertEqual(said["timings"]["cache_n"], 77)    # all but the last: the slot holds it
        direct = second.ask(around=True, path="/completion", body={**plain, "temperature": 0, "cache_prompt": False})
        self.assertEqual(direct["answer"]["content"], cold[1])

    def test_errors_are_the_server_s_own(self):
        self.server()
        for path, body in ((CHAT, {"messages": 7}), ("/nothing", {}), ("/completion", {"prompt": [1 << 30]})):
            with self.subTest(path):
                direct = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENT_S)
                direct.request("POST", path, json.dumps({"temperature": 0, **body}))
                wanted = direct.getresponse()
                self.assertEqual(self.ask(path, body), (wanted.status, json.loads(wanted.read())))
                self.assertGreaterEqual(wanted.status, 400)
                direct.close()

    def test_a_client_goes_away_in_its_answer(self):
        self.server()
        body = {"prompt": TEXT[1000:1400], "n_predict": 500}
        stream = self.begin("/completion", {**body, "stream": True})
        stream.read(100)
        self.client.sock.shutdown(socket.SHUT_RDWR)
        self.until(lambda: "its client has gone" in self.log.read_text())
        self.assertIn("1 blocks stored", self.log.read_text())
        self.assertEqual(list(self.slots.iterdir()), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
