#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: seconds=60 no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: what a slot of llama.cpp's server computed is restored into a slot of another process of it, and the server answers
# every request, whatever becomes of the daemon.
# Method: llama_server_cases.py, against the real server of the xllamacpp wheel, and a kvtierd of its own.
# Skipped only where the wheels of engine and model are not there and cannot be had.

tree=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${BUILD:-$tree/build}" && pwd)

if LC_ALL=C grep -qE '__(asan|tsan)_init' "$build/libkvtier.so.0"; then
	echo "skipped: libkvtier has a sanitizer in it, which Python cannot load"
	exit 77
fi
python=$("$tree/client/examples/venv.sh" "$build") || {
	[ $? -eq 77 ] || exit 1
	echo "skipped: the wheels of engine and model cannot be had (see above)"
	exit 77
}
exec env KVTIER_LIBRARY="$build/libkvtier.so.0" "$python" -B "$tree/tests/sys/llama_server_cases.py" "$build"
