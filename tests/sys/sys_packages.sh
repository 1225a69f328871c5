#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: what packages rely on is true: the Python package takes the library that lies beside it; a
# Debian package, or debian/not-installed, has each file of `make install`; the symbols file of
# libkvtier0 has the library's symbols; all have kvtier's version.
# Method: the package and the library in a directory of their own, an empty environment; `make
# install` as debian/rules calls it. That packages install and serve: make test-service.

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

make --no-print-directory -s -o all -C "$tree" BUILD="$build" install DESTDIR="$work/tmp" \
	PREFIX=/usr LIBDIR=lib/triplet UNITDIR=/lib/systemd/system >"$work/log" 2>&1 ||
	{ cat "$work/log"; fail "make install"; }
diff -rq -x __pycache__ "$tree/client/python/kvtier" \
	"$work/tmp/usr/lib/python3/dist-packages/kvtier" ||
	fail "make install has other Python files"
cd "$tree/systemd/debian"
mapfile -t wanted < <(cat ./*.install not-installed)
while read -r file; do
	for path in "${wanted[@]}"; do
		[[ $file != $path && $file != $path/* ]] || continue 2
	done
	fail "$file is in no debian/*.install"
done < <(cd "$work/tmp" && find . ! -type d | cut -c 3-)
for path in "${wanted[@]}"; do
	compgen -G "$work/tmp/$path" >/dev/null || fail "make install makes no $path"
done
nm -D --defined-only "$build/libkvtier.so.0" | sed -n 's/.* T \(.*\)@@/\1@/p' | sort >"$work/has"
sed -n 's/^ \(kvtier_.*\) .*/\1/p' libkvtier0.symbols | sort | diff - "$work/has" ||
	fail "debian/libkvtier0.symbols has other symbols than the library"
head -n 1 changelog | grep -q "($version)" || fail "debian/changelog has no version $version"
grep -q "^version = \"$version\"$" "$tree/client/python/pyproject.toml" ||
	fail "client/python/pyproject.toml has another version than the Makefile: $version"
