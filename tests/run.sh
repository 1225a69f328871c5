#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs test programs one after another and counts: exit 0 passed, 77 skipped (its last line says why), else failed.
#   tests/run.sh PROGRAM... [-- PROGRAM...]   those behind -- run beside the first, WAITERS (3) at a time: they mostly wait.
#                                  Programs of a build whose directory ends in -thread run without ASLR, which
#                                  ThreadSanitizer of gcc 12 needs on recent kernels
# TEST_TIMEOUT=seconds (600) bounds each. Output is kept beside the program as PROGRAM.log and shown on failure.
set -u
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=1 TSAN_OPTIONS=second_deadlock_stack=1
results=$(mktemp)
trap 'rm -f "$results"' EXIT
trap 'trap - INT TERM; kill 0' INT TERM

# One line for each, and its result into $results.
run_all() {
	local program name log command start code took inner
	for program in "$@"; do
		name=${program#build}
		log=$program.log
		case $program in
		*.sh) log=${BUILD:-build}/$(basename "$program").log; command=(bash "$program") ;;
		*-thread/*) command=(setarch -R "$program") ;;
		*) command=("$program") ;;
		esac
		start=$(date +%s)
		timeout -k 10 "${TEST_TIMEOUT:-600}" "${command[@]}" >"$log" 2>&1 </dev/null
		code=$?
		took=$(($(date +%s) - start))
		case $code in
		0)
			inner=$(grep -c '^\[  SKIPPED \]' "$log")
			printf '  ok    %-44s %3d s%s\n' "${name#/}" $took \
				"$([ "$inner" = 0 ] || echo "  ($inner cases of it skipped, see $log)")"
			;;
		77) printf '  skip  %-44s %s\n' "${name#/}" "$(tail -n 1 "$log")" ;;
		*)
			printf '%s\n' "$(printf '  FAIL  %-44s exit %d after %d s\n' "${name#/}" $code $took
				tail -n 60 "$log" | sed 's/^/        /')"
			;;
		esac
		echo "$code ${name#/}" >>"$results"
	done
}

first=() beside=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do first+=("$1"); shift; done
beside=("${@:2}")
{
	for program in "${beside[@]}"; do
		while [ "$(jobs -rp | wc -l)" -ge "${WAITERS:-3}" ]; do wait -n; done
		run_all "$program" &
	done
	wait
} &
run_all "${first[@]}"
wait
passed=$(grep -c '^0 ' "$results") skipped=$(grep -c '^77 ' "$results") total=$(wc -l <"$results")
failed=$((total - passed - skipped))
[ $failed -eq 0 ] || echo "failed: $(grep -v -E '^(0|77) ' "$results" | cut -d' ' -f2- | tr '\n' ' ')"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $total -gt 0 ]
