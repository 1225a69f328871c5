# SPDX-License-Identifier: Apache-2.0
"""vllm_models.py - small models with seeded random weights. They are wide enough that their answers depend on the whole
prompt. Each function saves one in a directory."""
import json
from pathlib import Path

VOCABULARY = 1000
_SMALL = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, head_dim=64, intermediate_size=512,
              vocab_size=VOCABULARY, initializer_range=0.2, max_position_embeddings=4096, bos_token_id=1,
              eos_token_id=2, pad_token_id=0)


def _save(model, to: Path) -> None:
    model.save_pretrained(to)


def llama(to: Path, seed: int = 7) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(seed)
    _save(LlamaForCausalLM(LlamaConfig(**_SMALL, num_key_value_heads=4)), to)


def speaking(to: Path) -> None:
    """llama(), with a tokenizer: a word for each token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    llama(to)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2").save_pretrained(to)


def llava(to: Path) -> None:
    """A model that sees images of 56 x 56 dots, 16 tokens each. The token VOCABULARY stands for an image."""
    import torch
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer, models
    from transformers import (CLIPImageProcessor, CLIPVisionConfig, LlamaConfig, LlavaConfig,
                              LlavaForConditionalGeneration, LlavaProcessor, PreTrainedTokenizerFast)
    torch.manual_seed(7)
    eyes = CLIPVisionConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                            image_size=56, patch_size=14, projection_dim=64, initializer_range=0.2)
    text = LlamaConfig(**{**_SMALL, "vocab_size": VOCABULARY + 24}, num_key_value_heads=4)
    _save(LlavaForConditionalGeneration(LlavaConfig(
        vision_config=eyes, text_config=text, image_token_index=VOCABULARY, vision_feature_layer=-1,
        vision_feature_select_strategy="default", image_seq_length=16)), to)
    file = to / "model.safetensors"         # vLLM knows the names that older releases of transformers gave
    save_file({name.replace("vision_tower.", "vision_tower.vision_model."): t for name, t in load_file(file).items()},
              file, metadata={"format": "pt"})
    words = Tokenizer(models.WordLevel({**{f"w{i}": i for i in range(VOCABULARY)}, "<image>": VOCABULARY},
                                       unk_token="w0"))
    LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}),
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2",
                                          pad_token="w0", additional_special_tokens=["<image>"]),
        patch_size=14, vision_feature_select_strategy="default", image_token="<image>",
        num_additional_image_tokens=1).save_pretrained(to)


def adapter(cache: Path, commit: str, seed: int) -> str:
    """Saves a LoRA for llama() in a cache like huggingface_hub's, where `main` is this commit. Returns its name."""
    import torch
    from safetensors.torch import save_file
    folder = cache / "models--org--adapter"
    snapshot = folder / "snapshots" / commit
    for made in (folder / "refs", snapshot):
        made.mkdir(parents=True, exist_ok=True)
    numbers, rank, width = torch.Generator().manual_seed(seed), 8, _SMALL["hidden_size"]
    targets = ["q_proj", "v_proj"]
    save_file({f"base_model.model.model.layers.{layer}.self_attn.{target}.lora_{part}.weight":
               torch.randn(*shape, generator=numbers) * 0.3
               for layer in range(_SMALL["num_hidden_layers"]) for target in targets
               for part, shape in (("A", (rank, width)), ("B", (width, rank)))}, snapshot / "adapter_model.safetensors")
    (snapshot / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": targets, "bias": "none",
         "task_type": "CAUSAL_LM"}))
    (folder / "refs" / "main").write_text(commit)
    return "org/adapter"


def gentle(to: Path) -> None:
    """A model whose answers change little when its KV is rounded."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(7)
    _save(LlamaForCausalLM(LlamaConfig(**{**_SMALL, "initializer_range": 0.08}, num_key_value_heads=4)), to)


def windows(to: Path) -> None:
    """A model that has layers with a sliding window of 128 tokens beside layers with full attention."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig
    torch.manual_seed(7)
    _save(Gemma3ForCausalLM(Gemma3TextConfig(**_SMALL, num_key_value_heads=4, sliding_window=128, layer_types=[
        "sliding_attention", "full_attention"] * 2)), to)


def latents(to: Path) -> None:
    """A model with latents (MLA): 512 values and 64 of rope for each token."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM
    torch.manual_seed(7)
    small = {**_SMALL, "initializer_range": 0.08}
    small.pop("head_dim")
    _save(DeepseekV2ForCausalLM(DeepseekV2Config(
        **small, num_key_value_heads=4, kv_lora_rank=512, q_lora_rank=None, qk_rope_head_dim=64, qk_nope_head_dim=64,
        v_head_dim=64, first_k_dense_replace=4, n_routed_experts=2, n_shared_experts=1, num_experts_per_tok=1,
        moe_intermediate_size=64)), to)


def states(to: Path) -> None:
    """A hybrid model: layers that have a state (Mamba 2) beside layers with attention."""
    import torch
    from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM
    torch.manual_seed(7)
    small = {**_SMALL, "initializer_range": 0.08}
    small.pop("head_dim")
    _save(GraniteMoeHybridForCausalLM(GraniteMoeHybridConfig(
        **small, num_key_value_heads=4, layer_types=["mamba", "attention"] * 2, num_local_experts=0,
        num_experts_per_tok=0, shared_intermediate_size=512, mamba_n_heads=8, mamba_d_head=64, mamba_d_state=64,
        mamba_n_groups=1, position_embedding_type="rope")), to)
