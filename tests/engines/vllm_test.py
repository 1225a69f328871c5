# SPDX-License-Identifier: Apache-2.0
"""vllm_test.py - kvtier.vllm under the real vLLM on the CPU. A process continues from what another one computed, and
the engine answers every request as it does without kvtier, whatever becomes of the daemon."""
import contextlib
import importlib.util
import itertools
import json
import math
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path

import vllm_models
from engine_process import MOMENTS, Engine, Trouble, commands, completed, served, serving
from world import Waits, World, host, started

ENGINE = Path(__file__).with_name("vllm_engine.py")
PROXY = Path(__file__).resolve().parents[2] / "client" / "examples" / "prefill_proxy.py"
LARGE = host(256)


def divergence(p: list, q: list) -> float:
    """The Kullback-Leibler divergence of two rows of logarithms, in nats."""
    return sum(math.exp(a) * (a - b) for a, b in zip(p, q))


class Vllm(Trouble, Waits):
    @classmethod
    def setUpClass(cls) -> None:
        cls.work, cls.daemon = started(cls.addClassCleanup, LARGE)
        cls.model = cls.work / "tiny-llama"
        vllm_models.llama(cls.model)
        plain = Engine(ENGINE, str(cls.model), "")
        cls.plain = {seed: plain.ask(seeds=[seed], tokens=600)["tokens"][0] for seed in range(1, 16)}
        cls.knows = plain.ask(knows=True)
        plain.kill()

    def engine(self, options: dict = {}, model: Path = None, **environment: str) -> Engine:
        engine = Engine(ENGINE, str(model or self.model), self.daemon.socket, json.dumps(options), **environment)
        self.addCleanup(engine.kill)
        return engine

    def made(self, kind: str) -> Path:
        """Another model than that of self.plain."""
        to = self.work / kind
        getattr(vllm_models, kind)(to)
        return to

    def carries(self, model: Path, options: dict, blocks: int) -> None:
        """A process continues from what another one computed, also beside a daemon that is killed."""
        ask = {"seeds": [1, 2], "tokens": 600}
        cold = self.engine(options, model)
        plain = cold.ask(**ask)["tokens"]       # its blocks are in nobody's memory yet
        cold.kill()
        warm, before = self.engine(options, model), self.loaded()
        self.until(lambda: warm.ask(**ask)["tokens"] == plain and self.loaded() - before == blocks)
        for delay in (0.0, 0.01):
            warm.begin(**ask)
            time.sleep(delay)
            self.daemon.kill()
            self.assertEqual(warm.read()["tokens"], plain)
            self.daemon.start()
            self.assertEqual(warm.ask(**ask)["tokens"], plain)

    def loaded(self) -> int:
        return self.daemon.stats()["tiers"]["host"]["hit_blocks_total"]

    def stores(self, engine: Engine, seed: int) -> None:
        before = self.daemon.stats()["store"]["blocks_total"]

        def stored() -> bool:
            self.is_right(engine.ask(seeds=[seed], tokens=600), seed)
            return self.daemon.stats()["store"]["blocks_total"] - before >= 600 // 32

        self.until(stored)

    def loads(self, engine: Engine, seed: int) -> None:
        """Asks the prompt, and checks that all its blocks are loaded but the one with its last token."""
        def loaded() -> bool:
            before = self.loaded()
            self.is_right(engine.ask(seeds=[seed], tokens=600), seed)
            return self.loaded() - before == 599 // 32

        self.until(loaded)

    def ends_all(self, engine: Engine) -> None:
        """Until all loads and saves are over, and vLLM has taken their results."""
        self.until(lambda: not engine.ask(seeds=[0], tokens=8, answer=1, busy=True)["busy"])

    def is_right(self, answer: dict, *seeds: int) -> None:
        self.assertEqual(answer["tokens"], [self.plain[seed] for seed in seeds])

    def test_a_prefix_outlives_its_engine(self):
        cold = self.engine()
        self.stores(cold, 1)
        cold.kill()
        self.loads(self.engine(), 1)

    def test_a_model_is_its_content_wherever_it_lies(self):
        ask, copy, other = {"seeds": [15], "tokens": 600}, self.work / "elsewhere" / "copy", self.work / "other"
        shutil.copytree(self.model, copy)
        (copy / "README.md").write_text("new")
        vllm_models.llama(other, seed=8)
        weights = self.model / "model.safetensors"
        os.utime(other / weights.name, ns=(weights.stat().st_atime_ns, weights.stat().st_mtime_ns))
        self.assertEqual((other / weights.name).stat().st_size, weights.stat().st_size)
        for path, came in ((f"{self.model}/", 0), (os.path.relpath(copy), 599 // 32), (other, 0)):
            with self.subTest(path=path):
                log = Path(os.environ["KVTIER_ENGINE_LOGS"]) / f"{ENGINE.stem}.log"
                begun = log.stat().st_size
                engine = self.engine({"extra": {"extras": "content"}}, path)
                self.until(lambda: b"named by their content" in log.read_bytes()[begun:])
                before = self.loaded()
                answer = engine.ask(**ask)["tokens"][0]
                self.assertEqual((answer == self.plain[15], self.loaded() - before), (path != other, came))
                self.until(lambda: engine.ask(**ask) and self.loaded() - before >= 599 // 32)     # they are kept
                engine.kill()

    @unittest.skipUnless(importlib.util.find_spec("torchvision"), "vLLM's models that see images need torchvision")
    def test_a_prompt_shares_all_that_is_before_its_image(self):
        model, options = self.made("llava"), {"llm": {"skip_tokenizer_init": False}}
        asks = {name: {"seeds": [5], "tokens": 600, **({"image": [number, 320]} if number else {})}
                for name, number in (("text", 0), ("cat", 1), ("dog", 2))}
        plain = Engine(ENGINE, str(model), "", json.dumps(options))
        self.addCleanup(plain.kill)
        right = {name: plain.ask(**ask)["tokens"] for name, ask in asks.items()}
        plain.kill()
        self.assertEqual(len({str(tokens) for tokens in right.values()}), 3)
        engine = self.engine(options, model)

        def came(name: str) -> int:
            before = self.loaded()
            self.assertEqual(engine.ask(**asks[name])["tokens"], right[name])
            return self.loaded() - before

        for name, shared, whole in (("text", 0, 599), ("cat", 320, 615), ("dog", 320, 615)):
            self.assertEqual(came(name), shared // 32, name)
            self.until(lambda: came(name) == whole // 32)

    def test_raw_blocks_lead_to_the_very_logits_of_the_engines_own_prefix(self):
        """A prefix that is there is continued in a forward of other shapes than a prompt from its beginning, which
        rounds otherwise. So the measure is the engine's own prefix cache, without kvtier."""
        ask = {"seeds": [1], "tokens": 600, "logprobs": True}
        own = Engine(ENGINE, str(self.model), "", json.dumps({"llm": {"enable_prefix_caching": True}}))
        self.addCleanup(own.kill)
        cold, warm = own.ask(**ask), own.ask(**ask)
        own.kill()
        self.assertEqual((cold["cached"], warm["cached"]), ([0], [576]))
        for extra in ({}, {"zero_copy": False}):
            with self.subTest(**extra):
                options = {"extra": {**extra, "extras": f"logits {extra}"}}
                first = self.engine(options)
                self.assertEqual(first.ask(**ask)["digests"], cold["digests"])
                first.kill()
                second, before = self.engine(options), self.loaded()
                self.assertEqual(second.ask(**ask)["digests"], warm["digests"])
                self.assertEqual(self.loaded() - before, 599 // 32)
                second.kill()

    def test_a_prompt_of_whole_blocks_is_loaded_whole(self):
        """Its last token is a step of its own in each engine, so that all of them compute it in the same shape. The
        daemon stands still meanwhile: that token's block is handed over before the blocks of the first step are kept,
        and is kept all the same."""
        ask, how = {"seeds": [1], "tokens": 608, "logprobs": True}, {"llm": {"max_num_batched_tokens": 607}}
        plain = Engine(ENGINE, str(self.model), "", json.dumps(how))
        self.addCleanup(plain.kill)
        wanted = plain.ask(**ask)["digests"]
        plain.kill()
        options = {**how, "extra": {"extras": "whole", "timeout_ms": 60000}}
        cold = self.engine(options)
        self.stores(cold, 2)        # it has reached the daemon
        self.daemon.process.send_signal(signal.SIGSTOP)
        got = cold.ask(**ask)
        self.daemon.process.send_signal(signal.SIGCONT)
        self.assertEqual(got["digests"], wanted)
        self.ends_all(cold)
        cold.kill()
        warm, before = self.engine(options), self.loaded()
        got = warm.ask(**ask)
        self.assertEqual((got["digests"], got["cached"], self.loaded() - before), (wanted, [608], 608 // 32))

    def test_prompts_with_other_salts_share_nothing(self):
        engine, ask = self.engine(), {"seeds": [4], "tokens": 600}
        for salt, came in (("a", 0), ("b", 0), ("a", 18), ("b", 18), ("c", 0)):
            before = self.loaded()
            self.is_right(engine.ask(**ask, salt=salt), 4)
            self.assertEqual(self.loaded() - before, came, salt)

    def test_weights_that_requests_name(self):
        """As a trainer does it: engines load other weights while they run, and requests say which ones these are. Each
        name has blocks of its own, which outlive a reset and are those of other engines."""
        options, other = {"extra": {"extras": "names", "requests_name_weights": True}}, self.work / "trained"
        vllm_models.llama(other, seed=8)
        ask, shared = {"seeds": [4], "tokens": 600}, 599 // 32
        plain = Engine(ENGINE, str(other), "")
        self.addCleanup(plain.kill)
        right = {self.model: self.plain[4], other: plain.ask(**ask)["tokens"][0]}
        plain.kill()
        self.assertNotEqual(right[self.model], right[other])

        def came(engine: Engine, weights: Path, name: str = "") -> int:
            before = self.loaded()
            answer = engine.ask(**ask, parameters={"weights": name} if name else {})
            self.assertEqual(answer["tokens"], [right[weights]], name)
            return self.loaded() - before

        def trained(engine: Engine, weights: Path) -> None:
            engine.ask(weights=str(weights))
            self.assertTrue(engine.ask(reset=True)["reset"])

        first = self.engine(options)
        for name in ("", "step 1", "step one"):
            self.assertEqual(came(first, self.model, name), 0, name)
            self.until(lambda: came(first, self.model, name) == shared)
        trained(first, other)
        for name in ("", "step 2"):
            self.assertEqual(came(first, other, name), 0, name)
            self.until(lambda: came(first, other, name) == shared)
        second = self.engine(options, other)
        self.assertEqual([came(second, other, name) for name in ("step 2", "")], [shared, 0])
        for engine in (first, second):
            trained(engine, self.model)
            self.assertEqual([came(engine, self.model, name) for name in ("step 1", "")], [shared, 0])

    def test_an_adapter_of_a_hub_whose_branch_moves_on(self):
        cache, ask, answers = self.work / "hub", {"seeds": [5], "tokens": 600}, []
        for commit in ("a" * 40, "a" * 40, "b" * 40):
            ask["lora"] = vllm_models.adapter(cache, commit, seed=ord(commit[0]))
            engine = self.engine({"llm": {"enable_lora": True, "max_lora_rank": 8}}, HF_HUB_CACHE=str(cache),
                                 HF_HUB_OFFLINE="1")
            before = self.loaded()
            answers += engine.ask(**ask)["tokens"]
            self.assertEqual(self.loaded(), before)         # until vLLM has loaded it, its commit is not known
            self.assertEqual(engine.ask(**ask)["tokens"], answers[-1:])
            self.assertEqual(self.loaded() - before, 599 // 32)
            if len(answers) < 3:
                engine.kill()
        self.assertEqual(answers[0], answers[1])
        self.assertNotEqual(answers[0], answers[2])
        vllm_models.adapter(cache, "a" * 40, seed=ord("a"))
        self.assertEqual(engine.ask(**ask)["tokens"], answers[2:])      # of what it has loaded, and not from kvtier
        self.assertEqual(self.loaded() - before, 599 // 32)

    def test_requests_that_the_engine_preempts(self):
        """Its KV has room for the prompts, and not for their answers: blocks are taken back and computed or loaded
        again, while others are being saved. All that was saved is right: an engine with more room goes on there."""
        ask = {"seeds": [31, 32, 33, 34], "tokens": 500, "answer": 300}
        plain = Engine(ENGINE, str(self.model), "")
        self.addCleanup(plain.kill)
        wanted = plain.ask(**ask)["tokens"]
        later = plain.ask(**{**ask, "more": wanted, "answer": 16})["tokens"]
        plain.kill()
        engine = self.engine({"llm": {"num_gpu_blocks_override": 70}})
        self.assertEqual(engine.ask(**ask)["tokens"], wanted)
        self.assertEqual(engine.ask(**ask)["tokens"], wanted)
        counters = engine.ask(counters=True)["counters"]
        self.assertGreater(counters["vllm:num_preemptions"], 0, counters)
        self.assertGreater(counters["vllm:kvtier_loaded_blocks"], 4 * (499 // 32), counters)
        engine.kill()
        roomy, before = self.engine(), self.loaded()
        self.assertEqual(roomy.ask(**{**ask, "more": wanted, "answer": 16})["tokens"], later)
        self.assertEqual(self.loaded() - before, 4 * (799 // 32))

    def test_a_request_says_how_many_tokens_are_loaded_and_kept(self):
        engine, ask = self.engine({"extra": {"extras": "limits"}}), {"seeds": [15], "tokens": 600}

        def moved(**limits: int) -> tuple:
            before = self.daemon.stats()
            self.is_right(engine.ask(**ask, parameters=limits), 15)
            now = self.daemon.stats()
            return tuple(now[op]["blocks_total"] - before[op]["blocks_total"] for op in ("load", "store"))

        self.assertEqual(moved(max_offload_tokens=0), (0, 0))
        self.assertEqual(moved(max_offload_tokens=100)[0], 0)
        self.until(lambda: moved(max_offload_tokens=0) == (100 // 32, 0))
        self.assertEqual(moved(max_load_tokens=70, max_offload_tokens=0), (70 // 32, 0))
        self.assertEqual(moved(max_load_tokens=0, max_offload_tokens=0), (0, 0))

    def test_beside_another_connector(self):
        """vLLM loads a prompt from the first connector that has it, and saves it to both. It knows KvtierConnector by
        the installed package's entry point: where it puts statistics together it looks at no module path."""
        ask, package = {"seeds": [15], "tokens": 600}, self.work / "installed"
        info = package / "kvtier-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvtier\nVersion: 0\n")
        (info / "entry_points.txt").write_text(
            "[vllm.general_plugins]\nkvtier = kvtier.adapters.vllm_plugin:register\n")
        path = f"{package}:{os.environ['PYTHONPATH']}"

        def engine(other: Path) -> Engine:
            connectors = [{"kv_connector": "ExampleConnector", "kv_role": "kv_both",
                           "kv_connector_extra_config": {"shared_storage_path": str(other)}},
                          {"kv_connector": "KvtierConnector", "kv_role": "kv_both",
                           "kv_connector_extra_config": {"socket": str(self.daemon.socket), "extras": "beside"}}]
            ret = Engine(ENGINE, str(self.model), "", json.dumps({"connector": {
                "kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"connectors": connectors}}}), PYTHONPATH=path)
            self.addCleanup(ret.kill)
            return ret

        for name, came in (("a", 0), ("b", 599 // 32), ("b", 0)):
            one, other, before = engine(self.work / name), self.work / name, self.loaded()
            self.is_right(one.ask(**ask), 15)
            self.assertEqual((self.loaded() - before, any(other.iterdir())), (came, True))
            one.kill()

    def test_scheduler_and_worker_in_processes_of_their_own(self):
        self.stores(self.engine(VLLM_ENABLE_V1_MULTIPROCESSING="1"), 2)
        self.loads(self.engine(VLLM_ENABLE_V1_MULTIPROCESSING="1"), 2)

    def test_requests_beside_each_other(self):
        engine = self.engine()
        self.is_right(engine.ask(seeds=[3, 4], tokens=600), 3, 4)
        self.is_right(engine.ask(seeds=[3, 5, 4], tokens=600), 3, 5, 4)

    def changes_little(self, model: Path, options: dict, blocks: int) -> None:
        """A lossy prefix, of so many blocks for each prompt, leads to nearly the same first token."""
        ask = {"seeds": list(range(1, 9)), "tokens": 600, "logprobs": True}
        cold, before = self.engine(options, model), self.daemon.stats()["store"]
        plain = cold.ask(**ask)["logprobs"]
        self.assertGreaterEqual(cold.ask(counters=True)["counters"]["vllm:kvtier_saved_blocks"], 8 * blocks)
        cold.kill()
        image, logical = (self.daemon.stats()["store"][name] - before[name]
                          for name in ("image_bytes_total", "logical_bytes_total"))
        self.assertLess(image, 0.65 * logical)
        warm = self.engine(options, model)
        other = warm.ask(**{**ask, "seeds": [9]})["logprobs"] * 8     # as far as a wrong prefix would lead
        got = warm.ask(**ask)["logprobs"]
        counted = warm.ask(counters=True)["counters"]
        self.assertEqual((counted["vllm:kvtier_loaded_blocks"], counted.get("vllm:kvtier_missed_blocks", 0)),
                         (8 * blocks, 0))
        near, far = (sum(map(divergence, plain, to)) / 8 for to in (got, other))
        print(f"KL of a loaded {options['codec'] or 'fp8'} prefix: {near:.5f} nats; of another prompt: {far:.3f}",
              flush=True)
        self.assertLess(near, 0.02 * far)

    def test_fp8_changes_little(self):
        self.changes_little(self.made("gentle"), {"codec": "", "dtype": "bfloat16"}, 18)

    def test_int8_changes_little(self):
        self.changes_little(self.made("gentle"), {"codec": "int8", "dtype": "bfloat16"}, 18)
        spaces = json.loads(self.daemon.ctl("spaces", "--json"))["spaces"]
        self.assertEqual([space["raw_blocks"] for space in spaces if space["codec"] == "int8"], [0])

    def test_an_engine_that_cannot_continue_is_not_asked_to(self):
        """On a CPU vLLM computes latents (MLA) only from a prompt's beginning."""
        engine, before = self.engine({"llm": {"block_size": 16}}, self.made("latents")), self.daemon.stats()["store"]
        first, second = (engine.ask(seeds=[1], tokens=600) for _ in range(2))
        self.assertEqual((second["tokens"], second["cached"]), (first["tokens"], [0]))
        self.assertEqual(self.daemon.stats()["store"]["blocks_total"], before["blocks_total"])
        self.assertIn("from its beginning alone", engine.log.read_text())

    def test_windows_beside_full_attention(self):
        """Two groups of blocks. 18 of full attention and the last 4 of the window, for each of two prompts. An older
        vLLM makes one group of both."""
        self.carries(self.made("windows"), {}, 2 * (18 + 4 if self.knows["groups"] else 18))

    def test_events_tell_of_blocks_and_a_reset_takes_them_back(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            endpoint = f"tcp://*:{free.getsockname()[1]}"
        engine = self.engine({"events": endpoint})
        self.stores(engine, 5)
        said = []

        def heard(kind: str, n: int) -> bool:
            self.is_right(engine.ask(seeds=[5], tokens=600), 5)
            said.extend(engine.ask(counters=True)["events"])
            return sum(event[0] == kind for event in said) >= n

        self.until(lambda: heard("BlockStored", 18))
        kind = "full_attention" if self.knows["kinds"] else None
        self.assertIn(["BlockStored", 1, "CPU", 32, kind], said)
        self.assertTrue(engine.ask(reset=True)["reset"])
        before = self.loaded()
        self.until(lambda: heard("BlockRemoved", 18))
        self.assertIn(["BlockRemoved", 1, "CPU", 0, None], said)
        self.loads(engine, 5)       # what it computed since
        self.assertGreater(self.loaded(), before)

    def table(self) -> int:
        """How many blocks the daemon has, by its own table."""
        return len(json.loads(self.daemon.ctl("events", "--from", "0", "--json"))["events"])

    def test_routers_hear_of_blocks_that_outlive_their_engine(self):
        """A publisher of the node, and two routers, of which one comes late. It is the daemon's blocks that count."""
        if not self.knows["kinds"]:
            self.skipTest("events of this vLLM are arrays")
        sockets = [f"ipc://{self.work}/{name}" for name in ("publish", "replay")]
        self.daemon.ctl("purge", "--tenant", "default")
        first = Router(*sockets)
        publisher = subprocess.Popen([sys.executable, "-B", "-m", "kvtier.events", "--bind", sockets[0], "--replay",
                                      sockets[1], "--topic", "kv@node@llama", "--socket", self.daemon.socket])
        self.addCleanup(publisher.wait)
        self.addCleanup(publisher.terminate)
        engine = self.engine()
        self.stores(engine, 5)
        engine.kill()
        late = Router(*sockets)
        for router in (first, late):
            self.addCleanup(router.close)
        table = self.table()        # the answer's tokens fill one more
        self.assertGreaterEqual(table, 18)
        self.until(lambda: len(first.hear()) == table)
        chain = [event for event in first.blocks.values() if event.parent_block_hash is None]
        while chain[-1].block_hashes[0] in (nexts := {e.parent_block_hash: e for e in first.blocks.values()}):
            chain.append(nexts[chain[-1].block_hashes[0]])
        self.assertEqual([len(event.token_ids) for event in chain], [32] * table)
        self.assertEqual({(e.medium, e.kv_cache_spec_kind, e.group_idx, e.locality) for e in chain},
                         {("CPU", "full_attention", 0, "LOCAL")})
        other = self.engine()
        self.stores(other, 6)       # the late router hears of these, and asks for what came before
        self.until(lambda: len(late.hear()) == len(first.hear()) == self.table())
        self.daemon.ctl("evict", "--all")
        self.until(lambda: not late.hear() and not first.hear())

    def test_hints_of_requests_are_executed(self):
        if not self.knows["hints"]:
            self.skipTest("requests of this vLLM have no kv_hints")
        engine = self.engine()
        self.stores(engine, 9)       # what another test stored is no store

        def said(action: str, how: dict, kept: bool, **ask) -> bool:
            before = self.daemon.stats()["hints"]["accepted_blocks_total"]
            engine.ask(seeds=[9], hints=[[action, how]], **ask)
            engine.ask(seeds=[9], tokens=600)       # a step in which their answers are taken
            now = self.daemon.stats()["hints"]
            return now["accepted_blocks_total"] - before >= 600 // 32 and (now["kept_bytes"] > 0) == kept

        self.until(lambda: said("pin", {"session": "chat"}, kept=True, tokens=600))
        self.until(lambda: said("ended", {"session": "chat", "scope": "session"}, kept=False, tokens=40))

    def trouble(self, number: int, after) -> None:
        engine, fresh = self.engine(), (10, 11, 12) if number == signal.SIGKILL else (13, 14, 15)

        def counted(*names: str) -> list:
            self.ends_all(engine)
            counters = engine.ask(counters=True)["counters"]
            return [counters.get(f"vllm:kvtier_{name}_blocks", 0) for name in names]

        for seed, (op, moment) in zip((6, 6, 6, *fresh), itertools.product(("load", "store"), MOMENTS)):
            with self.subTest(f"{moment} {op}"):
                self.loads(engine, 6)
                moved, failed = counted("loaded", "saved"), counted("missed" if op == "load" else "unsaved")[0]
                engine.begin(seeds=[seed], tokens=600, stop=op)
                engine.strikes(self.daemon.process, number, moment)
                self.is_right(engine.read(), seed)
                self.is_right(engine.ask(seeds=[6], tokens=600), 6)
                if moment != "after":
                    self.assertEqual(counted("loaded", "saved"), moved)
                    self.assertGreaterEqual(counted("missed" if op == "load" else "unsaved")[0] - failed, 600 // 32)
                after()
        self.loads(engine, 6)

    def test_resets_sleep_and_new_weights_as_without_kvtier(self):
        """As a trainer does it: right after an answer, when no step of the engine follows its saves."""
        other = self.work / "other-weights"
        vllm_models.llama(other, seed=8)
        ask = {"seeds": [16, 17], "tokens": 600}

        def said(engine: Engine) -> list:
            ret = []
            for what in ({}, {"reset": True}, {"sleeps": True}, {"weights": str(other)}, {"reset": True}, {}):
                answer = engine.ask(**ask)
                ret += [answer["tokens"], answer["cached"], engine.ask(**what) if what else {}]
            return ret

        own = {"llm": {"enable_prefix_caching": True}}
        plain = Engine(ENGINE, str(self.model), "", json.dumps(own))
        self.addCleanup(plain.kill)
        wanted = said(plain)
        plain.kill()
        self.assertEqual([wanted[i] for i in (2, 5, 8, 14)], [{}, {"reset": True}, {"awake": True}, {"reset": True}])
        self.assertEqual([wanted[i] for i in (1, 4, 7, 10, 13, 16)], [[0, 0], [576, 576], [0, 0], [0, 0], [576, 576],
                                                                      [0, 0]])
        self.assertNotEqual(wanted[0], wanted[15])
        for processes in "01":
            engine = self.engine({**own, "extra": {"extras": f"reset {processes}"}},
                                 VLLM_ENABLE_V1_MULTIPROCESSING=processes)
            self.assertEqual(said(engine), wanted)
            engine.kill()

    def test_an_engine_that_starts_first_finds_the_daemon_later(self):
        self.daemon.kill()
        engine = self.engine()
        self.is_right(engine.ask(seeds=[8], tokens=600), 8)
        self.daemon.start()
        self.loads(engine, 8)


class Router:
    """Follows the publisher of the node by vLLM's own schema, and asks for what it missed."""

    def __init__(self, publish: str, replay: str) -> None:
        import msgspec
        import zmq
        from vllm.distributed.kv_events import KVEventBatch
        self.decoder, self.blocks, self.next = msgspec.msgpack.Decoder(KVEventBatch), {}, 0
        context = zmq.Context.instance()
        self.sub, self.again = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.sub.connect(publish)
        self.sub.setsockopt_string(zmq.SUBSCRIBE, "kv@")
        self.again.connect(replay)

    def hear(self) -> dict:
        """What is there now, by hash: the last event."""
        while self.sub.poll(300):
            _, number, data = self.sub.recv_multipart()
            if int.from_bytes(number, "big") > self.next:       # a gap
                self.again.send_multipart([b"", self.next.to_bytes(8, "big")])
                while (frames := self.again.recv_multipart())[2] != b"\xff" * 8:
                    self._apply(int.from_bytes(frames[2], "big"), frames[3])
            self._apply(int.from_bytes(number, "big"), data)
        return self.blocks

    def close(self) -> None:
        self.sub.close()
        self.again.close()

    def _apply(self, number: int, data: bytes) -> None:
        if number != self.next:
            return
        self.next += 1
        for event in self.decoder.decode(data).events:
            kind = type(event).__name__
            if kind == "AllBlocksCleared":
                self.blocks.clear()
            for name in getattr(event, "block_hashes", ()):
                if kind == "BlockStored":
                    self.blocks[name] = event
                else:
                    self.blocks.pop(name)


class Server(World):
    """The server that the command in client/python/README.md starts."""
    settings = LARGE

    def setUp(self) -> None:
        super().setUp()
        self.model = self.work / "speaking"
        vllm_models.speaking(self.model)
        # numbers, as the tokenizer makes two tokens of a word that begins as a special one does
        self.body = {"model": "m", "prompt": [3 + i * i % 997 for i in range(600)], "max_tokens": 16,
                     "temperature": 0, "ignore_eos": True}
        self.how = {"env": {**os.environ, "KVTIER_SOCKET": self.daemon.socket, "VLLM_CPU_OMP_THREADS_BIND": "0-1",
                            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}}

    def command(self, of: list) -> list:
        """A command of the page, as a vLLM for the CPU takes it."""
        self.assertEqual(of[:3], ["vllm", "serve", "M"])
        return ["-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model), *of[3:], "--host", "127.0.0.1",
                "--dtype", "float32", "--max-model-len", "2048", "--enforce-eager", "--served-model-name", "m",
                "--no-enable-prefix-caching"]

    def served(self) -> str:
        return served(self.command(commands("vLLM")[0]), "vllm_server.log", self.body, **self.how)

    def test_a_prefix_outlives_its_server(self):
        cold = self.served()
        self.assertGreater(self.daemon.stats()["store"]["blocks_total"], 0)
        self.assertEqual(self.daemon.stats()["load"]["blocks_total"], 0)
        self.assertEqual(self.served(), cold)
        self.assertGreater(self.daemon.stats()["load"]["blocks_total"], 0)
        self.assertEqual(len(cold.split()), 16)

    def test_one_engine_computes_prompts_and_another_one_answers(self):
        engines, proxy = PROXY.read_text().split("\n\n")[1].strip().split("\n")[:2], [str(PROXY)]
        with contextlib.ExitStack() as running:
            def serve(command: list, log: str) -> int:
                return running.enter_context(serving(command, log, **self.how))

            ports = []
            for line in engines:
                command = shlex.split(line)
                del command[3:5]        # its port
                ports.append(serve(self.command(command), "vllm_prefill_decode.log"))
            plain = completed(ports[1], self.body)
            self.assertEqual(self.daemon.stats()["store"]["blocks_total"], 0)
            front = serve([*proxy, *(f"http://127.0.0.1:{port}" for port in ports)], "prefill_proxy.log")
            for stream in (False, True):
                before = self.daemon.stats()["load"]["blocks_total"]
                self.assertEqual(completed(front, {**self.body, "stream": stream}), plain)
                self.assertEqual(self.daemon.stats()["load"]["blocks_total"] - before, 600 // 128)
            away = serve([*proxy, "http://127.0.0.1:9", f"http://127.0.0.1:{ports[1]}"], "prefill_proxy.log")
            self.assertEqual(completed(away, self.body), plain)     # without a prefill engine


if __name__ == "__main__":
    unittest.main(verbosity=2)
