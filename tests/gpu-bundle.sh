#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-bundle.sh BUILD - puts all into BUILD/gpu-bundle that a machine with a GPU and its driver needs, and nothing else, to
# run the tests of kind gpu and kvtier-bench cuda: the sources, and the programs, linked statically but for the
# C library (2.34 or later) and cmocka, which lies beside them. There: ./run.sh, or `make check-gpu` where there
# is a compiler.
set -eu
cd "$(dirname "$0")/.."
folder=$PWD/$1/gpu-bundle
static="-linih -lxxhash -lnuma -ljson-c -luring -lhiredis -lssl -lcrypto"
make BUILD="$folder/build" LIBS="-Wl,-Bstatic $static -Wl,-Bdynamic -lcmocka -lpthread -lm -ldl" \
	CFLAGS="-O2" TEST="gpu_*" tests
mkdir -p "$folder/lib"
cp -L "$(ldd "$folder/build/tests/gpu_codec_values" | awk '/libcmocka/ { print $3 }')" "$folder/lib/"
if git rev-parse --git-dir >/dev/null 2>&1; then
	git ls-files -z -- '*.[ch]' '*.cu' '*.cuh' '*.sh' '*.py' '*.map' '*.in' Makefile LICENSE
else
	find . -path "./${folder#./}" -prune -o -path './build*' -prune -o -type f \
		\( -name '*.[ch]' -o -name '*.cu*' -o -name '*.sh' -o -name '*.py' -o -name '*.map' -o -name '*.in' \
		-o -name Makefile -o -name LICENSE \) -print0
fi | tar --null -T - -cf - | tar -C "$folder" -xf -
find "$folder/build" \( -name '*.o' -o -name '*.d' -o -name '*.a' \) -delete
find "$folder/build" -type f -perm -u+x -exec strip {} + 2>/dev/null || true
cat >"$folder/run.sh" <<'RUN'
#!/bin/bash
# run.sh - the tests of kind gpu, then the figures, on this machine's GPU. Output: results.txt
cd "$(dirname "$0")" || exit 1
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
{
	date -u
	nvidia-smi
	tests/check-gpu.sh build
	build/kvtier-bench cuda
} 2>&1 | tee results.txt
RUN
chmod +x "$folder/run.sh"
size=$(du -sm "$folder" | cut -f 1)
echo "$folder: $size MiB; copy it to a machine with a GPU, there: ./run.sh"
[ "$size" -lt 60 ] || { echo "gpu-bundle: that is 60 MiB or more"; exit 1; }
