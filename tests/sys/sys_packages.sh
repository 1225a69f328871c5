#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: what packages rely on is true: the Python package takes the library that lies beside it,
# and its version is kvtier's.
# Method: the package and the library in a directory of their own, an empty environment. That the
# packages install and serve: make test-packages.

. "$(dirname "$0")/../lib/library.sh"
work=$(mktemp -d /tmp/kvtier-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
fail() {
	echo "sys_packages.sh: $1" >&2
	exit 1
}
python=$(command -v python3) || { echo "skipped: no python3"; exit 77; }
version=$(sed -n 's/^VERSION := //p' "$tree/Makefile")

cp -r "$tree/client/python/kvtier" "$work"
cp "$build/libkvtier.so.0" "$work/kvtier"
got=$(cd "$work" && env -i "$python" -B -c \
	'import kvtier; print(kvtier.version(), kvtier._lib.load()._name)')
[ "$got" = "$version $work/kvtier/libkvtier.so.0" ] || fail "loaded: $got"
grep -q "^version = \"$version\"$" "$tree/client/python/pyproject.toml" ||
	fail "client/python/pyproject.toml has another version than the Makefile: $version"
