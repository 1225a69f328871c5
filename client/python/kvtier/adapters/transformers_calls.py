# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.transformers_calls - which calls of generate() are served, and why another one is not.

A setting of generate() is a keyword, or it is in the GenerationConfig of the call, or in that of the model; the first
of these that has it counts. Settings are served that choose tokens from logits, say when to stop, or say what is
returned. A setting that is in neither list below may read or rewrite the cache, or change what the model computes, so a
call with one is computed without kvtier. Guesses (prompt lookup, an assistant, early exit, multi-token prediction) are
too, because transformers 5.23.0 computes a guess wrongly when the cache has a part of the prompt already. So is
`prefill_chunk_size`, which 5.23.0 computes rightly then, and 5.19.0 does not.
"""
from __future__ import annotations

from typing import Any, Container, Dict, Sequence

__all__ = ["effective", "why_not"]

_SERVED = frozenset("""
    max_length max_new_tokens min_length min_new_tokens max_time stop_strings early_stopping
    do_sample temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff
    repetition_penalty encoder_repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
    bad_words_ids renormalize_logits forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens sequence_bias watermarking_config
    output_scores output_logits return_dict_in_generate pad_token_id bos_token_id eos_token_id decoder_start_token_id
    num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold max_matching_ngram_size
    assistant_lookbehind target_lookbehind max_cache_len compile_config disable_compile
    transformers_version _from_model_config _original_object_hash
    generation_config attention_mask logits_processor stopping_criteria prefix_allowed_tokens_fn streamer tokenizer
    synced_gpus""".split())
_SERVED_AS = {"num_beams": 1, "num_return_sequences": 1, "num_beam_groups": 1, "use_cache": True, "use_mtp": False,
              "is_assistant": False, "token_healing": False, "guidance_scale": 1, "penalty_alpha": 0,
              "diversity_penalty": 0, "low_memory": False, "output_attentions": False, "output_hidden_states": False}


def effective(name: str, *levels: Dict[str, Any]) -> Any:
    """The value of a setting; None: it is not set. levels: the keywords, then the configurations, the call's first."""
    return next((level[name] for level in levels if level.get(name) is not None), None)


def why_not(shape: Sequence[int], tokens: Sequence[int], known: Container[str], *levels: Dict[str, Any]) -> str:
    """Why a call of generate() cannot be served; "" if it can. shape: that of the tokens. tokens: those of the first
    row. known: the settings of the transformers that is here; it ignores others in a configuration."""
    if len(shape) != 2 or shape[0] != 1:
        return f"a batch of {shape[0]} prompts"
    keywords = levels[0]
    mask = keywords.get("attention_mask")
    if mask is not None and (tuple(mask.shape) != tuple(shape) or not bool(mask.all())):
        return "the attention mask leaves tokens out"
    if mask is None and _is_padded(tokens, *levels):
        return "the prompt has the padding token, which generate() leaves out"
    names = {name for level in levels for name in level if level is keywords or name in known}
    for name in sorted(names - _SERVED):
        value = effective(name, *levels)
        if value is None or name in _SERVED_AS and isinstance(value, (bool, int, float)) and value == _SERVED_AS[name]:
            continue
        return (f"{name} is {value}" if isinstance(value, (bool, int, float, str)) else
                f"{name} is given, which may make other KV of the same tokens")
    return ""


def _is_padded(tokens: Sequence[int], *levels: Dict[str, Any]) -> bool:
    """Whether generate() makes a mask of its own that leaves out padding in the prompt."""
    pad, ends = effective("pad_token_id", *levels), effective("eos_token_id", *levels)
    if pad is None or int(pad) not in tokens:
        return False
    ends = ends.tolist() if hasattr(ends, "tolist") else ends
    return int(pad) not in (ends if isinstance(ends, (list, tuple)) else [ends])
