#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# first-day.sh BUILD [--emulated] [STEP...] - what a first day on a GPU has to settle, in this order
# (all steps, or these numbers): each step asks one thing that only a driver can answer. It runs on
# the machine that has the GPU, from a tree or from the folder of `make gpu-bundle`. Each command
# has its limit in seconds; a command that cannot run here is skipped, with the reason.
# --emulated: the emulated driver takes the GPU's place; that tries this script, and says nothing of
# a GPU.
#
# $PYTHON: a Python with torch (python3), for the steps that act as torch does.
set -u
cd "$(dirname "$0")/.." || exit 1
build=$(cd "${1:?usage: first-day.sh BUILD [--emulated] [STEP...]}" && pwd) || exit 1
shift
python=${PYTHON:-python3} kind=cuda ok=0 failed=0 skipped=0 daemon=
work=$(mktemp -d)
chmod 755 "$work"
export KVTIER_LIBRARY=$build/libkvtier.so.0
ctl=("$build/kvtierctl" --socket "$work/run/admin.sock")
trap 'stop_daemon; rm -rf "$work"' EXIT
if [ "${1:-}" = --emulated ]; then
	shift
	kind=emulated
	umask 0 # an engine of another user opens the files of this machine
	mkdir "$work/machine"
	export LD_LIBRARY_PATH=$build/tests/emu KVTIER_EMU_DIR=$work/machine \
		KVTIER_EMU="seed=1 log=$work/machine/report null_stream=0 memory=8192" \
		KVTIER_BENCH_CUDA_MIB=4
else
	export KVTIER_REAL_GPU=1
fi

step() {	# NUMBER QUESTION
	echo
	echo "## $1. $2"
}

# Runs one command. Exit status 77 is a skip, with its last line as the reason.
try() {	# SECONDS NAME COMMAND...
	local seconds=$1 name=$2 code
	shift 2
	timeout -k 10 "$seconds" "$@" >"$work/out" 2>&1 </dev/null
	code=$?
	case $code in
	0) ok=$((ok + 1)) && echo "ok      $name" ;;
	77) skip "$name" "$(tail -n 1 "$work/out")" ;;
	*) failed=$((failed + 1)) && echo "FAILED  $name: exit status $code" ;;
	esac
	if [ $code = 0 ]; then tail -n "${SHOW:-0}" "$work/out"; else tail -n 30 "$work/out"; fi |
		sed 's/^/        /'
}

skip() {	# NAME REASON
	skipped=$((skipped + 1))
	echo "skipped $1: $2"
}

start_daemon() {	# [gpu] LINES
	mkdir -p -m 755 "$work/run" "$work/state"
	printf '[host]\nbytes = 256M\n[nvme]\nbytes = 0\n[socket]\nmode = 0666\n[gpu]\n%b' "$1" \
		>"$work/kvtierd.conf"
	RUNTIME_DIRECTORY=$work/run STATE_DIRECTORY=$work/state "$build/kvtierd" \
		--config "$work/kvtierd.conf" >"$work/kvtierd.log" 2>&1 &
	daemon=$!
	export KVTIER_SOCKET=$work/run/kvtier.sock
	for _ in $(seq 300); do
		[ -S "$KVTIER_SOCKET" ] && return
		kill -0 "$daemon" 2>/dev/null || break
		sleep 0.1
	done
	failed=$((failed + 1))
	echo "FAILED  kvtierd does not start:"
	sed 's/^/        /' "$work/kvtierd.log"
}

stop_daemon() {
	[ -n "$daemon" ] || return 0
	kill "$daemon" 2>/dev/null
	wait "$daemon"
	grep -E '^(<[0-4]>)|warning|error' "$work/kvtierd.log" | sed 's/^/        log: /' | head -20
	daemon=
	unset KVTIER_SOCKET
}

# An engine made of torch's tensors, that stores and loads; the ways to its pages are shown.
engine() {	# NAME [COMMAND IN FRONT...]
	local name=$1
	shift
	if [ $kind = cuda ] && ! "$python" -c 'import torch; torch.cuda.init()' 2>/dev/null; then
		skip "$name" "$python has no torch that sees a GPU (PYTHON=... names another)"
		return
	fi
	try 120 "$name" "$@" "$python" -B tests/gpu/torch_engine.py "$build" $kind
	grep -h 'reached by' "$work/out" | sed 's/^/        /'
}

tests() {	# SECONDS NAME...
	local seconds=$1 name
	shift
	for name; do
		if [ -e "tests/gpu/$name.kvt" ] && [ -x "$build/tests/kvt" ]; then
			try "$seconds" "$name" env -u KVTIER_EMU -u KVTIER_EMU_DIR \
				"$build/tests/kvt" "tests/gpu/$name.kvt"
		elif [ -x "$build/tests/$name" ]; then
			try "$seconds" "$name" env -u KVTIER_EMU -u KVTIER_EMU_DIR \
				"$build/tests/$name"
		else
			skip "$name" "it is not built"
		fi
	done
}

with_mps() {	# FUNCTION, which takes WHERE
	if [ $kind = emulated ] || ! command -v nvidia-cuda-mps-control >/dev/null; then
		skip "$1 with MPS" "no nvidia-cuda-mps-control here"
	elif nvidia-cuda-mps-control -d; then
		"$1" "with MPS"
		echo quit | timeout 30 nvidia-cuda-mps-control
	else
		skip "$1 with MPS" "nvidia-cuda-mps-control -d does not start"
	fi
}

