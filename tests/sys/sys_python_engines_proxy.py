# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=10
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: a client of kvtier.llama_proxy gets what the server answers, byte for byte: errors, streams, what is no prompt.
Prompts come out of kvtier, for several clients at once, while clients go away, and servers die, lie and come back.
Method: the double of llama.cpp's server, servers whose every byte the case says, and a kvtierd of its own. The real
server: sys_llama_proxy.
"""
import http.client
import json
import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from kvtier.llama_proxy import Proxy
from sys_python_engines_slots import CHAT, Behind, words
from world import PATIENT_S, Waits

PLAIN = "/completion"


class Said:
    """A server that gives its clients one answer, and keeps what they said. With until_gone it says no more, and waits
    for the client to end."""

    def __init__(self, case: unittest.TestCase, *answer: bytes, until_gone: bool = False) -> None:
        self.heard, self.gone, self.more = [], threading.Event(), threading.Semaphore(0)
        self._answer, self._until_gone = answer, until_gone
        self._socket = socket.create_server(("127.0.0.1", 0))
        case.addCleanup(self._socket.close)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client:
                self.heard.append(self._request(client))
                for i, piece in enumerate(self._answer):
                    if i:
                        self.more.acquire()
                    client.sendall(piece)
                if self._until_gone:
                    client.recv(1)
                    self.gone.set()

    @staticmethod
    def _request(client: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += client.recv(1 << 16)
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?im)^content-length: (\d+)", head)
        while length and len(body) < int(length[1]):
            body += client.recv(1 << 16)
        return head + b"\r\n\r\n" + body


class NoCache:
    """In place of a SlotCache, where no prompt is asked."""


def proxy(case: unittest.TestCase, to: str, cache, keys=()) -> Proxy:
    made = Proxy(("127.0.0.1", 0), to, keys)
    made.cache = cache
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    case.addCleanup(made.server_close)
    case.addCleanup(made.shutdown)
    return made


def raw(made: Proxy, data: bytes) -> bytes:
    """All that the proxy answers to these bytes, until it ends the connection."""
    with socket.create_connection(made.server_address[:2], PATIENT_S) as client:
        client.sendall(data)
        got = b""
        while True:
            piece = client.recv(1 << 16)
            if not piece:
                return got
            got += piece


def connected(made: Proxy) -> http.client.HTTPConnection:
    """It waits less long than the proxy does before it closes a connection that nobody uses."""
    return http.client.HTTPConnection(*made.server_address[:2], timeout=30)


def ask(made: Proxy, path: str, body, headers=None) -> tuple:
    """(status, body) of an answer."""
    client = connected(made)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    client.request("POST", path, data, {"Content-Type": "application/json", **(headers or {})})
    answer = client.getresponse()
    said = answer.status, answer.read()
    client.close()
    return said


class HandsOn(Waits):
    def setUp(self) -> None:
        logging.getLogger("kvtier").setLevel(logging.CRITICAL)

    def answer(self, *answer: bytes, method: str = "GET", path: str = "/x", body: bytes = b"", **options) -> tuple:
        self.said = Said(self, *answer, **options)
        self.made = proxy(self, self.said.url, NoCache())
        client = connected(self.made)
        self.addCleanup(client.close)
        client.request(method, path, body, {"X-Mine": "1", "Connection": "X-Hop", "X-Hop": "2"})
        return client.getresponse()

    def test_a_request_and_its_answer(self):
        body = bytes(range(256)) * 5
        got = self.answer(b"HTTP/1.1 418 Teapot\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Encoding: gzip\r\n"
                          b"Content-Length: 1280\r\n\r\n" + body, path="/a%20b?c=d&e", method="PUT", body=b"{ }\xff")
        self.assertEqual((got.status, got.reason, got.read()), (418, "Teapot", body))
        self.assertEqual(got.headers.get_all("Set-Cookie"), ["a", "b"])
        self.assertEqual(got.headers["Content-Encoding"], "gzip")
        heard, = self.said.heard
        self.assertTrue(heard.startswith(b"PUT /a%20b?c=d&e HTTP/1.1\r\n"))
        self.assertTrue(heard.endswith(b"\r\n\r\n{ }\xff"))
        self.assertIn(b"\r\nX-Mine: 1\r\n", heard)
        self.assertNotIn(b"X-Hop", heard)

    def test_answers_of_every_framing(self):
        for answer, method, body in (
                (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", "GET",
                 b"abcde"),
                (b"HTTP/1.0 200 OK\r\n\r\nabcde", "GET", b"abcde"),
                (b"HTTP/1.1 204 No Content\r\n\r\n", "DELETE", b""),
                (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", "GET", b""),
                (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", "HEAD", b""),
                (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "OPTIONS", b"")):
            with self.subTest(answer):
                got = self.answer(answer, method=method)
                self.assertEqual((got.read(), got.headers["Content-Length"]),
                                 (body, "7" if b": 7" in answer else "0" if b": 0" in answer else None))

    def test_bytes_come_as_the_server_sends_them(self):
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        got = self.answer(head + b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n")
        for letter in (b"a", b"b"):
            self.assertEqual(got.read(1), letter)       # before the server says more
            self.said.more.release()
        self.assertEqual(got.read(), b"")

    def test_an_answer_that_the_server_cuts_off_is_cut_off(self):
        for answer in (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
                       b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
                       b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
                       b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzzz\r\n"):
            with self.subTest(answer), self.assertRaises(http.client.HTTPException):
                self.answer(answer).read()

    def test_what_is_no_answer_is_502(self):
        for answer in (b"", b"hello\r\n\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a" * 70000,
                       b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n"):
            with self.subTest(answer[:20]):
                got = self.answer(answer)
                self.assertEqual(got.status, 502)
                self.assertIn("--to", json.loads(got.read())["error"]["message"])

    def test_a_client_that_goes_away_is_no_longer_answered(self):
        said = Said(self, b"", until_gone=True)
        made = proxy(self, said.url, NoCache())
        with socket.create_connection(made.server_address[:2]) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            self.until(lambda: said.heard)
        self.assertTrue(said.gone.wait(PATIENT_S))

    def test_requests_that_are_not_handed_on(self):
        said = Said(self, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        made = proxy(self, said.url, NoCache())
        for request, status in (
                (b"hello\r\n", 400), (b"GET / HTTP/3.0\r\n\r\n", 505), (b"BREW / HTTP/1.1\r\n\r\n", 501),
                (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
                (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
                (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
                (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
                (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", 400),
                (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", 413),
                (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
                (b"GET /\xe4 HTTP/1.1\r\n\r\n", 400),
                (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431)):
            with self.subTest(request[:60]):
                got = raw(made, request)
                self.assertTrue(got.startswith(b"HTTP/1.1 %d " % status), got)
                self.assertEqual(json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"], status)
        self.assertEqual(said.heard, [])

    def test_a_body_in_chunks_and_one_that_the_client_asks_for_first(self):
        said = Said(self, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        made = proxy(self, said.url, NoCache())
        got = raw(made, b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n"
                        b"\r\n3;a\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n")
        self.assertTrue(got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), got)
        self.assertTrue(said.heard[0].endswith(b"\r\n\r\nabcde"))
        self.assertNotIn(b"chunked", said.heard[0])

    def test_an_old_client_gets_no_chunks(self):
        said = Said(self, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        got = raw(proxy(self, said.url, NoCache()), b"GET / HTTP/1.0\r\n\r\n")
        self.assertEqual(got, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc")


class Prompts(Behind):
    def proxy(self, keys=(), **options) -> Proxy:
        logging.getLogger("kvtier").setLevel(logging.CRITICAL)
        return proxy(self, self.now.url, self.cache(**options), keys)

    def asked(self, made: Proxy, prompt: str, **body) -> int:
        """Tokens that were loaded. The answer must be right."""
        body["prompt"] = prompt
        status, said = ask(made, PLAIN, body)
        self.assertEqual((status, json.loads(said)["content"]), (200, self.right(body)))
        self.until(lambda: len(made.cache._free) == len(self.now.slots))
        self.assertEqual(made.cache.last.skipped, "")
        return made.cache.last.loaded_tokens

    def test_a_prefix_outlives_its_server(self):
        self.server()
        made = self.proxy()
        self.assertEqual((self.asked(made, words(1)), made.cache.last.stored_blocks), (0, 6))
        self.now.close()
        self.now.asked = ["died"]
        status, said = ask(made, PLAIN, {"prompt": words(1)})
        self.assertEqual((status, json.loads(said)["error"]["code"]), (502, 502))
        self.server()
        self.assertEqual(self.asked(made, words(1)), 20)

    def test_a_server_that_comes_back_saying_the_same_is_learned_anew(self):
        """Between the look and the question, so that the question alone sees it."""
        server = self.server(marker="pinned", total=1)
        made = self.proxy()
        self.asked(made, words(1))
        server.before["/lora-adapters"] = lambda: setattr(made, "to", made.to._replace(netloc="127.0.0.1:1"))
        to = made.to
        self.assertEqual(ask(made, PLAIN, {"prompt": words(1)})[0], 502)
        made.to = to
        self.server(marker="pinned", rope=1e6, total=1)
        self.assertEqual(self.asked(made, words(1)), 0)
        self.forget()
        made.cache._held.clear()
        self.assertEqual(self.asked(made, words(1)), 20)

    def test_chats_streams_and_parts_of_text(self):
        self.server()
        made, parts = self.proxy(), [{"type": "text", "text": words(1)}, {"type": "text", "text": words(2)}]
        body = {"messages": [{"role": "user", "content": parts}], "tools": [], "stream": True, "max_tokens": 5}
        direct = "".join(f": still here\n\ndata: {json.dumps(part)}\n\n" for part in self.stream(body))
        for loaded in (0, 40):
            self.assertEqual(ask(made, CHAT, body), (200, (direct + "data: [DONE]\n\n").replace(
                '"cache_n": 0, "prompt_n": 44', f'"cache_n": {loaded}, "prompt_n": {44 - loaded}').encode()))
            self.until(lambda: len(made.cache._free) == 2)
            self.assertEqual(made.cache.last.loaded_tokens, loaded)
            self.forget()
            made.cache._held.clear()

    def stream(self, body: dict) -> list:
        now = self.now
        got = type(now)(self.slots, now.model, listens=False).answer(CHAT, body)
        return [{"content": word} for word in got["content"].split()] + [{**got, "content": "", "stop": True}]

    def test_a_slot_that_holds_the_prompt_is_used(self):
        server = self.server(total=3)
        made = self.proxy()
        for prompt in (1, 2, 3):
            self.asked(made, words(prompt))
        server.asked.clear()
        for prompt in (2, 3, 1):
            self.assertEqual(self.asked(made, f"{words(prompt)} and more"), 0)
        self.assertEqual([path for path in server.asked if "restore" in path], [])

    def test_a_prompt_that_comes_while_its_beginning_is_stored(self):
        server = self.server()
        made, ends = self.proxy(), threading.Event()
        for slot in (0, 1):
            server.before[f"/slots/{slot}"] = lambda: ends.wait(PATIENT_S)
        ask(made, PLAIN, {"prompt": words(1)})          # it is answered before it is stored
        self.assertEqual(len(made.cache._free), 1)
        threading.Timer(0.1, ends.set).start()
        status, said = ask(made, PLAIN, {"prompt": f"{words(1)} more"})
        self.assertGreaterEqual(json.loads(said)["timings"]["cache_n"], 22)

    def test_a_client_that_goes_away(self):
        """In its prompt, and in its answer: the slot is free again, and the prompt's blocks are stored."""
        server = self.server()
        made, ends = self.proxy(), threading.Event()
        self.addCleanup(ends.set)
        for stage, prompt in (("in the prompt", 1), ("in the answer", 2)):
            with self.subTest(stage):
                asked = len(server.asked)
                if stage == "in the prompt":
                    server.before[PLAIN] = lambda: ends.wait(PATIENT_S)
                else:
                    server.between = lambda: ends.wait(PATIENT_S)
                client = connected(made)
                client.request("POST", PLAIN, json.dumps({"prompt": words(prompt), "stream": True}))
                if stage == "in the prompt":
                    self.until(lambda: not server.before)
                else:
                    client.getresponse().read(20)
                self.assertEqual(len(made.cache._free), 1)
                client.sock.shutdown(socket.SHUT_RDWR)
                client.close()
                self.until(lambda: len(made.cache._free) == 2)
                self.assertTrue([path for path in server.asked[asked:] if "save" in path])
        self.assertEqual(made.cache.last.stored_blocks, 5)
        server.between = lambda: None
        self.assertEqual(self.asked(made, words(2)), 0)     # the slot has it

    def test_a_client_that_goes_away_before_a_slot_is_free(self):
        self.server(total=1)
        made = self.proxy()
        slot = made.cache._free.pop()
        client = connected(made)
        client.request("POST", PLAIN, json.dumps({"prompt": words(1)}))
        self.until(lambda: "/tokenize" in self.now.asked[-2:])
        client.close()
        self.until(lambda: "no slot" in made.cache.last.skipped)
        made.cache._put_back([slot])
        self.asked(made, words(1))

    def test_keys(self):
        server = self.server(key="secret")
        made = self.proxy(keys=["secret", "second"], api_key="secret")
        body = {"prompt": words(1)}
        server.asked.clear()
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            self.assertEqual(ask(made, PLAIN, body, headers), (401, b'{"error": "Invalid API Key"}'))
        self.assertEqual(server.asked, [PLAIN] * 2)         # no slot was touched for them
        status, said = ask(made, PLAIN, body, {"Authorization": "Bearer secret"})
        self.assertEqual((status, json.loads(said)["content"]), (200, self.right(body)))
        self.until(lambda: made.cache.last.stored_blocks == 6)

    def test_bodies_that_are_no_prompts_are_handed_on(self):
        self.server()
        made, answer = self.proxy(), self.now.answer
        self.now._http.RequestHandlerClass.do_POST = lambda to: to._reply(
            to.rfile.read(int(to.headers["Content-Length"])).decode())
        self.now.answer = lambda path, body: {"got": body} if isinstance(body, str) else answer(path, body)
        for data in (b"{ not json", b"[1, 2]", b"7", b"[" * 100000, b'{"n": ' + b"9" * 5000 + b"}"):
            with self.subTest(data[:10]):
                self.assertEqual(ask(made, PLAIN, data), (200, json.dumps({"got": data.decode()}).encode()))

    def test_many_clients_at_once(self):
        seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
        print(f"SEED={seed}", flush=True)
        self.server(total=2)
        made, wrong, done = self.proxy(), [], []

        def many(of: random.Random) -> None:
            for _ in range(8):
                body = {"prompt": words(of.randrange(3), of.randrange(5, 30)), "stream": of.random() < 0.5}
                if of.random() < 0.2:
                    client = connected(made)
                    client.request("POST", PLAIN, json.dumps(body))
                    client.close()
                    continue
                status, said = ask(made, PLAIN, body)
                parts = re.findall(r'"content": "([^"]*)"', said.decode())
                if status != 200 or " ".join(parts).strip() != self.right(body):
                    wrong.append((body, status, said))
                done.append(1)

        threads = [threading.Thread(target=many, args=(random.Random(seed + i),)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENT_S)
        self.assertEqual(wrong, [])
        self.assertGreater(len(done), 30)
        self.until(lambda: len(made.cache._free) == 2)
        self.assertEqual(list(self.slots.iterdir()), [])


class Command(Waits):
    def run_it(self, *arguments: str) -> tuple:
        got = subprocess.run([sys.executable, "-B", "-m", "kvtier.llama_proxy", *arguments], timeout=PATIENT_S,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return got.returncode, got.stdout

    def test_arguments_that_are_wrong_say_what_to_write(self):
        work = tempfile.TemporaryDirectory(prefix="kvtier-test-")
        self.addCleanup(work.cleanup)
        file, to = Path(work.name, "file"), ("--to", "http://127.0.0.1:1")
        file.touch()
        with socket.create_server(("127.0.0.1", 0)) as used:
            for arguments, says in (
                    (("--to", "localhost:80", "--slots", work.name), "http://127.0.0.1:8080"),
                    (("--to", "http://a:b", "--slots", work.name), "http://127.0.0.1:8080"),
                    ((*to, "--slots", str(file)), "argument --slots"),
                    ((*to, "--slots", work.name, "--listen", "8080"), "HOST:PORT"),
                    ((*to, "--slots", work.name, "--listen", f"127.0.0.1:{used.getsockname()[1]}"), "choose another"),
                    (to, "--slots")):
                with self.subTest(arguments):
                    code, said = self.run_it(*arguments)
                    self.assertEqual(code, 2)
                    self.assertIn(says, said.splitlines()[-1])

    def test_it_makes_the_directory_and_ends_when_it_is_told(self):
        with tempfile.TemporaryDirectory(prefix="kvtier-test-") as work:
            slots = Path(work, "a", "b")
            process = subprocess.Popen(
                [sys.executable, "-B", "-m", "kvtier.llama_proxy", "--to", "http://127.0.0.1:1", "--slots", str(slots),
                 "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.addCleanup(process.kill)
            lines = [process.stdout.readline() for _ in range(2)]
            self.assertIn("refused", lines[0])
            self.assertRegex(lines[1], r"http://127\.0\.0\.1:\d+ serves what http://127\.0\.0\.1:1 does")
            self.assertTrue(slots.is_dir())
            process.send_signal(signal.SIGTERM)
            self.assertEqual((process.wait(PATIENT_S), process.stdout.read()), (0, ""))
            process.stdout.close()


if __name__ == "__main__":
    unittest.main()
