#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD... - runs the tests of these builds (build, build-address, build-thread) and counts.
#
# A test is a program BUILD/tests/NAME, a text tests/KIND/NAME.kvt (tests/scenario), a script
# tests/KIND/NAME.sh or a program in Python, tests/KIND/NAME.py; NAME begins with KIND_. Exit status
# 0: it passed; 77: it was skipped, its last line says why; any other: it failed. Its output is kept
# in BUILD/tests/NAME.log, and shown when it fails. The facts that stand in a test (facts.sh) name
# the lane it runs in, and the builds it is not run in:
#	cpu	the test computes, at least now and then: JOBS at a time (two for each core)
#	wait	the test mostly waits: WAITERS (8) at a time, beside tests of the first lane
#	alone	nothing may run beside the test: after all others, one at a time
# In each lane the longest test (fact `seconds`) goes first.
# Where one or two tests failed, and no sanitizer spoke in their logs, each of them runs once more,
# alone: a busy machine is no fault of the code. A test that passes then counts as passed, and the
# end of the output names it as flaky. The end also shows the last lines of each such log.
# TEST="pattern ..." names the tests to run. TEST_TIMEOUT=seconds bounds each (600, with a sanitizer
# 1,200).
set -u
cd "$(dirname "$0")/.." || exit 1
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=1
export TSAN_OPTIONS=second_deadlock_stack=1 PATH=$PWD/build/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'trap - INT TERM; kill 0' INT TERM

# A line for each test that runs: lane, seconds, build, file.
plan() {
	local facts pattern build file
	local named='/(unit|fault|sim|fuzz|regr|sys|gpu)/\1_[^/]*$'
	facts=$(tests/facts.sh) || exit 1
	set -f
	for pattern in ${TEST:-*}; do
		set +f
		for build in "$@"; do
			for file in tests/*/$pattern.{c,kvt,sh,py}; do
				[[ -f $file && $file =~ $named ]] || continue
				echo "$build $file"
			done
		done
	done | sort -u | awk -v facts="$facts" '
		BEGIN {
			n = split(facts, fact, "\n")
			for (i = 1; i <= n; i++) {
				split(fact[i], part, /[:=]/)
				said[part[1], part[2]] = part[3]
				said[part[1], part[2], part[3]] = 1
			}
		}
		{
			name = $2
			gsub(/.*\/|\.[a-z]*$/, "", name)
			sanitizer = $1
			sub(/.*-/, "", sanitizer)
			if ((name, "no", sanitizer) in said)
				next
			lane = (name, "lane") in said ? said[name, "lane"] : "cpu"
			print lane, said[name, "seconds"] + 0, $1, $2
		}' | sort -k2,2nr
}

# Runs one test and says how it ended: a line on stdout, and one in $work/results.
run_one() {	# BUILD FILE
	local build=$1 name log code took user sys limit=600 command result note=
	local TIMEFORMAT="%0R %0U %0S" times=$work/$BASHPID
	name=$(basename "${2%.*}")
	log=$build/tests/$name.log
	case $2 in
	*.sh) command=(env BUILD="$build" bash "$2") ;;
	*.py) command=(env BUILD="$build" tests/lib/python.sh -m unittest -v "$name") ;;
	*.kvt) command=("$build/tests/kvt" "$2") ;;
	*) command=("$build/tests/$name") ;;
	esac
	case $build in
	# ThreadSanitizer of gcc 12 needs setarch.
	*-thread) limit=1200 command=(setarch -R "${command[@]}") ;;
	*-address) limit=1200 ;;
	esac
	limit=${TEST_TIMEOUT:-$limit}
	mkdir -p "$build/tests"
	{ time timeout -k 10 "$limit" "${command[@]}" >"$log" 2>&1 </dev/null; } 2>"$times"
	code=$?
	# The last line: the shell itself may have said before that the command was killed.
	read -r took user sys < <(tail -n 1 "$times")
	case $code in
	0)
		result=ok
		code=$(awk '/^ *[0-9]+ SKIPPED TEST/ { n += $1 } END { print n + 0 }' "$log")
		[ "$code" = 0 ] || note="  ($code of its cases skipped, see $log)"
		;;
	77) result=skip note="  $(tail -n 1 "$log")" ;;
	124 | 137) result=FAIL note="  killed: it had not ended after $limit s" ;;
	*) result=FAIL note="  exit status $code" ;;
	esac
	{
		flock 9
		echo "$result $took $build/tests/$name $1 $2" >>"$work/results"
		printf '%7s %-4s %-46s %4d s, %3d s of CPU%s\n' \
			"$(wc -l <"$work/results")/$total" $result "$build/tests/$name" \
			"$took" $((user + sys)) "$note"
		[ $result != FAIL ] || sed 's/^/        /' "$log"
	} 9>"$work/lock"
}

run_lane() {	# LANE SLOTS
	local lane build file
	while read -r lane _ build file; do
		[ "$lane" = "$1" ] || continue
		while [ "$(jobs -rp | wc -l)" -ge "$2" ]; do wait -n; done
		run_one "$build" "$file" &
	done <"$work/plan"
	wait
}

# The tests that failed, again: a line in $work/flaky for each that passes now.
run_again() {
	local name build file
	grep '^FAIL ' "$work/results" >"$work/failed"
	[ "$(wc -l <"$work/failed")" -le 2 ] || return
	while read -r _ _ name build file <&8; do
		! grep -qE 'Sanitizer|runtime error:' "$name.log" || continue
		echo "once more, alone: $name"
		mv "$name.log" "$name.first.log"
		sed -i "\\| $build $file\$|d" "$work/results"
		run_one "$build" "$file"
		! grep -q "^ok .* $build $file\$" "$work/results" || echo "$name" >>"$work/flaky"
	done 8<"$work/failed"
}

plan "$@" >"$work/plan"
total=$(wc -l <"$work/plan") began=$(date +%s)
: >"$work/results"
: >"$work/flaky"
run_lane cpu "${JOBS:-$((2 * $(nproc)))}" &
run_lane wait "${WAITERS:-8}" &
wait
run_lane alone 1
run_again

[ "$total" -lt 20 ] || {
	echo "slowest:"
	sort -k2,2nr "$work/results" | head -n 10 | awk '{ print "  " $2 " s", $3 }'
}
count() { grep -c "^$1 " "$work/results"; }
failed=$(count FAIL)
ended() {	# LOG WORDS
	echo "$2; the last lines of $1:"
	tail -n 30 "$1" | cut -c 1-300 | sed 's/^/        /'
}
while read -r name; do
	ended "$name.first.log" "flaky: $name failed beside others, and passed alone"
done <"$work/flaky"
while read -r _ _ name _; do
	ended "$name.log" "failed: $name"
done < <(grep '^FAIL ' "$work/results")
echo "$(count ok) passed, $failed failed, $(count skip) skipped, in $(($(date +%s) - began)) s"
[ "$failed" = 0 ] && [ "$total" -gt 0 ] && [ "$(wc -l <"$work/results")" = "$total" ]
