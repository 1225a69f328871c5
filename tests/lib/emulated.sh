# SPDX-License-Identifier: Apache-2.0
# emulated.sh - sourced after library.sh by scripts whose engine needs a GPU.

# Runs the engine on the emulated driver. Fails when the engine does, or when the driver's report
# has a mistake of any process or a leak of the engine's. The daemon is killed at the end of a case:
# what it has then is no leak.
emulated() {	# COMMAND...
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	: "${SEED:=$(date +%s%N)}"
	echo "SEED=$SEED"
	export KVTIER_EMU_DIR=$work
	export LD_LIBRARY_PATH=$build/tests/emu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
	export KVTIER_EMU="seed=$SEED log=$work/report null_stream=0 ${KVTIER_EMU:-}"
	"$@" || return
	! grep -E '\] violation:|^python[^[]*.[0-9]+\] leak:' "$work/report"
}
