# SPDX-License-Identifier: Apache-2.0
"""A double of llama-cpp-python, and of the memory of a llama.cpp context, in the standard library alone.

Memory writes and reads the bytes of a sequence as llama.cpp does (kvtier.adapters.llama_state says how). The KV of a
token depends on all tokens up to it, and the answer on the KV that the memory holds: a wrong block is a wrong answer.
Llama calls its cache as llama-cpp-python 0.3.36 does. install() makes it the package `llama_cpp`.
"""
import abc
import asyncio
import ctypes as C
import logging
import random
import struct
import sys
import types
from typing import NamedTuple, Sequence

LAYERS, HEADS, DIM = 2, 2, 8
MAGIC = 0x11223344


class Row(list):
    """As the slices of numpy's arrays that llama-cpp-python has."""
    def tolist(self):
        return list(self)

    def copy(self):
        return Row(self)

    def __getitem__(self, where):
        got = super().__getitem__(where)
        return Row(got) if isinstance(where, slice) else got


class Memory:
    """Cells of one stream; a context, its memory and its model in one."""

    def __init__(self, size: int, *, transposed: bool = True, ids: bool = False, type: int = 1, value: int = 2,
                 words: bytes = b"", recurrent: bool = False, spoils: bool = False) -> None:
        self.size, self.transposed, self.ids, self.type, self.value = size, transposed, ids, type, value
        self.words, self.recurrent, self.spoils = words, recurrent, spoils
        self.cells = {}     # number -> [position, sequences, rows: K of each layer, then V]

    def computed(self, tokens: Sequence[int]) -> list:
        """Rows of the last of these tokens."""
        of = random.Random(repr((tuple(tokens), self.type)))
        return [of.randbytes(HEADS * DIM * self.value) for _ in range(2 * LAYERS)]

    def free(self) -> int:
        return next(i for i in range(self.size) if i not in self.cells)

    def decode(self, tokens: Sequence[int], before: Sequence[int]) -> None:
        for i, token in enumerate(tokens):
            whole = [*before, *tokens[:i + 1]]
            self.cells[self.free()] = [len(whole) - 1, {0}, self.computed(whole)]

    def rows(self, seq: int) -> list:
        return sorted((p, rows) for p, seqs, rows in self.cells.values() if seq in seqs)

    # --- as functions of llama.h ---
    def get_model(self):
        return self

    def heads(self):
        return HEADS, DIM, DIM

    def n_layer(self):
        return LAYERS

    def is_recurrent(self):
        return self.recurrent

    def is_hybrid(self):
        return False

    def pos_max(self, seq):
        return max([p for p, _ in self.rows(seq)], default=-1)

    def seq_cp(self, source, target, p0, p1):
        for position, seqs, _ in self.cells.values():
            if source in seqs and position >= max(p0, 0) and (p1 < 0 or position < p1):
                seqs.add(target)

    def seq_rm(self, seq, p0, p1):
        for number, (position, seqs, _) in list(self.cells.items()):
            if position >= max(p0, 0) and (p1 < 0 or position < p1):
                seqs.discard(seq)
                if not seqs:
                    del self.cells[number]
        return True

    def state(self, seq):
        held = self.rows(seq)
        data = struct.pack("<4I", MAGIC, seq, 1, len(held))
        if not held:
            return data
        for position, _ in held:
            data += struct.pack("<iII", position, 1, seq) if self.ids or seq == 0 else struct.pack("<iI", position, 0)
        data += struct.pack("<2I", self.transposed, LAYERS) + self.words
        for i in range(2 * LAYERS):
            rows = [rows[i] for _, rows in held]
            if self.transposed and i >= LAYERS:
                data += struct.pack("<iII", self.type, self.value, HEADS * DIM)
                data += b"".join(row[at:at + self.value] for at in range(0, HEADS * DIM * self.value, self.value)
                                 for row in rows)
            else:
                data += struct.pack("<iQ", self.type, HEADS * DIM * self.value) + b"".join(rows)
        return data

    def state_size(self, seq, flags):
        return len(self.state(seq))

    def state_get(self, address, size, seq, flags):
        data = self.state(seq)
        if self.spoils:
            data = data[:-1] + bytes([data[-1] ^ 1])
        assert len(data) <= size
        C.memmove(address, data, len(data))
        return len(data)

    def state_set(self, address, size, seq, flags):
        data, at = C.string_at(address, size), 16
        n = struct.unpack_from("<I", data, 12)[0]
        if len(self.cells) + n > self.size:
            return 0
        self.seq_rm(seq, -1, -1)
        positions = []
        for _ in range(n):
            position, ids = struct.unpack_from("<iI", data, at)
            if ids != 1:
                return 0
            positions.append(position)
            at += 12
        at += 8 + len(self.words)
        row, planes = HEADS * DIM * self.value, []
        for i in range(2 * LAYERS):
            at += 12
            plane = data[at:at + n * row]
            if self.transposed and i >= LAYERS:
                values = [plane[v:v + self.value] for v in range(0, len(plane), self.value)]
                planes.append([b"".join(values[t::n]) for t in range(n)])
            else:
                planes.append([plane[t * row:(t + 1) * row] for t in range(n)])
            at += n * row
        for t, position in enumerate(positions):
            self.cells[self.free()] = [position, {seq}, [plane[t] for plane in planes]]
        return at


class Functions:
    """In place of kvtier.adapters.llama_state.Functions: each is called with a Memory first."""

    def __init__(self, lib) -> None:
        pass

    def __getattr__(self, name):
        return lambda memory, *arguments: getattr(memory, name)(*arguments)


