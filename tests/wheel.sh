#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# wheel.sh BUILD - what `make wheel` does: the Python package as
# BUILD/kvtier-VERSION-py3-none-any.whl. It holds no compiled code; it finds libkvtier.so.0 where
# `make install` put it, or where KVTIER_LIBRARY says.
cd "$(dirname "$0")/.."
build=${1:?usage: wheel.sh BUILD}
mkdir -p "$build"
python=$build/wheel-venv/bin/python
[ -x "$python" ] || python3 -m venv "$build/wheel-venv"
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps \
	--wheel-dir "$build" client/python
ls "$build"/kvtier-*.whl
