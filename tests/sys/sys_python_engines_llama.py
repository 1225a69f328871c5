# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=15
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: KvtierCache keeps its contract with llama-cpp-python: a prompt is continued from what any process computed of it,
with the same answer; nothing is stored under another prompt's key, and no exception reaches the engine.
Method: doubles of llama-cpp-python and of llama.cpp's memory, a kvtierd of its own. The real llama.cpp:
sys_llama_layout; the real llama-cpp-python: make test-engines.
"""
import logging
import os
import random
import signal
import unittest
from unittest import mock

import llama_double

llama_double.install()

from kvtier import Codec, Tier  # noqa: E402
from kvtier.llama_cpp import KvtierCache, Layout, LayoutError  # noqa: E402
from kvtier.llama_cpp_python import identity, main  # noqa: E402
from world import World, one_name  # noqa: E402

BLOCK = 8


class Contract(World):
    def setUp(self) -> None:
        logging.getLogger("kvtier").setLevel(logging.ERROR)
        super().setUp()
        one_name(self.addCleanup)
        self.file = self.work / "model.gguf"
        self.file.write_bytes(b"weights")
        self.prompt = list(range(500, 583))     # ten full blocks

    def llama(self, cached: bool = True, **options) -> llama_double.Llama:
        """A Llama as a process of its own would make it."""
        llm = llama_double.Llama(str(self.file), **options)
        if cached:
            cache = KvtierCache(socket=self.daemon.socket, block_tokens=BLOCK, pages=3)
            self.addCleanup(cache.close)
            llm.set_cache(cache)
        return llm

    def ask(self, llm, prompt) -> int:
        """How many tokens were not computed. The answer must be the one of a Llama that has no cache."""
        plain = self.llama(cached=False, **{"type": llm.memory.type, "value": llm.memory.value})(prompt)
        before = llm.computed
        self.assertEqual(llm(prompt), plain)
        return len(prompt) + len(plain) - 1 - (llm.computed - before)

    def test_another_process_continues_where_one_stopped(self):
        first = self.llama()
        self.assertEqual(self.ask(first, self.prompt), 0)
        self.assertEqual(first.cache.last, (83, 0, Tier(0), 10, "", None))
        second = self.llama()
        self.assertEqual(self.ask(second, self.prompt), 80)
        self.assertEqual(second.cache.last, (83, 80, Tier.HOST, 0, "", None))

    def test_each_layout_is_read_and_kept(self):
        for options in (dict(transposed=False), dict(ids=True), dict(transposed=False, type=8, value=3),
                        dict(type=0, value=4), dict(words=bytes(8)), dict(transposed=False, type=30)):
            with self.subTest(options):
                for hit in (0, 80):
                    llm = self.llama(**options)
                    self.assertEqual(llm.cache.refused, "")
                    self.assertEqual(self.ask(llm, self.prompt), hit)

    def test_blocks_are_shared_where_prompts_are(self):
        self.ask(self.llama(), self.prompt)
        llm = self.llama()
        self.assertEqual(self.ask(llm, self.prompt[:20] + [7] * 30), 16)
        self.assertEqual(self.ask(llm, self.prompt), 80)
        self.assertEqual(self.ask(self.llama(), self.prompt[:20] + [7] * 25), 40)

    def test_a_conversation_that_the_context_holds_goes_on_there(self):
        llm = self.llama()
        answer = llm(self.prompt)
        prompt = self.prompt + answer + [3]
        self.assertEqual(self.ask(llm, prompt), 86)     # the answer's last token was not computed
        self.assertEqual(llm.cache.last[1:4], (0, Tier(0), 1))

    def test_the_whole_prompt_leaves_a_token_to_compute(self):
        self.ask(self.llama(), self.prompt[:80])
        self.assertEqual(self.ask(self.llama(), self.prompt[:80]), 72)

    def test_stale_tokens_behind_the_context_are_not_taken_for_it(self):
        llm = self.llama()
        self.ask(llm, self.prompt)
        llm.n_tokens = 0                # its input_ids are still there
        self.assertEqual(self.ask(llm, self.prompt), 80)

    def test_no_state_is_copied_but_for_its_user(self):
        llm = self.llama()
        self.ask(llm, self.prompt)
        self.assertEqual(llm.states, 0)
        self.assertEqual((llm.save_state().llama_state, llm.states), (b"state", 1))
        llm.set_cache(None)
        llm.set_cache(mock.MagicMock(__getitem__=mock.Mock(side_effect=KeyError)))
        llm(self.prompt)
        self.assertEqual(llm.states, 2)

    def test_nothing_is_stored_under_tokens_that_the_context_does_not_hold(self):
        llm = self.llama()
        self.ask(llm, self.prompt)
        other = self.prompt[:20] + [7] * 63
        llm.cache[other] = llm.save_state()
        self.assertEqual(self.ask(self.llama(), other), 16)

    def test_what_changes_the_kv_is_another_model(self):
        lora = self.file.with_name("lora.gguf")
        lora.write_bytes(b"adapter")
        another = self.file.with_name("another.gguf")
        another.write_bytes(b"adapter of something else")
        def of(llm) -> tuple:
            weights, extras = identity(llm)
            return weights.first, extras

        said = {of(self.llama(cached=False, **options)) for options in (
            {}, {"lora_path": str(lora)}, {"lora_path": str(lora), "lora_scale": 0.5}, {"lora_path": str(another)},
            {"kv_overrides": {"a": 1}})}
        ropes = self.llama(cached=False)
        ropes.context_params.rope_freq_base = 1e6
        said.add(of(ropes))
        os.utime(self.file, ns=(1, 1))
        said.add(of(self.llama(cached=False)))
        self.assertEqual(len(said), 7)
        link = self.file.with_name("link.gguf")
        link.symlink_to(self.file)
        self.assertEqual(of(self.llama(cached=False)), of(llama_double.Llama(str(link))))

    def test_all_parts_of_a_split_file_count(self):
        parts = [self.file.with_name(f"big-{i:05}-of-00002.gguf") for i in (1, 2)]
        for part in parts:
            part.write_bytes(b"weights")
        before, _ = identity(llama_double.Llama(str(parts[0])))
        os.utime(parts[1], ns=(1, 1))
        self.assertFalse(before.same())

    def test_images_are_neither_stored_nor_loaded(self):
        self.ask(self.llama(), self.prompt)

        class Eyes:
            _mtmd_cpp = None

        for handler in (Eyes(), (lambda base: lambda: base)(Eyes())):
            llm = self.llama(chat_handler=handler)
            self.assertEqual(self.ask(llm, self.prompt + [9] * 20), 0)
            self.assertNotIn(self.prompt, llm.cache)
            self.assertIn("images", llm.cache.refused)
        self.assertEqual(self.ask(self.llama(), self.prompt + [9] * 20), 80)

    def test_what_is_not_served_is_said_and_runs(self):
        for options, words in ((dict(recurrent=True), "state-space"), (dict(spoils=True), "round trip"),
                               (dict(words=b"four"), "one K and at most one V"), (dict(logits_all=True), "logits")):
            llm = self.llama(**options)
            self.assertRegex(llm.cache.refused, words)
            self.assertEqual(self.ask(llm, self.prompt), 0)
            self.assertEqual(llm.cache.last[4:], (llm.cache.refused, None))
        llm = self.llama(cached=False)
        llm.cache = KvtierCache(socket=self.daemon.socket)
        self.assertEqual(self.ask(llm, self.prompt), 0)
        self.assertIn("KvtierCache(llm)", llm.cache.refused)

    def served(self, *models: dict) -> tuple:
        """(the models, the lines of the log) of a server that main() has started."""
        loaded, given = [], [llama_double.ModelSettings(str(self.file), **model) for model in models]
        llama_double.server(given, loaded)
        logging.getLogger("kvtier").setLevel(logging.WARNING)
        with mock.patch.dict(os.environ, KVTIER_SOCKET=self.daemon.socket), self.assertLogs(level="WARNING") as log:
            main()
        self.addCleanup(lambda: [llm.cache and llm.cache.close() for llm in loaded])
        return loaded, [record.getMessage() for record in log.records]

    def test_a_server_has_a_cache_by_default(self):
        (first, second, none), lines = self.served({}, {"cache": True, "cache_type": "disk"}, {"cache": False})
        self.assertEqual(lines, ["Uvicorn running"])
        tokens = list(range(70))        # a block of 64 tokens
        self.assertEqual([self.ask(first, tokens), self.ask(second, tokens)], [0, 64])
        self.assertEqual((none.cache, none._logits_all), (None, True))

    def test_what_keeps_a_server_from_its_cache_is_its_last_line(self):
        for given in ({"logits_all": True}, {"cache": True, "draft_model": "prompt-lookup-decoding"}):
            (llm,), lines = self.served(given)
            self.assertEqual(lines[-2:], ["Uvicorn running", f"kvtier: this model runs without a cache: "
                                          f"{llm.cache.refused}"])
        self.daemon.kill()
        _, lines = self.served({})
        self.assertEqual(lines[-2], "Uvicorn running")
        self.assertRegex(lines[-1], "kvtier: prompts are computed until a daemon answers: .*kvtier.sock")

    def test_a_cache_is_for_one_llama(self):
        first, second = self.llama(), self.llama(cached=False)
        second.set_cache(first.cache)
        self.assertRegex(first.cache.refused, "another")
        self.ask(first, self.prompt)
        self.assertEqual(first.cache.last.stored_blocks, 10)

    def test_a_llama_that_is_gone_takes_its_cache_along(self):
        llm = self.llama()
        cache = llm.cache
        del llm
        self.assertIsNone(cache._llm())

    def test_the_daemon_comes_later(self):
        self.daemon.kill()
        llm = self.llama()
        self.assertEqual(self.ask(llm, self.prompt), 0)
        self.assertIsNotNone(llm.cache.last.error)
        self.daemon.start()
        other = list(range(40))
        self.until(lambda: self.ask(llm, other) >= 0 and llm.cache.last.stored_blocks > 0)

    def test_the_daemon_is_killed_and_comes_back(self):
        llm = self.llama()
        self.ask(llm, self.prompt)
        self.daemon.kill()
        self.ask(llm, list(range(30)))
        self.assertEqual(self.ask(llm, self.prompt), 0)
        self.daemon.start()
        self.until(lambda: [self.ask(llm, list(range(30))), self.ask(llm, self.prompt)][1] == 80)

    def test_the_daemon_stands_still(self):
        llm = self.llama()
        self.ask(llm, self.prompt)
        self.daemon.process.send_signal(signal.SIGSTOP)
        for tokens in (30, 40):
            self.ask(llm, list(range(tokens)))
            self.ask(llm, self.prompt)
        self.daemon.process.send_signal(signal.SIGCONT)
        self.until(lambda: [self.ask(llm, list(range(30))), self.ask(llm, self.prompt)][1] == 80)

    def test_any_prompts_in_any_order(self):
        seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
        print(f"SEED={seed}", flush=True)
        of, llamas, loaded = random.Random(seed), [self.llama() for _ in range(3)], 0
        for _ in range(60):
            shared = [1] * of.choice((0, 8, 30)) + [2] * of.choice((0, 8, 21))
            self.ask(llm := of.choice(llamas), shared + [of.randrange(4) for _ in range(of.randrange(1, 30))])
            loaded += bool(llm.cache.last.tiers)
        self.assertGreater(loaded, 5)


class Layouts(unittest.TestCase):
    def test_bytes_that_are_not_a_token_are_refused(self):
        good = llama_double.Memory(9, words=bytes(8))
        good.decode([5], [])
        data = good.state(0)
        heads = good.heads()
        self.assertEqual(Layout.of_sample(data, heads, 4).planes[3].row, 32)
        without_v = len(data) - llama_double.LAYERS * (12 + 32)
        for n in sorted(set(range(len(data))) - {without_v}):
            with self.assertRaises(LayoutError):
                Layout.of_sample(data[:n], heads, 4)
        with self.assertRaises(LayoutError):
            Layout.of_sample(data + data[8:], heads, 4)      # as of a model with a sliding window
        good.decode([6], [5])
        with self.assertRaises(LayoutError):
            Layout.of_sample(good.state(0), heads, 4)

    def test_every_byte_of_a_page_is_in_one_segment(self):
        for options in (dict(), dict(transposed=False), dict(transposed=False, type=8, value=3)):
            memory = llama_double.Memory(9, **options)
            memory.decode([5], [])
            layout = Layout.of_sample(memory.state(0), memory.heads(), 4)
            geometry, end = layout.geometry("m", "", Codec.RAW), 0
            for s in layout.segments():
                self.assertEqual(s.offset, end)
                end += s.token_stride * 4 or s.length * (1 if s.kind == 4 else 2)
            self.assertEqual((end, len(layout.sample())), (layout.size, layout.size))
            self.assertEqual(geometry.typed_segments, llama_double.LAYERS if memory.transposed else 0)