class BaseLlamaCache(abc.ABC):
    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes


class LlamaState(NamedTuple):
    input_ids: Row
    scores: list
    n_tokens: int
    llama_state: bytes
    llama_state_size: int
    seed: int


class Llama:
    def __init__(self, model_path: str, n_ctx: int = 512, *, lora_path=None, lora_scale=1.0, chat_handler=None,
                 kv_overrides=None, logits_all=False, **memory) -> None:
        self.model_path, self.lora_path, self.lora_scale, self.lora_base = model_path, lora_path, lora_scale, None
        self.kv_overrides, self.chat_handler, self._logits_all = kv_overrides, chat_handler, logits_all
        self.context_params = types.SimpleNamespace(rope_freq_base=0.0)
        self.memory = Memory(n_ctx, **memory)
        self._ctx = types.SimpleNamespace(ctx=self.memory)
        self.input_ids, self.scores, self.n_tokens, self._seed = Row([0] * n_ctx), [], 0, 0
        self.cache, self._requires_eval, self.computed, self.states = None, True, 0, 0

    def set_cache(self, cache) -> None:
        self.cache = cache

    def reset(self) -> None:
        self.n_tokens, self._requires_eval = 0, True

    def eval(self, tokens) -> None:
        self.memory.seq_rm(0, self.n_tokens, -1)
        self.memory.decode(tokens, self.input_ids[:self.n_tokens])
        self.input_ids[self.n_tokens:self.n_tokens + len(tokens)] = tokens
        self.n_tokens += len(tokens)
        self.computed += len(tokens)

    def save_state(self) -> LlamaState:
        self.states += 1
        return LlamaState(self.input_ids.copy(), [], self.n_tokens, b"state", 5, 0)

    def load_state(self, state: LlamaState) -> None:
        raise AssertionError("there is no state to load")

    def sampled(self) -> int:
        """A token that depends on every byte that the context holds."""
        held = self.memory.rows(0)
        assert [p for p, _ in held] == list(range(self.n_tokens)), "the context does not hold each position once"
        return random.Random(repr(held)).randrange(1000)

    @staticmethod
    def longest_token_prefix(a, b) -> int:
        return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))

    def _create_completion(self, prompt, max_tokens=4):
        if self.cache:
            try:
                item = self.cache[prompt]
                ours = self.longest_token_prefix(self.input_ids[:self.n_tokens].tolist(), prompt)
                if self.longest_token_prefix(item.input_ids.tolist(), prompt) > ours:
                    self.load_state(item)
            except KeyError:
                pass
        answer, tokens = [], list(prompt)
        reuse = self.longest_token_prefix(self.input_ids[:self.n_tokens], tokens)
        reuse -= reuse == len(tokens)
        self.memory.seq_rm(0, reuse, -1)
        self.n_tokens, tokens = reuse, tokens[reuse:]
        for _ in range(max_tokens):
            self.eval(tokens)
            tokens = [self.sampled()]
            answer += tokens
        if self.cache:
            self.cache[prompt + answer] = self.save_state()
        return answer

    def __call__(self, prompt, max_tokens=4):
        return self._create_completion(list(prompt), max_tokens)


class ModelSettings:
    """Of llama-cpp-python's server: pydantic tells what was given from its defaults."""

    def __init__(self, model: str, **given) -> None:
        self.model_fields_set = {"model", *given}
        self.model, self.cache, self.cache_type, self.logits_all, self.draft_model = model, False, "ram", True, None
        self.__dict__.update(given)


class LlamaProxy:
    @staticmethod
    def load_llama_from_model_settings(settings: ModelSettings) -> Llama:
        llm = Llama(settings.model, logits_all=settings.logits_all or settings.draft_model is not None)
        if settings.cache:
            package = sys.modules["llama_cpp"]
            kind = package.LlamaDiskCache if settings.cache_type == "disk" else package.LlamaRAMCache
            llm.set_cache(kind(capacity_bytes=2 << 30))
        return llm


class UvicornServer:
    async def startup(self, sockets=None) -> None:
        logging.getLogger("uvicorn").warning("Uvicorn running")


def server(settings: Sequence[ModelSettings], loaded: list) -> None:
    """Makes `llama_cpp.server` one of these models, and `uvicorn` the one that it runs on. loaded: the models, once
    main() has run."""
    def main() -> None:
        proxy = sys.modules["llama_cpp.server.model"].LlamaProxy
        loaded.extend(map(proxy.load_llama_from_model_settings, settings))
        asyncio.run(sys.modules["uvicorn"].Server().startup(sockets=None))

    for name, contents in (("llama_cpp.server", {}), ("llama_cpp.server.__main__", {"main": main}),
                           ("llama_cpp.server.model", {"LlamaProxy": type("LlamaProxy", (LlamaProxy,), {})}),
                           ("uvicorn", {"Server": type("Server", (UvicornServer,), {})})):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(contents)


def install() -> None:
    """`import llama_cpp` gives the double from now on, and kvtier's functions of llama.h are those of a Memory."""
    from kvtier import llama_cpp
    from kvtier.adapters import llama_state
    llama_state.Functions = llama_cpp.Functions = Functions
    package = types.ModuleType("llama_cpp")
    for name in (BaseLlamaCache, Llama, LlamaState):
        setattr(package, name.__name__, name)
    package.llama_cpp = types.SimpleNamespace(_lib=None)
    package.llama_get_memory = lambda ctx: ctx
    sys.modules["llama_cpp"] = package
