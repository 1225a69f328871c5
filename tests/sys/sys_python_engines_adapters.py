# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=10
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: a request with an adapter (LoRA) hits blocks of the same weights alone, and vLLM's KV is kept under the name of
the weights that it computed with, though a hub's branch moves on.
Method: kvtier.vllm over doubles of torch and of vLLM's classes (vllm_double.py), a kvtierd of its own, a directory that
looks as the cache of huggingface_hub.
"""
import os
from types import SimpleNamespace
from unittest import mock

from sys_python_engines_vllm import LOG, Vllm       # first: it puts the doubles in their places
from kvtier.adapters import vllm_adapters
from vllm_double import Engine


class Adapters(Vllm):
    """Adapters of a hub, whose branch moves on, and of a directory."""
    OLD, NEW = "a" * 40, "b" * 40

    def setUp(self) -> None:
        super().setUp()
        environment = mock.patch.dict(os.environ, {"HF_HUB_CACHE": str(self.work / "hub"), "HOME": str(self.work)})
        environment.start()
        self.addCleanup(environment.stop)
        self.lora = {"lora_request": SimpleNamespace(lora_name="a", lora_path="org/a", lora_int_id=1)}

    def download(self, commit: str) -> None:
        folder = self.work / "hub" / "models--org--a"
        for made in (folder / "refs", folder / "snapshots" / commit):
            made.mkdir(parents=True, exist_ok=True)
        (folder / "refs" / "main").write_text(commit)

    def begun(self, when: float) -> Engine:
        """It has computed with the adapter."""
        with mock.patch.object(vllm_adapters, "BEGAN", when):
            engine = self.engine()
        engine.answer([5] * 7, **self.lora)
        return engine

    def before(self) -> Engine:
        """It began before all that the cache has."""
        return self.begun(0.0)

    def after(self) -> Engine:
        return self.begun(float("inf"))

    def answers(self, engine) -> list:
        return [engine.answer(self.tokens, **self.lora) for _ in range(2)]

    def test_each_commit_has_blocks_of_its_own(self):
        self.download(self.OLD)
        self.assertEqual([self.answers(self.before()), self.answers(self.before())], [[0, 10], [10, 10]])
        self.download(self.NEW)
        self.assertEqual([self.answers(self.after()), self.answers(self.after())], [[0, 10], [10, 10]])
        self.download(self.OLD)
        self.assertEqual(self.answers(self.after()), [10, 10])

    def test_of_a_commit_that_is_not_known_nothing_is_kept(self):
        with self.assertLogs(LOG, "WARNING") as log:
            engine = self.before()
            self.assertEqual(self.answers(engine), [0, 0])      # it is not in the cache
        self.assertEqual([line for line in log.output if "adapter org/a: its requests are not cached" in line],
                         log.output)
        self.assertEqual((len(log.output), self.ops()), (1, (0, 0)))
        self.download(self.OLD)
        self.assertEqual([engine.answer([5] * 7, **self.lora), *self.answers(engine)], [0, 0, 10])
        late = self.after()
        self.download(self.NEW)         # either of them may have been loaded by now
        self.assertEqual([self.answers(engine), self.answers(self.before()), self.answers(late)], [[0, 0]] * 3)
        with mock.patch.dict(os.environ, {"VLLM_USE_MODELSCOPE": "True"}):
            self.assertEqual(self.answers(self.after()), [0, 0])
        self.assertEqual(self.answers(self.after()), [0, 10])

    def test_until_vllm_has_loaded_an_adapter_no_block_is_loaded(self):
        self.download(self.OLD)
        self.answers(self.before())
        engine = self.engine()
        aborted = engine.request(self.tokens, **self.lora)
        self.assertEqual(engine.matched(aborted), 0)
        engine.scheduler.request_finished(aborted, [])
        self.assertEqual(engine.answer(self.tokens, **self.lora), 0)
        self.assertEqual(self.answers(engine), [10, 10])
        self.lora["lora_request"].lora_int_id = 2       # vLLM loads it once more
        self.assertEqual(self.answers(engine), [0, 10])

    def test_what_vllm_computed_with_another_commit_is_not_kept(self):
        self.download(self.OLD)
        engine = self.before()
        request, pages = engine.request(self.tokens, **self.lora), [engine.take(11)]
        self.assertEqual(engine.matched(request), 0)

        def forward() -> None:
            self.download(self.NEW)     # as vLLM does where it loads an adapter that it threw out
            for block in range(10):
                engine.put(self.tokens, block, 0, pages[0][block])

        engine.step(new=[(request, 0, 83, tuple(pages))], forward=forward)
        engine.finish(request, pages)
        self.assertEqual((self.counts(engine)["unsaved_blocks"], self.ops()), (10, (0, 0)))

    def test_a_directory_is_known_by_its_files(self):
        own = self.work / "own"
        own.mkdir()
        for path in (str(own), "~/own"):
            self.lora["lora_request"].lora_path = path
            for files in ("1", "22"):
                (own / "adapter_model.safetensors").write_text(files)
                self.assertEqual(self.answers(self.engine()), [0, 10])

    def test_files_that_vllm_has_not_loaded_name_no_block(self):
        own = self.work / "own"
        own.mkdir()
        self.lora["lora_request"].lora_path = str(own)
        (own / "adapter_model.safetensors").write_text("1")
        engine = self.engine()
        self.assertEqual(self.answers(engine), [0, 10])
        (own / "adapter_model.safetensors").write_text("22")
        with self.assertLogs(LOG, "WARNING") as log:
            self.assertEqual(self.answers(engine), [0, 0])      # vLLM has the first ones
        self.assertEqual(len(log.output), 1)
        self.assertIn("its files are others than at first", log.output[0])
        self.lora["lora_request"].lora_int_id = 2               # vLLM loads it once more
        self.assertEqual(self.answers(engine), [0, 10])

    def test_the_cache_is_where_huggingface_hub_has_it(self):
        for said, where in (({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"), ({"HUGGINGFACE_HUB_CACHE": "/a"}, "/a"),
                            ({"HF_HOME": "~/b"}, "/h/b/hub"), ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
                            ({}, "/h/.cache/huggingface/hub")):
            with mock.patch.dict(os.environ, {**said, "HOME": "/h"}, clear=True):
                self.assertEqual(vllm_adapters._cache(), where)
