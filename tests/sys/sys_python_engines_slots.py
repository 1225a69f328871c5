# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=10
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: whatever is behind a SlotCache's URL may change at any time, and no KV of before is restored: scales of adapters,
another server, model, context or rope. Requests with a key, with parts of text and streams are served; what is not
served says why.
Method: a double of llama.cpp's server, whose answers depend on each byte of the KV that a slot holds, and a kvtierd of
its own. The real server: sys_llama_server.
"""
import logging
import os
import random
import threading
import time
import urllib.error
from pathlib import Path

from kvtier.llama_server import SlotCache
from llama_server_double import Server
from world import PATIENT_S, World, one_name

BLOCK = 4
CHAT = "/v1/chat/completions"


def words(seed: int, n: int = 22) -> str:
    of = random.Random(seed)
    return " ".join(of.choice("abcdefghij") * of.randrange(1, 9) for _ in range(n))


class Behind(World):
    def setUp(self) -> None:
        logging.getLogger("kvtier").setLevel(logging.ERROR)
        super().setUp()
        one_name(self.addCleanup)
        self.slots = self.work / "slots"
        self.slots.mkdir()
        self.model, self.adapter = self.work / "model.gguf", self.work / "adapter.gguf"
        self.model.write_bytes(b"weights")
        self.adapter.write_bytes(b"adapter")
        self.port, self.now = 0, None

    def server(self, **options) -> Server:
        """In place of the one before, if there is one."""
        if self.now is not None:
            self.now.close()
        self.now = Server(self.slots, options.pop("model", self.model), port=self.port, **options)
        self.addCleanup(self.now.close)
        self.port = self.now.port
        return self.now

    def cache(self, **options) -> SlotCache:
        cache = SlotCache(self.now.url, str(self.slots), socket=self.daemon.socket, block_tokens=BLOCK, pages=3,
                          **options)
        self.addCleanup(cache.close)
        return cache

    def right(self, body: dict, scale=None) -> str:
        """The answer of such a server that has computed nothing before."""
        now = self.now
        fresh = Server(self.slots, now.model, loras=[lora["path"] for lora in now.loras], rope=now.rope,
                       blunt=now.blunt, listens=False)
        fresh.loras = [{**lora, "scale": lora["scale"] if scale is None else scale} for lora in now.loras]
        return fresh.answer("/completion", {name: body[name] for name in body if name != "id_slot"})["content"]

    @staticmethod
    def text(got) -> str:
        """Of an answer, or of the parts of one."""
        return got["content"] if isinstance(got, dict) else " ".join(part["content"] for part in got).strip()

    def ask(self, cache: SlotCache, prompt, **body) -> int:
        """Tokens that were loaded. The answer must be right."""
        body["prompt"] = prompt
        self.assertEqual(cache.ask("/completion", body)["content"], self.right(body))
        self.assertEqual(cache.last.skipped, "")
        return cache.last.loaded_tokens

    def forget(self) -> None:
        """The server's slots hold another prompt."""
        for number in range(len(self.now.slots)):
            self.now.answer("/completion", {"prompt": "something else", "id_slot": number, "cache_prompt": False})

    def again(self, cache: SlotCache, prompt, **body) -> int:
        self.forget()
        cache._held.clear()
        return self.ask(cache, prompt, **body)


