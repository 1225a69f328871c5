# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=5
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: a model in local files is its content: prompts share blocks wherever the files lie, and never with other weights;
also while the content is being read, and across the change of the name.
Method: files of a few bytes; the real reader; kvtier.vllm over the doubles of sys_python_engines_vllm.
"""
import ctypes as C
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import llama_double
from sys_python_engines_vllm import LOG, Vllm       # first: it puts the doubles in their places

llama_double.install()

from kvtier.adapters import weights  # noqa: E402
from kvtier.adapters.sglang_core import Pool, Store, geometry_of, runs  # noqa: E402
from kvtier.adapters.weights import Weights  # noqa: E402
from kvtier.llama_cpp import KvtierCache  # noqa: E402
from kvtier import Client, Codec  # noqa: E402
from vllm_double import Engine  # noqa: E402
from world import Waits, World  # noqa: E402


def model_in(folder: Path, content: str = "weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "tiny"}')
    (folder / "model.safetensors").write_text(content)
    return folder


def replaced(file: Path, content: str) -> None:
    """Other content of the same size, in the same inode, with the time of before."""
    before = file.stat()
    time.sleep(0.02)        # the clock of a file system ticks so often
    with open(file, "r+", encoding="ascii") as to:
        to.write(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


class Home:
    """A cache of the test's own, in which digests of fresh files are remembered, too."""

    def its_own(self, work: Path) -> None:
        for what in (mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(work / "cache")}),
                     mock.patch.object(weights, "SETTLED_S", -60.0)):
            what.start()
            self.addCleanup(what.stop)
        self.cache = work / "cache" / "kvtier" / "weights.json"


class Names(Home, Waits):
    def setUp(self) -> None:
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.work = Path(work.name)
        self.its_own(self.work)
        self.model = model_in(self.work / "model")

    def content(self, path) -> str:
        """The name by content. The reader has the names of SETTLED_S in its own process."""
        names = Weights(path)
        self.until(lambda: len(names.names()) == 2)
        return names.names()[0]

    def read_here(self, weights_of: Weights) -> dict:
        return weights.read([at for _, at in weights.files(weights_of._paths[0])], lambda: None)

    def test_the_place_of_the_files_is_no_part_of_their_name(self):
        name = self.content(self.model)
        shutil.copytree(self.model, self.work / "elsewhere")
        (self.work / "link").symlink_to(self.model)
        (self.model / "README.md").write_text("new")
        (self.model / ".cache").mkdir()
        for path in (f"{self.model}/", os.path.relpath(self.model), self.work / "elsewhere", self.work / "link"):
            with self.subTest(path=path):
                self.assertEqual((self.content(path), weights.label(path)), (name, weights.label(self.model)))

    def test_other_weights_are_others_at_once_though_size_and_time_are_equal(self):
        for file in ("model.safetensors", "config.json"):
            with self.subTest(file=file):
                before, content = Weights(self.model), self.content(self.model)
                text = (self.model / file).read_text()
                replaced(self.model / file, text.replace("t", "T"))
                self.assertFalse(before.same())
                self.assertNotIn(Weights(self.model).first, ("", before.first))
                self.assertNotEqual(self.content(self.model), content)

    def test_a_file_of_weights_is_its_content_and_so_are_all_its_parts(self):
        for name in ("a.gguf", "b.gguf", "x-00001-of-00002.gguf", "y-00001-of-00002.gguf"):
            (self.work / name).write_text("one")
        self.assertEqual(self.content(self.work / "a.gguf"), self.content(self.work / "b.gguf"))
        for name in "xy":
            (self.work / f"{name}-00002-of-00002.gguf").write_text("two")
        same = self.content(self.work / "x-00001-of-00002.gguf")
        self.assertEqual(self.content(self.work / "y-00001-of-00002.gguf"), same)
        replaced(self.work / "y-00002-of-00002.gguf", "TWO")
        self.assertNotEqual(self.content(self.work / "y-00001-of-00002.gguf"), same)

    def test_what_is_not_there_has_no_name(self):
        for path in (None, "org/model", self.work / "none", self.work / "x-00001-of-00002.gguf"):
            self.assertEqual((Weights(path).names(), weights.space_of(path, None)), ([""], ""))

    def test_until_the_content_is_known_the_files_are_the_name(self):
        go = threading.Event()
        names = Weights(self.model)
        with mock.patch.object(Weights, "_read", lambda self_: (go.wait(), self.read_here(self_))[1]):
            self.assertEqual(names.names(), [names.first])
            go.set()
            self.until(lambda: len(names.names()) == 2)
        self.assertEqual(names.names()[1], names.first)

    def test_files_that_change_before_they_were_read_keep_the_name_that_they_had(self):
        for change in (lambda: replaced(self.model / "model.safetensors", "WEIGHTS"),
                       lambda: (self.model / "more.safetensors").write_text("x"),
                       lambda: (self.model / "config.json").unlink()):
            said = []
            names = Weights(self.model, say=said.append)
            with mock.patch.object(Weights, "_read", lambda self_: (change(), self.read_here(self_))[1]), \
                    mock.patch.object(weights, "_remembered", dict):
                names.names()
                self.until(lambda: said)
            self.assertIn("was not read", said[0])
            self.assertEqual(names.names(), [names.first])

    def test_weights_that_may_have_been_replaced_after_they_were_loaded_are_nobody_elses(self):
        names, again = Weights(self.model, since=0.0), Weights(self.model, since=0.0)
        self.assertEqual(names.names(), [names.first])
        self.assertNotIn(names.first, (again.first, Weights(self.model, since=2.0 ** 33).first))
        self.assertLess(abs(os.stat(f"/proc/{os.getpid()}").st_ctime - weights.began()), 60)

    def test_what_was_read_once_is_not_read_again(self):
        name = Weights(self.model)
        self.read_here(name)
        with mock.patch.object(weights, "_content", side_effect=OSError), \
                mock.patch.object(Weights, "_read", side_effect=OSError):
            self.content(self.model)
        self.assertEqual(self.cache.stat().st_mode & 0o777, 0o600)

    def test_what_is_known_is_known_at_once(self):
        self.content(self.model)
        with mock.patch.object(Weights, "_learn", side_effect=AssertionError):
            self.assertEqual(len(Weights(self.model).names()), 2)       # this process knows it
            with mock.patch.dict(weights._CONTENT, clear=True):
                self.read_here(Weights(self.model))
                self.assertEqual(len(Weights(self.model).names()), 2)   # its user's file does

    def test_what_was_remembered_is_checked_before_it_is_believed(self):
        self.read_here(Weights(self.model))
        good = self.cache.read_text()
        self.assertEqual(len(weights._remembered()), 2)
        digests = json.loads(good)["digests"]
        for bad in (good[:-9], good.replace(next(iter(digests.values()))[:8], "00000000"), "[" * 100000, "[]", "",
                    '{"digests": [], "sum": "x"}', "\xff"):
            self.cache.write_text(bad)
            self.assertEqual(weights._remembered(), {}, bad[:80])
        self.cache.write_text(good)
        self.cache.chmod(0o620)
        self.assertEqual(weights._remembered(), {})

    def test_a_file_that_was_just_written_is_not_remembered(self):
        with mock.patch.object(weights, "SETTLED_S", 60.0):
            self.read_here(Weights(self.model))
        self.assertFalse(self.cache.exists())

    def test_a_home_that_cannot_be_written_costs_the_memory_alone(self):
        (self.work / "cache").write_text("no directory")
        self.content(self.model)

    def test_the_reader_ends_with_its_engine(self):
        reader = subprocess.run([sys.executable, "-I", "-S", weights.__file__, "1", str(self.model / "config.json")],
                                capture_output=True, text=True, check=False)
        self.assertEqual((reader.returncode, reader.stderr.strip()), (1, "its engine has ended"))


