# SPDX-License-Identifier: Apache-2.0
"""transformers_double.py - the part of Hugging Face transformers 5.23 that kvtier.transformers uses: a DynamicCache,
and a model whose KV of a token depends on all tokens up to it, over torch_double. The real one: make test-engines.
"""
import hashlib
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


class GenerationConfig:
    """Settings that nobody gave are None."""

    def __init__(self, **settings) -> None:
        self.num_beams = self.cache_implementation = self.prompt_lookup_num_tokens = None
        self.return_dict_in_generate = self.pad_token_id = self.eos_token_id = None
        self.__dict__.update(settings)


class Config(SimpleNamespace):
    def to_dict(self) -> dict:
        return dict(vars(self))


class Model:
    """Its KV depends on weights, a text; on embedding, a byte for each token; on theta, of its config; on eps and
    adapter, attributes of a module; and on chance, if it is there. shapes: of a layer's K and V, (heads, dim)."""
    device = torch_double.Device("cpu")

    def __init__(self, weights: str = "w", dtype=torch_double.float32, shapes=((2, 8), (2, 4)), layers: int = 2,
                 kinds=(), theta: int = 10000, eps: float = 1e-6) -> None:
        self._weights, self._embedding = (_tensor(data) for data in (weights.encode(), bytes(64)))
        self.eps, self.adapter = eps, "a"
        self.config = Config(kinds=kinds or [DynamicLayer] * layers, _name_or_path="tiny", rope_theta=theta)
        self.generation_config = GenerationConfig()
        self._own = SimpleNamespace(computed=0, chance=None, shapes=shapes, dtype=dtype)

    computed = property(lambda self: self._own.computed, doc="tokens, in the last call of generate()")

    def change(self, what: str, value) -> None:
        """Of weights and embedding the tensor is the same one, and has other bytes: (at, byte)."""
        if what in ("weights", "embedding"):
            getattr(self, f"_{what}").bytes_at(value[0], 1)[:] = value[1]
        elif what == "rope_theta":
            self.config.rope_theta = value
        elif what in ("chance", "dtype"):
            setattr(self._own, what, value)
        else:
            setattr(self, what, value)

    # --- as torch's Module ---

    def state_dict(self) -> dict:
        return {"weight": self._weights, "embedding": self._embedding}

    def named_buffers(self, remove_duplicate: bool) -> list:
        return []

    def named_modules(self) -> list:
        return [("", self)]

    def modules(self) -> list:
        return [self]

    def forward(self, input_ids, past_key_values, use_cache: bool) -> None:
        self._forward(input_ids.tolist()[0], past_key_values)

    __call__ = forward

    def _kv(self, tokens, first: int, layer: int, side: int):
        """Of the tokens from `first` on."""
        own = self._own
        heads, dim = own.shapes[side]
        ret = torch_double.zeros(1, heads, len(tokens) - first, dim, dtype=own.dtype)
        embedding = self._embedding.tobytes()
        seed = repr((self._weights.tobytes(), self.config.rope_theta, self.eps, self.adapter, layer, side,
                     own.chance and own.chance.random())).encode()
        for i, token in enumerate(tokens):
            seed = hashlib.sha256(seed + b"%d %d" % (token, embedding[token % len(embedding)])).digest()
            if i >= first:
                row = torch_double.frombuffer(memoryview(bytearray(random.Random(seed).randbytes(
                    heads * dim * own.dtype.size))), own.dtype)
                ret[0, :, i - first].copy_(row.unflatten(0, (heads, dim)))
        return ret

    def _forward(self, tokens, past) -> None:
        first = past.get_seq_length()
        for layer in range(len(past.layers)):
            past.update(self._kv(tokens, first, layer, 0), self._kv(tokens, first, layer, 1), layer)

    def generate(self, input_ids, max_new_tokens: int = 1, past_key_values=None, attention_mask=None,
                 generation_config=None, streamer=None, **settings):
        """The answer depends on the KV alone, so that what was loaded shows. As in transformers, the last token's KV is
        not computed, the default mask is one of the tokens that are left to compute, and a cache that is given goes
        with no other kind of cache; with a part of the prompt in it beams raise, and guesses are wrong."""
        def setting(name: str):
            levels = (settings, vars(generation_config or GenerationConfig()), vars(self.generation_config))
            return next((level[name] for level in levels if level.get(name) is not None), None)

        held = past_key_values.get_seq_length() if past_key_values else 0
        if past_key_values and setting("cache_implementation") or held and (setting("num_beams") or 1) > 1:
            raise ValueError("a cache that does not go with these settings")
        rows, past = [], past_key_values
        for row in input_ids.tolist():
            tokens = list(row)
            past = past_key_values or DynamicCache(self.config)
            self._own.computed = len(tokens) - past.get_seq_length()
            assert self.computed > 0, "a token is left to compute"
            masked = attention_mask.shape[1] if attention_mask else self.computed
            assert masked == len(tokens), "a mask is one of the whole prompt"
            for _ in range(max_new_tokens):
                self._forward(tokens, past)
                seen = [side.tobytes() for layer in past.layers for side in (layer.keys, layer.values)]
                if held and setting("prompt_lookup_num_tokens"):
                    seen.append("wrong")
                tokens.append(random.Random(repr(seen)).randrange(1000))
                if streamer:
                    streamer(tokens[-1])
            rows.append(tokens)
        answer = Ids(rows)
        return (SimpleNamespace(sequences=answer, past_key_values=past) if setting("return_dict_in_generate") else
                answer)


def _tensor(data: bytes):
    ret = torch_double.zeros(len(data), dtype=torch_double.uint8)
    ret.bytes_at(0, len(data))[:] = data
    return ret


def install() -> None:
    torch_double.install()
    module("transformers", DynamicCache=DynamicCache, GenerationConfig=GenerationConfig)
