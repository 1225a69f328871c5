# SPDX-License-Identifier: Apache-2.0
"""transformers_double.py - the part of Hugging Face transformers 5.23 that kvtier.transformers uses: a DynamicCache,
and a model whose KV of a token depends on all tokens up to it, over torch_double. The real one: make test-engines.
"""
import random
from types import SimpleNamespace

import torch_double
from torch_double import module


class Ids:
    """Token ids: rows of equal length, or one."""

    def __init__(self, rows) -> None:
        self.rows = list(rows)
        self.shape = (len(self.rows), len(self.rows[0])) if isinstance(self.rows[0], list) else (len(self.rows),)

    def __getitem__(self, where) -> "Ids":
        row, part = where if isinstance(where, tuple) else (where, slice(None))
        return Ids(self.rows[row][part])

    def tolist(self) -> list:
        return self.rows

    def __len__(self) -> int:
        return len(self.rows)

    def all(self) -> bool:
        return all(all(row) for row in self.rows)

    def new_ones(self, shape) -> "Ids":
        return Ids([[1] * shape[1] for _ in range(shape[0])])


class DynamicLayer:
    """keys, values: [1, heads, tokens, values of a head]."""
    keys = values = None


class DynamicSlidingWindowLayer(DynamicLayer):
    pass


class DynamicCache:
    def __init__(self, config) -> None:
        self.layers = [kind() for kind in config.kinds]

    def get_seq_length(self) -> int:
        return 0 if self.layers[0].keys is None else self.layers[0].keys.shape[2]

    def update(self, keys, values, layer: int) -> None:
        at = self.layers[layer]
        at.keys, at.values = _behind(at.keys, keys), _behind(at.values, values)


def _behind(before, more):
    """Along the axis of tokens."""
    if before is None:
        return more.clone()
    _, heads, n, dim = before.shape
    ret = torch_double.zeros(1, heads, n + more.shape[2], dim, dtype=before.dtype)
    ret[:, :, :n].copy_(before)
    ret[:, :, n:].copy_(more)
    return ret


class Model:
    """weights: a text that stands for them, and changes KV and answers. shapes: of a layer's K and V, (heads, dim)."""
    device, generation_config = torch_double.Device("cpu"), SimpleNamespace(return_dict_in_generate=False)

    def __init__(self, weights: str = "w", dtype=torch_double.float32, shapes=((2, 8), (2, 4)), layers: int = 2,
                 kinds=(), theta: int = 10000) -> None:
        self.weights, self.dtype, self.shapes, self.theta = weights, dtype, shapes, theta
        self.config = SimpleNamespace(kinds=kinds or [DynamicLayer] * layers, _name_or_path="tiny", rope_theta=theta)
        self.computed = 0           # tokens, in the last call of generate()

    def state_dict(self) -> dict:
        data = self.weights.encode()
        value = torch_double.zeros(len(data), dtype=torch_double.uint8)
        value.bytes_at(0, len(data))[:] = data
        return {"weight": value}

    def _kv(self, tokens, first: int, layer: int, side: int):
        """Of the tokens from `first` on."""
        heads, dim = self.shapes[side]
        ret = torch_double.zeros(1, heads, len(tokens) - first, dim, dtype=self.dtype)
        for i in range(first, len(tokens)):
            seed = repr((self.weights, self.theta, layer, side, tokens[:i + 1]))
            row = torch_double.frombuffer(memoryview(bytearray(random.Random(seed).randbytes(
                heads * dim * self.dtype.size))), self.dtype)
            ret[0, :, i - first].copy_(row.unflatten(0, (heads, dim)))
        return ret

    def _forward(self, tokens, past) -> None:
        first = past.get_seq_length()
        for layer in range(len(past.layers)):
            past.update(self._kv(tokens, first, layer, 0), self._kv(tokens, first, layer, 1), layer)

    def __call__(self, input_ids, past_key_values, use_cache: bool) -> None:
        self._forward([0] * input_ids.shape[1], past_key_values)

    def generate(self, input_ids, max_new_tokens: int = 1, past_key_values=None, attention_mask=None,
                 return_dict_in_generate: bool = False, **_):
        """The answer depends on the KV alone, so that what was loaded shows. As in transformers, the last token's KV is
        not computed, and the default mask is one of the tokens that are left to compute."""
        rows, past = [], past_key_values
        for row in input_ids.tolist():
            tokens = list(row)
            past = past_key_values or DynamicCache(self.config)
            self.computed = len(tokens) - past.get_seq_length()
            assert self.computed > 0, "a token is left to compute"
            masked = attention_mask.shape[1] if attention_mask else self.computed
            assert masked == len(tokens), "a mask is one of the whole prompt"
            for _ in range(max_new_tokens):
                self._forward(tokens, past)
                seen = [side.tobytes() for layer in past.layers for side in (layer.keys, layer.values)]
                tokens.append(random.Random(repr(seen)).randrange(1000))
            rows.append(tokens)
        answer = Ids(rows)
        return SimpleNamespace(sequences=answer, past_key_values=past) if return_dict_in_generate else answer


def install() -> None:
    torch_double.install()
    module("transformers", DynamicCache=DynamicCache)
