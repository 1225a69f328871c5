# SPDX-License-Identifier: Apache-2.0
"""llama_demo.py - shows with a real model that a prompt's KV outlives the engine that computed it, and the daemon.

    llama_demo.py --build DIR [--work DIR] [--prefix-tokens N] [--answer-tokens N] [--host-bytes N]

It starts a kvtierd of its own on embedded defaults, and asks a language model (llama.cpp, SmolLM2-135M-Instruct) about
a text of this repository. Every engine process is killed with SIGKILL before the next one starts:

    a   cold, kvtier is empty                      b   warm, another process: logits equal bit for bit
    c   another question on the same document      d   spaces of fp8, int8, lossless: cold, then warm
    e   the daemon is killed with SIGKILL under a running engine, which still answers
    f   the daemon is started again, the engine is a new process: warm from NVMe, logits equal bit for bit

Then two daemons that share only a Redis and a secret, with host memory only:

    g   node A, cold: what it stores goes to Redis, too; the node is killed
    h   node B, which has no blocks itself: warm from Redis, logits equal bit for bit
    i   Redis is killed with SIGKILL and B's memory emptied under the running engine: a miss, the same answer

The exit status is 0 when all of that held, else 1. Text after the table says what did not hold.
"""
from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional

TREE = Path(__file__).resolve().parents[2]
DOCUMENT = TREE / "LICENSE"
QUESTIONS = ("What does this license allow me to do?", "May I use the trademarks of the licensor?")
BLOCK_TOKENS = 64
DEADLINE_S = 180        # for one answer; a cold one takes 7-20 s on two cores


class Failed(Exception):
    """Something the demo needs did not come up; the text says what to look at."""


class Program:
    """A program that the demo runs on a socket of its own, in `run`: a directory with a short path, as sockets need."""

    def __init__(self, log: Path) -> None:
        self.log, self.run = log, Path(tempfile.mkdtemp(prefix="kvtier-demo-"))
        log.unlink(missing_ok=True)

    def spawn(self, arguments: List[str], address: Path, kind: int, **how) -> None:
        """Starts the program, and returns when it answers."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **how)
        try:
            self._wait_until_up(str(address), kind)
        except BaseException:
            self.close()
            raise

    def _wait_until_up(self, address: str, kind: int) -> None:
        end = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < end:
            with socket.socket(socket.AF_UNIX, kind) as probe:
                try:
                    probe.connect(address)
                    return
                except OSError:
                    time.sleep(0.02)
        code = self.process.poll()
        state = "is not there yet" if code is None else f"ended with {code}"
        raise Failed(f"{self.process.args[0]} {state}; its log {self.log} ends so:\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text()[-2000:]

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.run, ignore_errors=True)


class Daemon(Program):
    """kvtierd in directories of its own, on its embedded defaults but for what `config` says."""

    def __init__(self, build: Path, work: Path, config: str = "") -> None:
        work.mkdir(parents=True, exist_ok=True)
        super().__init__(work / "kvtierd.log")
        self.build, self.state, self.socket = build, work / "state", str(self.run / "kvtier.sock")
        self.arguments: List[str] = []
        if config:
            (work / "kvtierd.conf").write_text(config)
            self.arguments = ["--config", str(work / "kvtierd.conf")]
        self._remove_state()        # what an earlier demo left on NVMe would be hit by this one
        self.start()

    def start(self) -> None:
        """Starts the daemon. After kill() it has the same directories, and what is on NVMe."""
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = dict(os.environ, RUNTIME_DIRECTORY=str(self.run), STATE_DIRECTORY=str(self.state))
        environment.pop("NOTIFY_SOCKET", None)
        self.spawn([str(self.build / "kvtierd"), *self.arguments], self.socket, socket.SOCK_SEQPACKET, env=environment)

    def ctl(self, *words: str) -> bytes:
        out = subprocess.run([str(self.build / "kvtierctl"), "--socket", self.socket, *words],
                             stdout=subprocess.PIPE, timeout=10, check=False)
        if out.returncode:
            raise Failed(f"kvtierctl {' '.join(words)}: exit status {out.returncode}")
        return out.stdout

    def stats(self) -> dict:
        return json.loads(self.ctl("stats", "--json"))

    def tier(self, name: str) -> dict:
        """The stats of a tier once it is up (NVMe: has recovered). Failed: they cannot be had."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            tier = self.stats()["tiers"][name]
            if tier["state"] == "up":
                return tier
            if tier["state"] != "starting":
                break
            time.sleep(0.05)
        raise Failed(f"the {name} tier is {tier['state']}; the log {self.log} ends so:\n{self.tail()}")

    def _remove_state(self) -> None:
        shutil.rmtree(self.state, ignore_errors=True)

    def close(self) -> None:
        super().close()
        self._remove_state()        # gigabytes are reserved there


