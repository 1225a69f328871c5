#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# binaries.sh DIR NVCC NVRTC - compiles codec.cu by each compiler that is there ("": it is not) into
# DIR, and writes the list DIR/binaries.h. nvcc: a fat binary, not compressed, since drivers of 12.0
# do not know how later releases compress. NVRTC (a libnvrtc.so): nvrtc.py. A spill is an error.
set -eu
dir=$1 nvcc=$2 nvrtc=$3
mkdir -p "$dir"
{
	if [ -n "$nvcc" ]; then
		release=$("$nvcc" --version |
			sed -n 's/.*release \([0-9]*\)\.\([0-9]*\),.*/\1 \2/p')
		known=$("$nvcc" --list-gpu-code)
		set --
		for arch in 80 86 89 90 100 120; do
			case $known in
			*"sm_$arch"*) set -- "$@" -gencode "arch=compute_$arch,code=sm_$arch" ;;
			*) echo "binaries.sh: $nvcc knows no sm_$arch: no code for it" >&2 ;;
			esac
		done
		"$nvcc" -I. -std=c++17 -O3 -ftz=false --threads 0 -fatbin -no-compress \
			-Werror all-warnings -Xptxas -warn-spills "$@" \
			-gencode arch=compute_80,code=compute_80 \
			-o "$dir/nvcc.fatbin" kernels/cuda/codec.cu >&2
		release=$((${release% *} * 1000 + ${release#* } * 10))
		echo "BINARY(nvcc, $release, CUDA_FATBIN, 80, \"$dir/nvcc.fatbin\")"
	fi
	[ -z "$nvrtc" ] || python3 kernels/cuda/nvrtc.py "$nvrtc" "$dir"
} >"$dir/binaries.tmp"
mv "$dir/binaries.tmp" "$dir/binaries.h"
