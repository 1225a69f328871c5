#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: seconds=5 no=address,thread (it runs a measurement, which a sanitizer makes long)
#
# Goal: kvtier-bench, run directly from a build, finds the redis-server that `make deps` linked
# beside it, and says so in one line where there is none. Where kvtierctl is not beside it, a line
# says that, and what to do.
# Method: a copy of the programs, with and without bin/ beside, and a PATH that has no server;
# without kvtierctl.

. "$(dirname "$0")/../lib/library.sh"
server=$(command -v redis-server) || { echo "skipped: no redis-server"; exit 77; }

work=$(mktemp -d /tmp/kvtier-test-XXXXXX)
trap 'rm -rf "$work"' EXIT

fail() {
	echo "sys_bench_redis.sh: $1" >&2
	exit 1
}

mkdir "$work/path" "$work/bin"
ln -s "$(command -v rm)" "$work/path/rm" # which it removes its server's directory with
cp "$build/kvtier-bench" "$build/kvtierd" "$build/kvtierctl" "$work/"

said=$(timeout -k 5 120 env PATH="$work/path" "$work/kvtier-bench" redis.lookup --json) ||
	fail "without a server: $said"
[[ $said == *'"skipped":"no redis-server beside this program (bin/) or on PATH'* ]] ||
	fail "without a server: $said"

ln -s "$(realpath "$server")" "$work/bin/redis-server"
said=$(timeout -k 5 120 env PATH="$work/path" "$work/kvtier-bench" redis.lookup --json) ||
	fail "with a server: $said"
[[ $said == '{"case":"redis.lookup"'* && $said != *'"skipped":'* ]] || fail "with a server: $said"

rm "$work/kvtierctl"
said=$(timeout -k 5 120 env PATH="$work/path" \
	"$work/kvtier-bench" hostile.load redis.store.unix --json) &&
	fail "without kvtierctl it exits 0: $said"
error='no kvtierctl beside this program: run the kvtier-bench of a build,'
error="$error or put kvtierctl in its directory"
n=$(grep -c "\"error\":\"$error\"" <<<"$said") || true
[ "$n" = 2 ] || fail "without kvtierctl: $said"
