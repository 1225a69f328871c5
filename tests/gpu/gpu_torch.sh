#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: a torch process is an engine: KV tensors of two layouts, each a region of its own, go out
# and come back in order with its stream, and the same bytes are in either layout.
# Method: torch_engine.py, which says what stands in for tensors on the emulated driver. PYTHON
# names the Python that has torch (python3).
set -u
. "$(dirname "$0")/../lib/library.sh"
. "$(dirname "$0")/../lib/emulated.sh"
python=${PYTHON:-python3}

skip() {
	echo "skipped: $*"
	exit 77
}
engine() {
	KVTIER_LIBRARY=$build/libkvtier.so.0 \
		"$python" -B "$tree/tests/gpu/torch_engine.py" "$build" "$1"
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
	skip "no Python 3.10 or newer"

if [ "${KVTIER_REAL_GPU:-0}" != 0 ]; then
	"$python" -c 'import torch' 2>/dev/null ||
		skip "$python has no torch (PYTHON=... names another Python)"
	"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
		skip "this torch sees no GPU:" \
			"$("$python" -c 'import torch; torch.cuda.init()' 2>&1 | tail -n 1)"
	engine cuda
	exit
fi
emulated engine emulated