class Changes(Behind):
    def test_a_prefix_outlives_its_server(self):
        self.server()
        cache = self.cache()
        self.assertEqual((self.ask(cache, words(1)), cache.last.stored_blocks), (0, 6))
        self.server()
        self.assertEqual((self.ask(cache, words(1)), cache.last.error), (20, None))
        self.server()
        self.assertEqual(self.ask(self.cache(), words(1)), 20)

    def test_scales_of_adapters(self):
        """The server keeps what its slots hold when scales change, and goes on from it."""
        for blunt in (0, 12):
            server, seen = self.server(loras=[self.adapter], blunt=blunt), set()
            cache = self.cache(extras=str(blunt))
            for scale in (1.0, 0.25, 1.0, 0.25, 0.0):
                server.answer("/lora-adapters", [{"id": 0, "scale": scale}])
                with self.subTest(scale, blunt=blunt):
                    self.assertEqual([self.ask(cache, words(prompt)) for prompt in (1, 2, 1)],
                                     [20, 20, 20] if scale in seen else [0, 0, 20])
                seen.add(scale)
            self.assertIsNone(cache.last.error)

    def test_a_slot_that_a_request_with_scales_of_its_own_has_used(self):
        server = self.server(loras=[self.adapter], total=1)
        cache = self.cache()
        mine = {"prompt": words(1), "lora": [{"id": 0, "scale": 0.5}], "id_slot": 0}
        self.assertEqual(cache.ask("/completion", mine)["content"], self.right(mine))
        self.assertEqual(cache.last.skipped, "lora is given")
        self.assertEqual((self.ask(cache, words(1)), cache.last.stored_blocks), (0, 6))
        # between the restore of a slot, and the request that goes on from it
        self.ask(cache, words(1, 40))
        between = {**mine, "prompt": words(1, 10)}
        server.before["/completion"] = lambda: server.answer("/completion", between)
        cache.ask("/completion", {"prompt": words(1, 60)})
        self.assertEqual(cache.last.stored_blocks, 0)
        self.assertIn("another prompt", str(cache.last.error))
        self.assertGreater(self.ask(cache, words(1, 60)), 20)

    def test_another_server(self):
        """Of each the answer is right, and its own KV is found again, by a SlotCache that was made before as by one
        that is made now. In place of one server comes another one: none of their requests fails."""
        other, heavy = self.work / "other.gguf", self.work / "heavy.gguf"
        other.write_bytes(b"WEIGHTS")
        heavy.write_bytes(b"ADAPTER")
        kinds = [{}, {"model": other}, {"rope": 1e6}, {"loras": [self.adapter]}, {"loras": [self.adapter, heavy]},
                 {"loras": [heavy]}]
        self.server()
        old = self.cache()
        self.ask(old, words(1))
        for hit in (0, 20):
            for kind in kinds:
                self.server(**kind)
                with self.subTest(kind, hit=hit):
                    self.assertEqual(self.ask(old, words(1)), hit if kind else 20)
                    self.assertEqual(self.again(self.cache(), words(1)), 20)
        self.server(n_ctx=12, total=1)
        self.ask(old, words(1, 6))
        self.server(total=3)
        self.assertEqual(self.ask(old, words(1)), 20)

    def test_files_that_are_replaced_while_the_server_has_the_ones_before(self):
        self.server(loras=[self.adapter])
        cache = self.cache()
        self.ask(cache, words(1))
        for file in (self.model, self.adapter):
            was = file.stat()
            file.write_bytes(file.read_bytes().upper())
            os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns + 1))
            body = {"prompt": words(1)}
            before = cache.ask("/completion", body)["content"]      # named by the new file now, computed by the old one
            self.server(loras=[self.adapter])
            with self.subTest(file.name):
                self.assertEqual(self.ask(cache, words(1)), 0)
                self.assertNotEqual(before, self.right(body))

    def test_a_server_that_changes_between_the_look_and_the_answer(self):
        """It goes on from KV of before. The answer is computed again, and nothing is stored."""
        server = self.server(loras=[self.adapter])
        cache = self.cache()
        self.ask(cache, words(1))
        for number, stream in enumerate((False, True)):
            body = {"prompt": words(1), "stream": stream}
            server.before["/completion"] = lambda: server.answer("/lora-adapters", [{"id": 0, "scale": 0.5 + number}])
            self.assertEqual(self.text(cache.ask("/completion", body)), self.right(body))
            self.assertEqual(cache.last[1:4], (0, 0, 0))
            self.assertIn("changed", str(cache.last.error))
            server.answer("/lora-adapters", [{"id": 0, "scale": 1.0}])
        server.before["/completion"] = lambda: server.answer("/lora-adapters", [{"id": 0, "scale": 0.5}])
        cache.ask("/completion", {"prompt": words(2)})
        self.assertEqual(cache.last.stored_blocks, 0)
        self.assertEqual(self.ask(cache, words(2)), 0)

    def test_a_server_that_is_not_reached_is_learned_anew(self):
        """Also one that says the same of itself, as one whose user has pinned the word in it."""
        self.server(marker="pinned")
        cache = self.cache()
        self.ask(cache, words(1))
        self.now.close()
        with self.assertRaises(OSError):
            cache.ask("/completion", {"prompt": words(1)})
        self.assertNotEqual(cache.last.skipped, "")
        self.server(marker="pinned", rope=1e6)
        self.assertEqual(self.ask(cache, words(1)), 0)
        self.assertEqual(self.ask(self.cache(), words(1)), 20)
        self.assertEqual(cache.refused, "")

    def test_a_server_that_comes_later(self):
        self.server()
        self.now.close()
        cache = self.cache()
        self.assertIn("refused", cache.refused)
        self.server()
        self.assertEqual((self.ask(cache, words(1)), cache.last.stored_blocks, cache.refused), (0, 6, ""))

    def test_an_adapter_that_the_prompt_activates(self):
        server = self.server(loras=[self.adapter])
        server.loras[0]["alora_invocation_tokens"] = [5]
        cache = self.cache()
        cache.ask("/completion", {"prompt": words(1)})
        self.assertIn("activates", cache.last.skipped)

    def test_prompts_under_way_keep_the_server_that_they_know(self):
        """A server is learned anew when they have ended, and other prompts are computed meanwhile."""
        server = self.server(loras=[self.adapter])
        cache = self.cache(timeout_ms=100)
        parts = cache.ask("/completion", {"prompt": words(1), "stream": True})
        next(parts)
        server.answer("/lora-adapters", [{"id": 0, "scale": 0.5}])
        body = {"prompt": words(2)}
        self.assertEqual(cache.ask("/completion", body)["content"], self.right(body))
        self.assertIn("under way", cache.last.skipped)
        list(parts)
        self.assertEqual(cache.last.stored_blocks, 0)
        self.assertEqual((self.ask(cache, words(2)), self.again(cache, words(2))), (0, 20))

    def test_a_prompt_that_waits_for_a_slot_of_a_server_that_is_gone(self):
        """Its slots do not come back: it is computed without kvtier."""
        server = self.server()
        cache = self.cache()
        for _ in server.slots:
            cache._free.pop()
        asked, body, got = len(server.asked), {"prompt": words(1)}, []
        thread = threading.Thread(target=lambda: got.append(cache.ask("/completion", body)["content"]))
        thread.start()
        self.until(lambda: len(server.asked) > asked + 1)
        cache._learned = None       # as where it could not be learned anew
        thread.join(PATIENT_S)
        self.assertEqual((got, cache.last.stored_blocks), ([self.right(body)], 0))
        self.assertIn("changed", cache.last.skipped)

    def test_many_ask_while_it_changes(self):
        seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
        print(f"SEED={seed}", flush=True)
        self.server(loras=[self.adapter], total=3)
        cache, wrong, loaded, scales, stop = self.cache(timeout_ms=20000), [], [], [1.0], threading.Event()

        def many(of: random.Random) -> None:
            while not stop.is_set():
                body = {"prompt": words(of.randrange(3), of.randrange(5, 30)), "stream": of.random() < 0.3}
                before = len(scales)
                try:
                    text = self.text(cache.ask("/completion", body))
                except Exception as error:
                    text = repr(error)
                loaded.append(cache.last.loaded_tokens)
                if not any(text == self.right(body, scale) for scale in scales[before - 1:]):
                    wrong.append((body, text))

        threads = [threading.Thread(target=many, args=(random.Random(seed + i),)) for i in range(4)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + PATIENT_S
        while len(scales) < 20 and time.monotonic() < end:
            if len(loaded) < 10 * len(scales):
                time.sleep(0.005)
                continue
            with self.now.lock:     # no answer has tokens of two scales
                scales.append(len(scales) / 20)
                self.now.answer("/lora-adapters", [{"id": 0, "scale": scales[-1]}])
        stop.set()
        for thread in threads:
            thread.join(PATIENT_S)
        self.assertEqual((wrong, len(scales)), ([], 20))
        self.assertGreater(sum(map(bool, loaded)), 0)


class Requests(Behind):
    def test_a_key_and_headers(self):
        self.server(key="secret")
        body = {"prompt": words(1)}
        self.assertIn("401", self.cache().refused)
        for options in ({"api_key": "secret"}, {"headers": {"Authorization": "Bearer secret"}}):
            cache = self.cache(**options)
            self.assertEqual(cache.ask("/completion", body)["content"], self.right(body))
            self.assertEqual((cache.last.skipped, cache.refused), ("", ""))
        self.assertEqual(self.again(cache, words(1)), 20)
        with self.assertRaises(urllib.error.HTTPError):
            self.cache(api_key="wrong").ask("/completion", body)

    def test_parts_of_text(self):
        self.server()
        cache, parts = self.cache(), [{"type": "text", "text": words(1)}, {"type": "text", "text": words(2)}]
        cache.ask(CHAT, {"messages": [{"role": "user", "content": parts}]})
        self.assertEqual((cache.last.prompt_tokens, cache.last.stored_blocks, cache.last.skipped), (44, 11, ""))
        self.forget()
        self.cache().ask(CHAT, {"messages": [{"role": "user", "content": f"{words(1)} {words(2)}"}]})
        cache._held.clear()
        cache.ask(CHAT, {"messages": [{"role": "user", "content": f"{words(1)} {words(2)} more"}]})
        self.assertEqual(cache.last.loaded_tokens, 44)

    def test_a_list_of_one_prompt(self):
        self.server()
        cache = self.cache()
        for prompt in ([words(1)], [list(range(30))]):
            first = cache.ask("/v1/completions", {"prompt": prompt})["content"]
            stored = cache.last.stored_blocks
            self.assertEqual((cache.last.skipped, stored > 0), ("", True))
            self.assertEqual(first, self.right({"prompt": prompt[0]}))
            self.forget()
            cache._held.clear()
            self.assertEqual(cache.ask("/v1/completions", {"prompt": prompt})["content"], first)
            self.assertGreater(cache.last.loaded_tokens, 16)

    def test_streams(self):
        self.server()
        cache, body = self.cache(), {"prompt": words(1), "n_predict": 8, "stream": True}
        for loaded, stored in ((0, 7), (20, 0)):
            asked = len(self.now.asked)
            parts = cache.ask("/completion", body)
            self.assertEqual(len(self.now.asked), asked)
            self.assertEqual(self.text(parts), self.right(body))
            self.assertEqual(cache.last[1:5:2] + (cache.last.skipped,), (loaded, stored, ""))
            self.forget()
            cache._held.clear()
        for _ in range(5):      # more than there are slots: each comes back
            parts = cache.ask("/completion", body)
            next(parts)
            parts.close()
        self.assertEqual(self.again(cache, words(1)), 20)
        cache.close()
        self.assertEqual(len(list(cache.ask("/completion", body))), 9)
        self.assertEqual(cache.last.skipped, "it is closed")

    def test_what_is_not_served_says_why(self):
        self.server()
        cache, text = self.cache(), words(1)
        image = [{"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url", "text": "x"}]}]
        for path, body, why in (
                (CHAT, {"messages": image}, "a message has a part of type image_url"),
                ("/completion", {"prompt": text, "lora": [{"id": 0, "scale": 1.0}]}, "lora is given"),
                ("/completion", {"prompt": text, "n": 2}, "n is 2"),
                ("/completion", {"prompt": text, "cache_prompt": False}, "cache_prompt is False"),
                ("/infill", {"prompt": text}, "/infill is not a path of completions"),
                (CHAT, {"messages": [{"role": "user", "content": ["x", "y"]}]}, "a message has a part of type None"),
                ("/completion", {"prompt": [5, -1]}, "the prompt is neither one text nor a list of tokens"),
                ("/completion", {"prompt": [5, 1 << 31]}, "the prompt is neither one text nor a list of tokens")):
            with self.subTest(why):
                self.assertIn("content", cache.ask(path, body))
                self.assertEqual((cache.last.skipped, cache.last.stored_blocks), (why, 0))
        self.assertEqual(self.daemon.stats()["store"]["blocks_total"], 0)
        cache.close()
        cache.ask("/completion", {"prompt": text})
        self.assertEqual(cache.last.skipped, "it is closed")
        with self.assertRaises(TypeError):
            self.cache(ttl=60)

    def test_a_server_that_says_nothing_of_its_model(self):
        server = self.server()
        answer = server.answer
        server.answer = lambda path, body: {} if path == "/props" else answer(path, body)
        self.assertEqual(self.cache().refused, "an answer of the server has no 'model_path'")

    def test_a_server_that_says_it_has_too_many_slots_or_none(self):
        for total in (0, -1, 1 << 40, "7"):
            server = self.server()
            answer = server.answer
            props = {**answer("/props", None), "total_slots": total}
            server.answer = lambda path, body: props if path == "/props" else answer(path, body)
            with self.subTest(total):
                cache = self.cache()
                self.assertRegex(cache.refused, "slots|not supported")
                self.assertIn("content", cache.ask("/completion", {"prompt": words(1)}))

    def test_files_of_processes_that_were_killed(self):
        self.server()
        for name, age in (("kvtier-1-old.bin", 5000), ("kvtier-1-new.bin", 0), ("other.bin", 5000)):
            file = self.slots / name
            file.touch()
            os.utime(file, (file.stat().st_mtime - age,) * 2)
        self.ask(self.cache(), words(1))
        self.assertEqual(sorted(file.name for file in self.slots.iterdir()), ["kvtier-1-new.bin", "other.bin"])

    def test_a_slot_that_its_server_saves_elsewhere(self):
        server = self.server()
        server.directory = self.work / "elsewhere"
        server.directory.mkdir()
        self.assertIn("--slot-save-path", self.cache().refused)

    def test_weights_that_are_not_on_this_machine(self):
        server = self.server()
        server.model = Path("/models/of/another/machine.gguf")
        self.assertIn("`model` names its weights", self.cache().refused)
        cache = self.cache(model="tiny@1")
        cache.ask("/completion", {"prompt": words(1)})
        self.assertEqual((cache.last.stored_blocks, cache.refused), (6, ""))
