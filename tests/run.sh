#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs test programs one after another and counts: exit 0 passed, 77 skipped (its last line says why), else failed.
#   tests/run.sh PROGRAM...        programs of a build whose directory ends in -thread run without ASLR, which
#                                  ThreadSanitizer of gcc 12 needs on recent kernels
# TEST_TIMEOUT=seconds (600) bounds each. Output is kept beside the program as PROGRAM.log and shown on failure.
set -u
passed=0 failed=0 skipped=0 failures=""
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=1 TSAN_OPTIONS=second_deadlock_stack=1

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
		passed=$((passed + 1))
		printf '  ok    %-44s %3d s%s\n' "${name#/}" $took "$([ "$inner" = 0 ] || echo "  ($inner cases of it skipped, see $log)")"
		;;
	77) skipped=$((skipped + 1)); printf '  skip  %-44s %s\n' "${name#/}" "$(tail -n 1 "$log")" ;;
	*)
		failed=$((failed + 1)); failures="$failures ${name#/}"
		printf '  FAIL  %-44s exit %d after %d s\n' "${name#/}" $code $took
		tail -n 60 "$log" | sed 's/^/        /'
		;;
	esac
done
[ -z "$failures" ] || echo "failed:$failures"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
