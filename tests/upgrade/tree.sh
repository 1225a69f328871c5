#!/bin/sh -eu
# SPDX-License-Identifier: Apache-2.0
# tree.sh BUILD [N] - builds the N-th tree of RELEASES (1: the release before), once, in
# BUILD/releases/COMMIT, and prints that directory, whose build/ has the programs. Exit status 77,
# and why, where its commit is not here.
cd "$(dirname "$0")/../.."
build=${1:?usage: tree.sh BUILD [N]}
commit=$(grep -v '^#' tests/upgrade/RELEASES | sed -n "${2:-1}p" | cut -f 1)
[ -n "$commit" ] || exit 1
git cat-file -e "$commit^{commit}" 2>/dev/null || {
	echo "skipped: commit $commit (tests/upgrade/RELEASES) is not here: a shallow clone?"
	exit 77
}
tree=$build/releases/$commit
[ -e "$tree/Makefile" ] || {
	mkdir -p "$tree"
	git archive "$commit" | tar -x -C "$tree"
}
{
	"$tree/tests/deps.sh"
	# the caller exports a BUILD, which is not this tree's
	make -s -C "$tree" -j"$(nproc)" BUILD=build NVCC= \
		build/kvtierd build/kvtierctl build/libkvtier.so.0
} >"$tree.log" 2>&1 || {
	tail -20 "$tree.log" >&2
	exit 1
}
realpath "$tree"