class Redis(Program):
    """A redis-server of the demo's own, with a secret that nodes share; it writes no file."""

    def __init__(self, program: str, work: Path) -> None:
        super().__init__(work / "redis.log")
        self.socket, self.secret = self.run / "redis.sock", work / "secret"
        self.secret.touch(mode=0o600)
        self.secret.write_bytes(os.urandom(32))
        self.spawn([program, "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700", "--save", "",
                    "--appendonly", "no", "--dir", str(self.run)], self.socket, socket.SOCK_STREAM)

    @staticmethod
    def find() -> Optional[str]:
        return shutil.which("redis-server") or shutil.which("valkey-server")

    def config(self) -> str:
        """The configuration of a node that has host memory, and this Redis."""
        return (f"[host]\nbytes = 256M\n[nvme]\nbytes = 0\n[redis]\nendpoints = unix:{self.socket}\n"
                f"secret_file = {self.secret}\ntimeout_ms = 10000\n")    # a busy machine is no fault of Redis


class Engine:
    """An engine process (llama_process.py), which takes and gives lines of JSON."""

    def __init__(self, daemon: Daemon, codec: str, kv: str = "f16") -> None:
        self.daemon = daemon
        environment = dict(os.environ, KVTIER_LIBRARY=str(daemon.build / "libkvtier.so.0"),
                           PYTHONDONTWRITEBYTECODE="1")
        program = Path(__file__).with_name("llama_process.py")
        self.process = subprocess.Popen([sys.executable, str(program), daemon.socket, codec, kv], env=environment,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._read()
        except BaseException:
            self.kill()
            raise

    def _read(self) -> dict:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline() if waiting.select(DEADLINE_S) else b""
        if not line:
            try:
                how = f"ended with status {self.process.wait(timeout=2)}"
            except subprocess.TimeoutExpired:
                how = f"gave no answer in {DEADLINE_S} s"
            raise Failed(f"an engine process {how}; what it said is above")
        return json.loads(line)

    def ask(self, **question) -> dict:
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        self.process.stdin.flush()
        return self._read()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Demo:
    """The runs, what each gave, and whether it was as it must be."""

    def __init__(self, daemon: Daemon, work: Path, prefix_tokens: int, answer_tokens: int) -> None:
        self.daemon, self.work = daemon, work
        self.prefix_tokens, self.answer_tokens = prefix_tokens, answer_tokens
        self.rows: List[Dict[str, str]] = []
        self.failures: List[str] = []
        self.answers: Dict[str, dict] = {}

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.failures.append(what)

    def question(self, run: str, which: int) -> dict:
        return {"document": DOCUMENT.read_text(), "prefix_tokens": self.prefix_tokens,
                "question": QUESTIONS[which], "answer_tokens": self.answer_tokens,
                "logits": str(self.logits(run))}

    def logits(self, run: str) -> Path:
        return self.work / f"logits-{run}.f32"

    def run(self, run: str, title: str, codec: str, which: int = 0,
            judge: Callable[[dict], str] = lambda answer: "", daemon: Optional[Daemon] = None,
            kv: str = "f16") -> dict:
        """Starts an engine process, asks it one question, and kills it with SIGKILL."""
        print(f"  {run:<3} {title}", flush=True)
        engine = Engine(daemon or self.daemon, codec, kv)
        try:
            return self.ask(engine, run, title, which, judge)
        finally:
            engine.kill()

    def ask(self, engine: Engine, run: str, title: str, which: int, judge: Callable[[dict], str]) -> dict:
        before = engine.daemon.stats()
        answer = self.answers[run] = engine.ask(**self.question(run, which))
        after = engine.daemon.stats()
        answer["redis_bytes"] = redis_bytes(after) - redis_bytes(before)
        if answer["redis_bytes"] > 0:
            answer["tier"] = "redis"    # from there into host memory, and from that to the engine
        self.rows.append(self.row(run, title, answer, before, after, judge(answer)))
        return answer

    def row(self, run: str, title: str, answer: dict, before: dict, after: dict,
            verdict: str) -> Dict[str, str]:
        """Adds a row. Its bytes are those stored, or those loaded if no byte was stored. What a prefetch brought from
        Redis is not counted there, as it was loaded from host memory."""
        def grown(part: str, name: str) -> int:
            return after[part][name] - before[part][name]

        stored = grown("store", "logical_bytes_total") > 0
        logical = grown("store" if stored else "load", "logical_bytes_total")
        kept = grown("store", "image_bytes_total") if stored else sum(
            tier["read_bytes_total"] - before["tiers"][name]["read_bytes_total"]
            for name, tier in after["tiers"].items() if name != "redis")
        answer["logical_bytes"], answer["kept_bytes"] = logical, kept
        return {**self.row_of_times(run, title, answer), "logical": megabytes(logical), "kept": megabytes(kept),
                "tier": answer["tier"] or ("host" if stored else "-"), "result": verdict}

    @staticmethod
    def row_of_times(run: str, title: str, answer: dict) -> Dict[str, str]:
        return {"run": run, "": title, "prompt": str(answer["prompt_tokens"]), "hit": str(answer["hit_tokens"]),
                "fetch": f"{answer['fetch_s'] * 1e3:.1f} ms", "TTFT": f"{answer['ttft_s']:.2f} s"}

    def equal(self, run: str, to: str) -> bool:
        return self.logits(run).read_bytes() == self.logits(to).read_bytes()

    def compare_exactly(self, run: str, to: str) -> Callable[[dict], str]:
        def judge(answer: dict) -> str:
            same = answer["tokens"] == self.answers[to]["tokens"]
            exact = self.equal(run, to)
            self.expect(same and exact, f"run {run}: tokens and logits must equal those of run {to}")
            if same and exact:
                return f"tokens, logits as in {to}"
            return f"tokens {'as in' if same else 'NOT as in'} {to}, logits {'too' if exact else 'NOT'}"
        return judge

    @staticmethod
    def stored(answer: dict) -> str:
        return f"stored {answer['stored_blocks']} blocks"

    def compare_tokens(self, to: str) -> Callable[[dict], str]:
        def judge(answer: dict) -> str:
            want = self.answers[to]["tokens"]
            agree = sum(x == y for x, y in zip(answer["tokens"], want))
            return f"{agree} of {len(want)} tokens as {to}"
        return judge

    def check_raw(self) -> None:
        whole = self.prefix_tokens
        cold = self.run("a", "cold", "raw", judge=self.stored)
        self.expect(cold["hit_tokens"] == 0, "run a: nothing can be hit before anything was stored")
        self.expect(cold["stored_blocks"] == cold["prompt_tokens"] // BLOCK_TOKENS,
                    "run a: every full block must be stored")
        warm = self.run("b", "warm, new process", "raw", judge=self.compare_exactly("b", "a"))
        self.expect(warm["hit_tokens"] == (warm["prompt_tokens"] - 1) // BLOCK_TOKENS * BLOCK_TOKENS,
                    "run b: the whole prefix must be hit")
        other = self.run("c", "another question", "raw", which=1, judge=lambda answer: (
            f"{answer['prompt_tokens'] - answer['hit_tokens']} tokens computed"))
        self.expect(other["hit_tokens"] == whole, f"run c: the {whole} tokens of the document must be hit")

    def check_codec(self, codec: str, first: str, second: str, most: float, raw_tokens: int = 0) -> None:
        """most: of the logical bytes; scales and the header weigh little, and the cell headers stay verbatim.
        raw_tokens: how many of the prompt's first tokens stay raw. lossless keeps every bit, so that its warm run must
        equal the cold one. Its KV is BF16, of which it saves more."""
        exact = codec == "lossless"
        kv, title = ("bf16", f"{codec}, BF16") if exact else ("f16", f"{codec} space")
        judge = self.stored if exact else self.compare_exactly(first, "a")
        cold = self.run(first, f"{title}, cold", codec, judge=judge, kv=kv)
        self.expect(cold["hit_tokens"] == 0, f"run {first}: spaces of different codecs must not share blocks")
        judge = self.compare_exactly(second, first) if exact else self.compare_tokens(first)
        warm = self.run(second, f"{title}, warm", codec, judge=judge, kv=kv)
        self.expect(warm["hit_tokens"] >= self.prefix_tokens, f"run {second}: the document must be hit")
        for run in (first, second):
            answer = self.answers[run]
            raw = raw_tokens / ((answer["hit_tokens"] or answer["prompt_tokens"]) // BLOCK_TOKENS * BLOCK_TOKENS)
            limit = raw + (1 - raw) * most
            self.expect(answer["kept_bytes"] <= limit * answer["logical_bytes"],
                        f"run {run}: {codec} must take at most {limit:.2f} of the bytes, not {answer['kept_bytes']} of "
                        f"{answer['logical_bytes']}")

    def check_daemon_killed(self) -> None:
        title = "daemon killed"
        print(f"  e   {title}", flush=True)
        engine = Engine(self.daemon, "raw")
        try:
            up = engine.ask(**self.question("e-before", 0))
            self.expect(up["hit_tokens"] > 0, "run e: before the daemon is killed the prefix must be hit")
            self.daemon.kill()
            answer = self.answers["e"] = engine.ask(**self.question("e", 0))
        finally:
            engine.kill()
        self.expect(answer["kvtier"] not in ("ok", "not connected"), "run e: the engine must notice the loss")
        self.rows.append({**self.row_of_times("e", title, answer), "logical": "-", "kept": "-", "tier": "-",
                          "result": self.compare_exactly("e", "a")(answer)})

    def check_both_killed(self) -> None:
        """Checks that after run e the engine and the daemon have ended, so that all they had in memory is lost."""
        self.daemon.start()
        before = self.daemon.tier("nvme")["hit_blocks_total"]
        warm = self.run("f", "both killed: from NVMe", "raw", judge=self.compare_exactly("f", "a"))
        hits = self.daemon.tier("nvme")["hit_blocks_total"] - before
        self.expect(warm["hit_tokens"] == self.answers["b"]["hit_tokens"],
                    "run f: the whole prefix must be hit, as in run b")
        blocks = warm["hit_tokens"] // BLOCK_TOKENS
        self.expect(0 < hits == blocks, f"run f: stats must say that NVMe gave all {blocks} blocks, not {hits}")

    def check_two_nodes(self) -> None:
        program = Redis.find()
        if not program:
            print("  g to i are left out: there is no redis-server here (make deps brings one)", flush=True)
            return
        redis = Redis(program, self.work)
        try:
            self.fill_redis(redis)
            self.check_redis(redis)
        finally:
            redis.close()

    def fill_redis(self, redis: Redis) -> None:
        node = Daemon(self.daemon.build, self.work / "node-a", redis.config())
        try:
            node.tier("redis")
            cold = self.run("g", "node A, cold, Redis", "raw", daemon=node, judge=self.compare_exactly("g", "a"))
            self.expect(cold["hit_tokens"] == 0, "run g: an empty node and an empty Redis can have nothing")
            end = time.monotonic() + 30
            while node.tier("redis")["written_blocks_total"] < cold["stored_blocks"]:
                if time.monotonic() > end:
                    raise Failed("node A's blocks did not get to Redis within 30 s")
                time.sleep(0.05)
        finally:
            node.close()

    def check_redis(self, redis: Redis) -> None:
        node = Daemon(self.daemon.build, self.work / "node-b", redis.config())
        engine = None
        try:
            node.tier("redis")
            print("  h   node B, from Redis", flush=True)
            engine = Engine(node, "raw")
            warm = self.ask(engine, "h", "node B, from Redis", 0, self.compare_exactly("h", "a"))
            self.expect(warm["hit_tokens"] == self.answers["b"]["hit_tokens"],
                        "run h: the whole prefix must be hit, as in run b")
            self.expect(0 < warm["redis_bytes"] == warm["kept_bytes"],
                        f"run h: stats must say that Redis gave all {warm['kept_bytes']} bytes that were loaded, not "
                        f"{warm['redis_bytes']}")
            print("  i   Redis killed", flush=True)
            redis.kill()
            node.ctl("evict", "--all")
            miss = self.ask(engine, "i", "Redis killed", 0, self.compare_exactly("i", "a"))
            self.expect(miss["hit_tokens"] == 0 and miss["kvtier"] == "ok",
                        f"run i: without Redis there must be a miss and no more, not {miss['hit_tokens']} tokens and "
                        f"\"{miss['kvtier']}\"")
        finally:
            if engine:
                engine.kill()
            node.close()

    def report(self) -> None:
        print()
        print_table(self.rows)
        for run, which in (("a", 0), ("c", 1)):
            print(f"\nQ: {QUESTIONS[which]}\nA: {self.answers[run]['answer']}")
        for codec, run in (("fp8", "d2"), ("int8", "d4"), ("q4", "d6")):
            print(f"\nThe first one from the {codec} space (run {run}):\nA: {self.answers[run]['answer']}")
        print("\nAfter the daemon was killed the engine answered and said of kvtier: "
              f"{self.answers['e']['kvtier']}")
        cold, warm = self.answers["a"], self.answers["b"]
        print(f"\nFirst token after {warm['ttft_s']:.2f} s instead of {cold['ttft_s']:.2f} s: "
              f"{cold['ttft_s'] / warm['ttft_s']:.1f} times sooner.")
        nvme = self.answers["f"]
        print(f"After kill -9 of engine and daemon, from NVMe: {nvme['ttft_s']:.2f} s, "
              f"{cold['ttft_s'] / nvme['ttft_s']:.1f} times sooner.")
        if "h" in self.answers:
            shared = self.answers["h"]
            print(f"On another node, from the Redis they share: {shared['ttft_s']:.2f} s, "
                  f"{cold['ttft_s'] / shared['ttft_s']:.1f} times sooner.")


def redis_bytes(stats: dict) -> int:
    return stats["tiers"]["redis"]["read_bytes_total"]


def megabytes(n: int) -> str:
    return f"{n / 1e6:.1f} MB" if n else "-"


def print_table(rows: List[Dict[str, str]]) -> None:
    names = list(rows[0])
    width = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    right = {"prompt", "hit", "fetch", "TTFT", "logical", "kept"}

    def line(cells: Dict[str, str]) -> str:
        return "  ".join(cells[n].rjust(width[n]) if n in right else cells[n].ljust(width[n])
                         for n in names).rstrip()

    print(line({name: name for name in names}))
    print("  ".join("-" * width[name] for name in names))
    for row in rows:
        print(line(row))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A real model, cold then warm in new processes, by kvtierd.")
    parser.add_argument("--build", type=Path, default=TREE / "build",
                        help="directory with kvtierd, kvtierctl, libkvtier.so.0")
    parser.add_argument("--work", type=Path, help="directory for sockets, state, logits (default BUILD/demo)")
    parser.add_argument("--prefix-tokens", type=int, default=2048,
                        help="tokens of the document, a multiple of 64")
    parser.add_argument("--answer-tokens", type=int, default=40)
    for tier, place in ("host", "memory"), ("nvme", "disk"):
        parser.add_argument(f"--{tier}-bytes", help=f"of {place} for kvtierd, instead of its default")
    options = parser.parse_args()
    if options.prefix_tokens <= 0 or options.prefix_tokens % BLOCK_TOKENS or options.prefix_tokens > 2048:
        parser.error(f"--prefix-tokens must be a multiple of {BLOCK_TOKENS}, at most 2048")
    options.build = options.build.resolve()
    options.work = (options.work or options.build / "demo").resolve()
    return options


def main() -> int:
    options = arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    daemon = None
    try:
        print("starting kvtierd", flush=True)
        sizes = ("host", options.host_bytes), ("nvme", options.nvme_bytes)
        daemon = Daemon(options.build, options.work,
                        "".join(f"[{tier}]\nbytes = {size}\n" for tier, size in sizes if size))
        daemon.tier("nvme")
        demo = Demo(daemon, options.work, options.prefix_tokens, options.answer_tokens)
        print("asking; each engine is a new process, killed (SIGKILL) before the next:", flush=True)
        demo.check_raw()
        demo.check_codec("fp8", "d1", "d2", 0.51)
        demo.check_codec("int8", "d3", "d4", 0.52)
        demo.check_codec("q4", "d5", "d6", 0.28, raw_tokens=64)
        demo.check_codec("lossless", "d7", "d8", 0.73)
        demo.check_daemon_killed()
        demo.check_both_killed()
        demo.check_two_nodes()
        demo.report()
    except Failed as failure:
        print(f"llama_demo: {failure}", file=sys.stderr)
        return 1
    finally:
        if daemon:
            daemon.close()
    print(f"({time.monotonic() - started:.0f} s)")
    for failure in demo.failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if demo.failures else 0


if __name__ == "__main__":
    sys.exit(main())