class OfVllm(Home, Vllm):
    def setUp(self) -> None:
        super().setUp()
        self.its_own(self.work)
        began = mock.patch("kvtier.vllm.began", lambda: 2.0 ** 33)
        began.start()
        self.addCleanup(began.stop)
        self.model = model_in(self.work / "model")

    def of(self, path, known: bool = True, **how) -> Engine:
        engine = self.engine(extra={"model": None}, model={"model": str(path)}, **how)
        if known:
            self.until(lambda: len(engine.scheduler._weights.names()) == 2)
        return engine

    def slowly(self):
        """While it lasts nobody gets to know a content."""
        return mock.patch.object(Weights, "_learn", lambda self_: None)

    def test_the_place_of_the_weights_does_not_matter(self):
        self.assertEqual(self.of(self.model).answer(self.tokens), 0)
        shutil.copytree(self.model, self.work / "elsewhere")
        (self.model / "README.md").write_text("new")
        for path in (f"{self.model}/", os.path.relpath(self.model), self.work / "elsewhere"):
            self.assertEqual(self.of(path).answer(self.tokens), 10, path)

    def test_other_weights_in_the_same_place_share_nothing(self):
        for known in (True, False):
            self.of(self.model, known).answer(self.tokens)
            replaced(self.model / "model.safetensors", "WEIGHTS" if known else "weightS")
            self.assertEqual(self.of(self.model).answer(self.tokens), 0)

    def test_blocks_from_before_the_content_was_known_are_found_after_it(self):
        with self.slowly():
            self.of(self.model, known=False).answer(self.tokens)
            self.assertEqual(self.of(self.model, known=False).answer(self.tokens), 10)
        self.assertEqual(self.of(self.model).answer(self.tokens), 10)       # and are kept under the content
        shutil.copytree(self.model, self.work / "elsewhere")
        self.assertEqual(self.of(self.work / "elsewhere").answer(self.tokens), 10)

    def test_a_running_engine_goes_on_across_the_change_of_the_name(self):
        engine = self.of(self.model)
        names = engine.scheduler._weights._names
        engine.scheduler._weights._names = names[1:]
        request = engine.request(self.tokens)
        engine.matched(request)                                 # a request of before
        self.assertEqual(engine.answer(self.tokens), 0)
        engine.scheduler._weights._names = names
        self.assertEqual(engine.matched(request), 80)           # it keeps the name that it began with
        engine.scheduler.request_finished(request, [])
        self.assertEqual(engine.answer(self.tokens + [7] * 9), 10)
        self.assertEqual(engine.answer(self.tokens + [7] * 9), 11)
        engine.scheduler._weights._names = names[:1]
        self.assertEqual(engine.answer(self.tokens + [7] * 9), 11)      # all are kept under the content now

    def test_weights_that_changed_since_the_start_are_this_engines_alone(self):
        with mock.patch("kvtier.vllm.began", lambda: 0.0), self.assertLogs(LOG, "INFO") as log:
            engine = self.of(self.model, known=False)
            self.assertEqual([engine.answer(self.tokens), engine.answer(self.tokens)], [0, 10])
            self.assertEqual(self.of(self.model, known=False).answer(self.tokens), 0)
        self.assertIn("has changed since this process began", log.output[0])

    def test_an_adapter_is_its_content(self):
        adapter = self.work / "adapter"
        adapter.mkdir()
        (adapter / "adapter_model.safetensors").write_text("adapter")
        shutil.copytree(adapter, self.work / "copy")

        def answer(name: str) -> int:
            engine = self.engine()
            lora = SimpleNamespace(lora_name=name, lora_path=str(self.work / name), lora_int_id=1)
            engine.answer([5] * 7, lora_request=lora)
            self.until(lambda: all(len(one.names()) == 2 for one in engine.scheduler._adapters._local.values()))
            return engine.answer(self.tokens, lora_request=lora)

        self.assertEqual([answer("adapter"), answer("copy")], [0, 10])
        replaced(self.work / "copy" / "adapter_model.safetensors", "ADAPTER")
        self.assertEqual(answer("copy"), 0)


