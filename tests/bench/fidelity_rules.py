# SPDX-License-Identifier: Apache-2.0
"""fidelity_rules.py - how other caches keep KV in 4 bits, computed by their published rules: what fidelity.py compares
kvtier's codecs with. Each function takes values [..., tokens, dim] and returns what comes back, in FP32.

    nvfp4       E2M1 values; 16 along the dim share a scale in E4M3, amax / 6. The scale of the whole tensor is 1, as
                vLLM and TensorRT-LLM have it without calibration.
    turboquant  vLLM's turboquant_4bit_nc. Keys: the norm in FP16; the direction rotated by a Hadamard matrix, then the
                nearest of 16 Lloyd-Max levels of a normal distribution, then made a direction again ("norm
                correction"). Values: 16 even steps from the least to the greatest of a token's head; least and step in
                FP16.
"""
import functools
import math

import torch

NVFP4_BITS = 4 + 8 / 16


def turboquant_bits(dim: int) -> float:
    """Bits a value, K and V together."""
    return 4 + (16 + 2 * 16) / (2 * dim)


def nvfp4(values: torch.Tensor) -> torch.Tensor:
    groups = values.float().unflatten(-1, (-1, 16))
    scale = (groups.abs().amax(dim=-1, keepdim=True) / 6).clamp(max=448).to(torch.float8_e4m3fn).float()
    size = torch.where(scale > 0, groups.abs() / scale, 0).clamp(max=6)
    # E2M1 has steps of 1/2 below 2, of 1 below 4, of 2 up to 6; ties go to the even code
    step = torch.ldexp(torch.ones_like(size), (torch.frexp(size).exponent - 2).clamp(min=-1))
    return (torch.round(size / step) * step * scale).copysign(groups).flatten(-2)


@functools.cache
def lloyd_max(levels: int) -> torch.Tensor:
    """[levels]: each the mean of the standard normal distribution between the middles to its neighbours."""
    def below(x: float) -> float:
        return math.erf(x / math.sqrt(2)) / 2

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    at = [6 * (i + 0.5) / levels - 3 for i in range(levels)]
    for _ in range(2000):
        edges = [-math.inf, *((a + b) / 2 for a, b in zip(at, at[1:])), math.inf]
        at = [(density(a) - density(b)) / (below(b) - below(a)) for a, b in zip(edges, edges[1:])]
    return torch.tensor(at)


@functools.cache
def hadamard(dim: int) -> torch.Tensor:
    """[dim, dim], its own inverse; dim is a power of two."""
    bits = torch.arange(dim)
    common = bits[:, None] & bits[None, :]
    odd = sum(common >> i & 1 for i in range(dim.bit_length())) % 2
    return (1 - 2.0 * odd) / math.sqrt(dim)


def turboquant_keys(keys: torch.Tensor) -> torch.Tensor:
    keys, dim = keys.float(), keys.shape[-1]
    norm = torch.linalg.vector_norm(keys, dim=-1, keepdim=True)
    turned = keys / norm.clamp(min=1e-8) @ hadamard(dim)
    levels = lloyd_max(16) / math.sqrt(dim)
    near = levels[torch.bucketize(turned, (levels[1:] + levels[:-1]) / 2)]
    return torch.nn.functional.normalize(near, dim=-1) @ hadamard(dim) * norm.half().float()


def turboquant_values(values: torch.Tensor) -> torch.Tensor:
    values = values.float()
    least, greatest = values.amin(dim=-1, keepdim=True), values.amax(dim=-1, keepdim=True)
    step = ((greatest - least) / 15).clamp(min=1e-8)
    codes = torch.floor((values - least) / step + 0.5).clamp(0, 15)
    return codes * step.half().float() + least.half().float()
