# SPDX-License-Identifier: Apache-2.0
"""The inside of the adapters for engines. Import kvtier.vllm, kvtier.sglang, kvtier.transformers or kvtier.llama_*."""
