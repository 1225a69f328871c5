#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check-gpu.sh BUILD [tests|sanitizer] - the tests of kind gpu on this machine's driver, not on the
# emulated one; then the kernels' tests once more under compute-sanitizer, where it is installed; or
# one of the two. What it prints at its end is a part of tests/gpu/RESULTS.md. Skipped (77) where
# there is no driver.
set -u
cd "$(dirname "$0")/.." || exit 1
build=$1 part=${2:-both} status=0
export KVTIER_REAL_GPU=1 TEST=${TEST:-gpu_*} TEST_TIMEOUT=${TEST_TIMEOUT:-180}

# Where the driver is.
driver() {
	local dir
	for dir in "$@"; do
		[ -e "$dir/libcuda.so.1" ] && echo "$dir" && return
	done
	return 1
}
libraries=${LD_LIBRARY_PATH-}
# Where the loader looks, ...
dir=$(driver ${libraries//:/ } \
	$(ldconfig -p 2>/dev/null | sed -n 's|.*libcuda\.so\.1.* => \(.*\)/.*|\1|p') \
	/usr/lib64 /usr/lib/x86_64-linux-gnu) || {
	# ...or in a place that some systems do not tell it of.
	dir=$(driver /usr/lib/wsl/lib /usr/local/nvidia/lib64 /usr/local/cuda/compat) || {
		echo "check-gpu: there is no libcuda.so.1 here (LD_LIBRARY_PATH, ldconfig -p)," \
			"so nothing can run on a GPU"
		exit 77
	}
	export LD_LIBRARY_PATH=${libraries:+$libraries:}$dir
}

# A bundle is built already, and has a run.sh.
[ -e run.sh ] || make -j"$(nproc)" BUILD="$build" tests || exit 1
: >"$build/check-gpu.log" >"$build/sanitized.log"
if [ "$part" != sanitizer ]; then
	# Each test has its daemons and their staging memory: a GPU is asked for a few at a time.
	JOBS=${JOBS:-4} tests/run.sh "$build" | tee "$build/check-gpu.log"
	[ "${PIPESTATUS[0]}" = 0 ] || status=1
fi

sanitized() {	# each kernel, at each layout and at random ones
	local sanitizer tool t failed=0
	sanitizer=$(command -v compute-sanitizer ||
		ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
	if [ -z "$sanitizer" ]; then
		echo "skip memcheck, racecheck: no compute-sanitizer in PATH or /usr/local/cuda/bin"
		return 0
	fi
	for tool in memcheck racecheck; do
		for t in gpu_codec_layouts gpu_codec_random; do
			STEPS=20 timeout 120 "$sanitizer" \
				--tool $tool --error-exitcode 1 "$build/tests/$t" \
				>"$build/tests/$t.$tool.log" 2>&1
			case $? in
			0) echo "ok   $tool $t" ;;
			77) echo "skip $tool $t: $(tail -n 1 "$build/tests/$t.$tool.log")" ;;
			124) echo "FAIL $tool $t: it had not ended after 120 s" && failed=1 ;;
			*)
				echo "FAIL $tool $t: see below"
				failed=1
				tail -n 40 "$build/tests/$t.$tool.log" | sed 's/^/	/'
				;;
			esac
		done
	done
	return $failed
}
if [ "$part" != tests ]; then
	sanitized | tee "$build/sanitized.log"
	[ "${PIPESTATUS[0]}" = 0 ] || status=1
fi

# For RESULTS.md: what ran where, and each result by name.
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
echo
echo "### $(date -u +%F), ${gpu:-no nvidia-smi: driver in $dir}: \`make check-gpu\`"
echo
echo "| test | result | |"
echo "|---|---|---|"
result='^ *[0-9]+/[0-9]+ (ok|FAIL|skip) +[^ ]*/(gpu_[a-z_]*) +([0-9]+ s),.* of CPU *(.*)'
sed -nE "s#$result#| \\2 | \\1, \\3 | \\4 |#p" "$build/check-gpu.log"
sed -nE 's#^(ok|FAIL|skip) +([^:]*):? *(.*)#| \2 | \1 | \3 |#p' "$build/sanitized.log"
exit $status
