#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check-gpu.sh BUILD - the tests of kind gpu on this machine's driver, not on the emulated one; then the kernels'
# tests once more under compute-sanitizer, where it is installed.
set -u
cd "$(dirname "$0")/.." || exit 1
build=$1 status=0
export KVTIER_REAL_GPU=1
if ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' && ! [ -e "${CUDA_DRIVER:-/usr/lib64/libcuda.so.1}" ]; then
	echo "check-gpu: there is no libcuda.so.1 here (ldconfig -p), so nothing can run on a GPU"
	exit 77
fi
# A bundle is built already, and has a run.sh.
[ -e run.sh ] || make -j"$(nproc)" BUILD="$build" TEST="${TEST:-gpu_*}" tests || exit 1
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
TEST="${TEST:-gpu_*}" tests/run.sh "$build" || status=1
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -z "$sanitizer" ]; then
	echo "check-gpu: no compute-sanitizer in PATH or /usr/local/cuda/bin: memcheck and racecheck did not run"
	exit $status
fi
for tool in memcheck racecheck; do
	for t in gpu_codec_layouts gpu_codec_random; do
		"$sanitizer" --tool $tool --error-exitcode 1 "$build/tests/$t" >"$build/tests/$t.$tool.log" 2>&1
		case $? in
		0) echo "ok   $tool $t" ;;
		*)
			echo "FAIL $tool $t"
			tail -n 40 "$build/tests/$t.$tool.log"
			status=1
			;;
		esac
	done
done
exit $status
