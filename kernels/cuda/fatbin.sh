#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fatbin.sh NVCC OUT [FLAG...] - the CUDA kernels for each kind of GPU, and PTX for those to come. A
# spilled register is an error.
set -eu
nvcc=$1 out=$2
shift 2
for arch in 80 86 89 90 100 120; do
	set -- "$@" -gencode "arch=compute_$arch,code=sm_$arch"
done
exec "$nvcc" -I. -std=c++17 -O3 --threads 0 -fatbin -Werror all-warnings -Xptxas -warn-spills "$@" \
	-gencode arch=compute_80,code=compute_80 -o "$out" kernels/cuda/codec.cu
