# SPDX-License-Identifier: Apache-2.0
"""A double of llama.cpp's server, in the standard library alone: what kvtier.llama_server asks of one.

The KV of a token depends on the weights, the adapters' scales, the rope settings and all tokens up to it, and the
answer on the KV that the slot holds, so a wrong restore is a wrong answer. As the real one does (b11549), it keeps a
slot's KV when scales change, or a request has scales of its own; a request that names no slot gets an empty one. A word
is a token.
"""
import contextlib
import http.server
import json
import random
import struct
import threading
from pathlib import Path
from typing import Callable, Dict, List, Optional

LAYERS, ROW = 2, 32


class Slot:
    def __init__(self) -> None:
        self.tokens: List[int] = []
        self.rows: List[List[bytes]] = []       # of each token: K of each layer, then V


class Server:
    """On a port of its own, or on that of one before."""

    def __init__(self, slots: Path, model: Path, *, port: int = 0, loras=(), rope: float = 1e4, n_ctx: int = 512,
                 total: int = 2, key: str = "", marker: Optional[str] = None, blunt: int = 0,
                 listens: bool = True) -> None:
        self.directory, self.model, self.weights, self.key = slots, model, model.read_bytes(), key
        self.loras = [{"id": i, "path": str(path), "scale": 1.0} for i, path in enumerate(loras)]
        self.adapters = [Path(path).read_bytes() for path in loras]
        self.rope, self.n_ctx, self.slots = rope, n_ctx, [Slot() for _ in range(total)]
        self.blunt = blunt          # of so many tokens scales do not show in the KV, as where it is quantised
        self.marker = marker or random.SystemRandom().randbytes(8).hex()
        self.asked: List[str] = []
        self.before: Dict[str, Callable[[], None]] = {}     # called once, before such a request is answered
        self.between: Callable[[], None] = lambda: None     # called between the parts of a stream
        self.lock = threading.Lock()                        # held while a request is answered
        if not listens:
            return
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    # --- the model ---

    def _row(self, tokens: List[int], loras: List[dict]) -> List[bytes]:
        """Of the last of these tokens. Rope turns K, behind the first token."""
        rope = self.rope if len(tokens) > 1 else 0
        scales = [lora["scale"] for lora in loras] if len(tokens) > self.blunt else []
        made_by = (self.weights, self.adapters, scales, tokens)
        return [random.Random(repr((made_by, i, rope if i < LAYERS else 0))).randbytes(ROW) for i in range(2 * LAYERS)]

    def _compute(self, slot: Slot, tokens: List[int], body: dict) -> dict:
        scales = {lora["id"]: lora["scale"] for lora in body.get("lora") or ()}
        loras = [{**lora, "scale": scales.get(lora["id"], 0.0)} for lora in self.loras] if scales else self.loras
        held = slot.tokens if body.get("cache_prompt", True) else []
        reuse = next((i for i, (a, b) in enumerate(zip(held, tokens)) if a != b), min(len(held), len(tokens)))
        reuse = min(reuse, len(tokens) - 1)
        slot.tokens, slot.rows, answer = slot.tokens[:reuse], slot.rows[:reuse], []
        ahead = tokens[reuse:]
        for _ in range(body.get("n_predict", body.get("max_tokens", 4))):
            for token in ahead:
                slot.tokens.append(token)
                slot.rows.append(self._row(slot.tokens, loras))
            ahead = [random.Random(repr(slot.rows)).randrange(1000)]
            answer += ahead
        return {"content": " ".join(map(str, answer)), "timings": {
            "cache_n": reuse, "prompt_n": len(tokens) - reuse, "predicted_n": len(answer)}}

    # --- its files ---

    def _save(self, slot: Slot) -> bytes:
        n = len(slot.tokens)
        data = struct.pack(f"<3I{n + 4}i2I", 0x67677371, 4, n + 4, -1, 1, n, *slot.tokens, 0, 1, n)
        data += b"".join(struct.pack("<iIi", position, 1, 0) for position in range(n)) if n else b""
        data += struct.pack("<4I", 0, LAYERS, 0, 0) if n else b""
        for i in range(2 * LAYERS if n else 0):
            data += struct.pack("<iQ", 1, ROW) + b"".join(rows[i] for rows in slot.rows)
        return data

    def _restore(self, slot: Slot, data: bytes) -> None:
        n = struct.unpack_from("<I", data, 8)[0] - 4
        at = 12 + 4 * (n + 4) + 8 + 12 * n + 16
        slot.tokens, planes = list(struct.unpack_from(f"<{n}i", data, 24)), []
        for i in range(2 * LAYERS):
            start = at + i * (12 + n * ROW) + 12
            planes.append([data[start + t * ROW:start + (t + 1) * ROW] for t in range(n)])
        slot.rows = [[plane[t] for plane in planes] for t in range(n)]

    # --- its requests ---

    def answer(self, path: str, body: dict) -> object:
        if path == "/props":
            return {"model_path": str(self.model), "total_slots": len(self.slots), "media_marker": self.marker,
                    "is_sleeping": len(self.asked) % 3 == 0, "default_generation_settings": {"n_ctx": self.n_ctx}}
        if path == "/lora-adapters":
            for one in body or ():
                self.loras[one["id"]] = {**self.loras[one["id"]], "scale": one["scale"]}
            return self.loras
        if path == "/tokenize":
            return {"tokens": [sum(map(ord, word)) % 1000 for word in body["content"].split()]}
        if path == "/apply-template":
            texts = [message["content"] for message in body["messages"]]
            parts = [part for text in texts for part in ([text] if isinstance(text, str) else text)]
            return {"prompt": " ".join(part["text"] if isinstance(part, dict) else part for part in parts)}
        if path.startswith("/slots/"):
            slot, file = self.slots[int(path.split("/")[2].split("?")[0])], self.directory / body["filename"]
            if path.endswith("save"):
                return {"n_written": file.write_bytes(self._save(slot))}
            self._restore(slot, file.read_bytes())
            return {"n_restored": len(slot.tokens)}
        prompt = self.answer("/apply-template", body)["prompt"] if "messages" in body else body["prompt"]
        prompt = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt
        tokens = prompt if isinstance(prompt, list) else self.answer("/tokenize", {"content": prompt})["tokens"]
        return self._compute(self.slots[body["id_slot"]] if "id_slot" in body else Slot(), tokens, body)

    def _handler(server) -> type:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(None)

            def do_POST(self) -> None:
                self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *_) -> None:
                pass

            def _reply(self, body) -> None:
                known = not server.key or self.headers["Authorization"] == f"Bearer {server.key}"
                server.before.pop(self.path.split("?")[0], lambda: None)()
                with server.lock:
                    server.asked.append(self.path)
                    got = server.answer(self.path, body) if known else {"error": "Invalid API Key"}
                stream = isinstance(body, dict) and body.get("stream") and "content" in got
                self.send_response(200 if known else 401)
                self.send_header("Content-Type", "text/event-stream" if stream else "application/json")
                data = json.dumps(got).encode()
                if not stream:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(OSError):      # the client may not want all of it
                    if not stream:
                        self.wfile.write(data)
                        return
                    words = got["content"].split()
                    for part in [{"content": word} for word in words] + [{**got, "content": "", "stop": True}]:
                        self.wfile.write(b": still here\n\ndata: " + json.dumps(part).encode() + b"\n\n")
                        server.between()
                    self.wfile.write(b"data: [DONE]\n\n")

        return Handler