class OfOthers(Home, World):
    """Of llama-cpp-python, and of the pages of SGLang."""

    def setUp(self) -> None:
        super().setUp()
        self.its_own(self.work)
        self.prompt = list(range(500, 583))     # ten full blocks

    def loaded(self, path: Path, known: bool = True) -> tuple:
        """(tokens loaded, blocks stored) of a process that has this file of weights."""
        llm, cache = llama_double.Llama(str(path)), KvtierCache(socket=self.daemon.socket, block_tokens=8, pages=3)
        self.addCleanup(cache.close)
        with mock.patch.object(Weights, "_learn", Weights._learn if known else lambda names: None):
            llm.set_cache(cache)
            names = cache._blocks._blocks._names
            self.until(lambda: len(names()) == 1 + known)
            llm(self.prompt)
            return cache.last.loaded_tokens, cache.last.stored_blocks

    def test_a_file_of_llama_cpp_is_its_content(self):
        file, copy = self.work / "model.gguf", self.work / "copy.gguf"
        file.write_text("weights")
        self.assertEqual(self.loaded(file, known=False), (0, 10))
        self.assertEqual(self.loaded(file), (80, 10))           # and are kept under the content
        shutil.copy(file, copy)
        self.assertEqual(self.loaded(copy), (80, 0))
        replaced(copy, "WEIGHTS")
        self.assertEqual(self.loaded(copy), (0, 10))

    def test_pages_of_sglang_are_found_across_the_change_of_the_name(self):
        buffer = bytearray(8 * 4096)
        at = C.addressof(C.c_char.from_buffer(buffer))
        layout = runs(lambda page: [(at + 4096 * page, 4096)], 8, "order")
        names, pages = [["files:1"]], [f"page {i}" for i in range(6)]
        store = Store(lambda: Client(self.daemon.socket), 2000, names=lambda: names[0])
        self.addCleanup(store.close)
        store.add("kv", Pool(layout, geometry_of(layout, "tiny", {}, 8, 0, 1, Codec.RAW)))
        for i in range(4):
            buffer[4096 * i:4096 * i + 4096] = bytes([i + 1]) * 4096
        self.assertEqual(store.set("kv", pages[:4], range(4)), [True] * 4)
        names[0] = ["content:1", "files:1"]
        self.assertEqual(store.set("kv", pages[:2], range(2)), [True] * 2)
        buffer[:] = bytes(len(buffer))
        self.assertEqual((store.exists("kv", pages), store.present("kv", pages)), (4, [True] * 4 + [False] * 2))
        self.assertEqual(store.get("kv", pages, range(6)), [True] * 4 + [False] * 2)
        self.assertEqual([buffer[4096 * i] for i in range(4)], [1, 2, 3, 4])
        names[0] = ["content:2"]
        self.assertEqual(store.exists("kv", pages), 0)
