#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# Goal: bash offers kvtierctl's commands, and behind a command its options; zsh's script has the
# same words. Method: the script that `kvtierctl --completion bash` prints, asked as bash asks it.
# zsh, where it is installed, reads its own.
eval "$("$BUILD/kvtierctl" --completion bash)"
fail() { echo "$*"; exit 1; }

offered() {	# WORDS...: behind them, the last one not finished
	COMP_WORDS=(kvtierctl "$@")
	COMP_CWORD=$#
	COMPREPLY=()
	_kvtierctl
	echo "${COMPREPLY[*]}"
}

got=$(offered "dr")
[ "$got" = drain ] || fail "dr: $got"
got=$(offered --socket /tmp/x "und")
[ "$got" = undrain ] || fail "a command behind --socket PATH: $got"
got=$(offered stats --l)
[ "$got" = --list ] || fail "stats --l: $got"
got=$(offered drain --l)
[ -z "$got" ] || fail "drain has no option of stats: $got"
got=$(offered --socket "")
[ -z "$got" ] || fail "--socket is followed by a path: $got"
commands=$("$BUILD/kvtierctl" --help |
	sed -n '/^commands:/,/^options/s/^  \([a-z]*\) .*/\1/p')
for command in $commands; do
	[ "$(offered "$command")" != "" ] || fail "$command is not offered"
done
lists() { "$BUILD/kvtierctl" --completion "$1" | grep "list='"; }
[ "$(lists bash)" = "$(lists zsh)" ] || fail "zsh has other words"
if command -v zsh >/dev/null; then
	"$BUILD/kvtierctl" --completion zsh | zsh -n
fi
