#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# test-engines.sh BUILD - what `make test-engines` does: each adapter under its real engine, from PyPI.
#
# ENGINES names the ones that are wanted; default: all that are known here. Each has an environment of its own in
# BUILD/engines/NAME, made once. One that cannot be installed is skipped, and the line says why. The first one takes
# 5.5 GB of disk and minutes, since PyPI's torch brings CUDA libraries along.
cd "$(dirname "$0")/.."
build=${1:?usage: test-engines.sh BUILD}
known="transformers"
declare -A packages=(
	[transformers]="torch==2.13.0 transformers==5.23.0"
)

# environment NAME: its interpreter; what pip said is in BUILD/engines/NAME.log
environment() {
	local venv=$build/engines/$1 want=${packages[$1]}
	if [ "$(cat "$venv/kvtier.stamp" 2>/dev/null)" != "$want" ]; then
		echo "installing ${packages[$1]} (log: $venv.log)" >&2
		rm -rf "$venv"
		python3 -m venv "$venv" >"$venv.log" 2>&1 || return 1
		# shellcheck disable=SC2086
		"$venv/bin/python" -m pip install --disable-pip-version-check --only-binary :all: $want >>"$venv.log" 2>&1 ||
			return 1
		"$venv/bin/python" -m pip install --disable-pip-version-check ./client/python >>"$venv.log" 2>&1 || return 1
		echo "$want" >"$venv/kvtier.stamp"
	fi
	"$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall ./client/python \
		>>"$venv.log" 2>&1 || return 1
	echo "$venv/bin/python"
}

mkdir -p "$build/engines"
passed=0 failed=0 skipped=0
for name in ${ENGINES:-$known}; do
	[ -n "${packages[$name]-}" ] || { echo "ENGINES: no engine $name; known: $known" >&2; exit 2; }
	if ! python=$(environment "$name"); then
		skipped=$((skipped + 1))
		echo "skipped: $name cannot be installed: $(grep -v '^\s*$' "$build/engines/$name.log" | tail -1)"
	elif KVTIER_LIBRARY=$(realpath "$build/libkvtier.so.0") "$python" -B "tests/engines/${name}_test.py" "$build"; then
		passed=$((passed + 1))
		echo "ok: $name"
	else
		failed=$((failed + 1))
		echo "FAILED: $name"
	fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
