#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
#
# demo.sh [BUILD]: `make demo` runs this. A real model answers questions on a text of this
# repository, cold and then warm in new processes, through a kvtierd of its own. It writes only
# under BUILD (default: build).

tree=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$tree/build}

for file in kvtierd kvtierctl libkvtier.so.0; do
	[ -e "$build/$file" ] ||
		{ echo "demo.sh: $build/$file is missing; run make first" >&2; exit 1; }
done
python=$("$tree/client/examples/venv.sh" "$build")
exec "$python" -B "$tree/client/examples/llama_demo.py" --build "$build"
