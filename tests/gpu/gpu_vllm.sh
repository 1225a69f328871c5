#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=30
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: KvtierConnector's worker serves KV in a GPU's memory, whether each layer is a tensor or all
# layers are one: it reads blocks behind the engine's stream, writes them behind it, and says that a
# load is over when its bytes are there; where the daemon stands still, it says so when the pages
# are the engine's again.
# Method: vllm_gpu.py: kvtier.vllm over a double of vLLM whose tensors lie in the memory of the
# driver that there is, the emulated one or this machine's; a kvtierd of its own.
set -u
. "$(dirname "$0")/../lib/library.sh"
. "$(dirname "$0")/../lib/emulated.sh"

engine() {
	"$tree/tests/lib/python.sh" "$tree/tests/gpu/vllm_gpu.py"
}

if [ "${KVTIER_REAL_GPU:-0}" != 0 ]; then
	KVTIER_EMU= engine
	exit
fi
emulated engine
