# SPDX-License-Identifier: Apache-2.0
"""vllm_models_engine.py - vllm_engine.py, in which latents (MLA) may be continued.

vLLM's reference attention for latents on a CPU computes prompts from their beginning alone, so vLLM forbids all else,
and kvtier refuses such a model. A step of one token behind a prefix is what it does for each token of an answer. So a
prompt of whole blocks can be loaded, and its last token be computed: this file allows it.
"""
from vllm.platforms.cpu import CpuPlatform

import vllm_engine


def main() -> None:
    check = CpuPlatform.check_and_update_config.__func__

    def allowed(cls, config) -> None:
        tokens = config.scheduler_config.max_num_batched_tokens
        check(cls, config)
        config.scheduler_config.enable_chunked_prefill = True
        config.scheduler_config.max_num_batched_tokens = tokens

    CpuPlatform.check_and_update_config = classmethod(allowed)
    vllm_engine.main()


if __name__ == "__main__":
    main()
