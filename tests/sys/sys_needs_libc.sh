#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: no=address,thread (a sanitizer brings libraries of its own)
#
# Goal: libkvtier needs the C library and no other, shared and static: an engine loads it wherever
# the engine itself runs.
# Method: the libraries that libkvtier.so.0 names, and those that a program names which has all of
# libkvtier.a in it and is linked with -lpthread alone, as kvtier.pc says.

. "$(dirname "$0")/../lib/library.sh"
for tool in readelf gcc; do
	command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }
done
work=$(mktemp -d /tmp/kvtier-test-XXXXXX)
trap 'rm -rf "$work"' EXIT

[ "$(sed -n 's/^Libs.private: //p' "$tree/client/lib/kvtier.pc.in")" = -lpthread ] ||
	{ echo "kvtier.pc: Libs.private has more than -lpthread"; exit 1; }
echo 'int main(void) { return 0; }' >"$work/main.c"
gcc "$work/main.c" -Wl,--whole-archive "$build/libkvtier.a" -Wl,--no-whole-archive -lpthread \
	-o "$work/static"
for file in "$build/libkvtier.so.0" "$work/static"; do
	needed=$(LC_ALL=C readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
	grep -q '^libc\.so' <<<"$needed" || { echo "$file does not even name libc"; exit 1; }
	# the C library is these files, and libgcc_s its compiler's
	others=$(grep -vE '^(lib(c|m|dl|rt|pthread|gcc_s)|ld-linux-[a-z0-9_-]+)\.so' \
		<<<"$needed" || true)
	[ -z "$others" ] || { echo "$(basename "$file") needs" $others; exit 1; }
done