step_1() {
	step 1 "Does the driver load the kernels, and does the installed service see the GPU?"
	if command -v nvidia-smi >/dev/null; then
		SHOW=20 try 30 nvidia-smi nvidia-smi --format=csv \
			--query-gpu=name,driver_version,compute_cap,mig.mode.current,compute_mode
	else
		skip nvidia-smi "it is not in PATH"
	fi
	if systemctl is-active --quiet kvtierd 2>/dev/null; then
		SHOW=30 try 30 "kvtierctl status of the service" kvtierctl status
		SHOW=30 try 30 "kvtierctl devices of the service" kvtierctl devices
	else
		skip "the installed service" \
			"kvtierd.service is not active: make install, start it, and reboot"
	fi
	start_daemon "devices = required\n"
	SHOW=30 try 60 "devices of a kvtierd started here" "${ctl[@]}" devices
	SHOW=30 try 60 "its status" "${ctl[@]}" status
	stop_daemon
}

step_2() {
	step 2 "Which memory reaches the daemon, by which way, also under other ordinals?"
	tests 180 gpu_client_probe gpu_rungs gpu_driver_floor
	start_daemon "devices = required\n"
	engine "an engine on the first GPU"
	local gpus
	gpus=$("${ctl[@]}" devices --json | grep -o '"kind":"cuda"' | wc -l)
	if [ "$gpus" -gt 1 ]; then
		engine "an engine whose GPU 0 is the last one" \
			env CUDA_VISIBLE_DEVICES=$((gpus - 1))
	else
		skip "an engine whose GPU 0 is the last one" "there is one GPU"
	fi
	stop_daemon
}

step_3() {
	step 3 "Do handles work between two users, two containers, two drivers in user space?"
	start_daemon "devices = required\n"
	if [ "$(id -u)" = 0 ]; then
		engine "an engine of another user" \
			setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp
		engine "an engine in a PID namespace of its own" unshare --pid --fork --mount-proc
		engine "an engine in an IPC namespace of its own" unshare --ipc
	else
		skip "an engine of another user" "this script is not run by root"
	fi
	if [ -d /usr/local/cuda/compat ]; then
		engine "an engine with cuda-compat" env LD_LIBRARY_PATH=/usr/local/cuda/compat
	else
		skip "an engine with cuda-compat" "there is no /usr/local/cuda/compat"
	fi
	stop_daemon
}

step_4() {
	step 4 "Are the kernels right on this GPU, and as fast as the paper says (RESULTS.md)?"
	tests 300 gpu_codec_values gpu_codec_layouts gpu_codec_random
	try 600 "compute-sanitizer" tests/check-gpu.sh "$build" sanitizer
	local blocks
	for blocks in 8 16 32 132; do
		SHOW=12 try 120 "encode, decode by $blocks blocks" \
			env KVTIER_BENCH_CUDA_BLOCKS=$blocks \
			"$build/kvtier-bench" cuda.encode.device cuda.decode.device
	done
	SHOW=30 try 300 "encode, decode, hit" "$build/kvtier-bench" cuda.encode cuda.decode cuda.hit
}

step_5() {
	step 5 "Does a capture of graphs survive an engine's polling thread?"
	tests 120 gpu_capture
	if "$python" -c 'import vllm' 2>/dev/null; then
		echo "        vLLM is here: serve a model with graphs and torch.compile on," \
			"kvtier as its connector (client/python/README.md)"
	fi
}

step_6() {
	step 6 "Does a stream that waits for an op hang: one hardware queue, a thread that waits?"
	tests 180 gpu_one_queue gpu_client_stream gpu_client_layers
	start_daemon "devices = required\n"
	engine "one hardware queue" env CUDA_DEVICE_MAX_CONNECTIONS=1
	stop_daemon
}

# An engine's kernel asserts: the context of that process is broken, no other one.
fault='
import torch
x = torch.zeros(4, device="cuda")
try:
    x[torch.tensor([1 << 40], device="cuda")].sum().item()
except RuntimeError as e:
    print(e)
else:
    raise SystemExit("the kernel did not fail")
'

faults() {	# WHERE
	start_daemon "devices = required\n"
	engine "an engine, $1"
	[ $kind = emulated ] || try 60 "another process's kernel fails, $1" "$python" -c "$fault"
	engine "an engine after that fault, $1"
	SHOW=10 try 30 "devices, $1" "${ctl[@]}" devices
	stop_daemon
}

step_7() {
	step 7 "What does a fault break: of an engine, and of an engine under the daemon's hands?"
	faults "without MPS"
	tests 300 gpu_client_kill gpu_again
	with_mps faults
}

steps_of_an_engine() {	# WHERE
	local blocks
	for blocks in 8 16 132; do
		SHOW=6 try 240 "cuda.step.daemon by $blocks blocks, $1" env \
			KVTIER_BENCH_CUDA_BLOCKS=$blocks "$build/kvtier-bench" cuda.step.daemon
	done
	SHOW=12 try 240 "cuda.step.daemon.hit, $1" "$build/kvtier-bench" cuda.step.daemon.hit
}

step_8() {
	step 8 "What does kvtierd cost an engine's step, and registering host memory others?"
	steps_of_an_engine "without MPS"
	with_mps steps_of_an_engine
	SHOW=12 try 240 "cuda.pin" "$build/kvtier-bench" cuda.pin.gpu cuda.register
}

[ $# -gt 0 ] || set -- 1 2 3 4 5 6 7 8
for number; do
	declare -f "step_$number" >/dev/null ||
		{ echo "first-day.sh: no step $number" >&2; exit 2; }
	"step_$number"
done
echo
echo "$ok ok, $failed failed, $skipped skipped"
[ $failed = 0 ]
