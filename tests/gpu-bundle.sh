#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-bundle.sh BUILD - packs all into BUILD/gpu-bundle.tar.xz that a machine with a GPU and its
# driver needs, and nothing else, to run the tests of kind gpu and kvtier-bench cuda: the sources,
# the programs, and the libraries that they find there (all but the C library, 2.34 or later).
# There: ./run.sh, or `make check-gpu` where there is a compiler.
set -eu
cd "$(dirname "$0")/.."
folder=$PWD/$1/gpu-bundle
command -v nvcc /usr/local/cuda/bin/nvcc >/dev/null || [ -e build/nvrtc ] || {
	echo "gpu-bundle: no nvcc in PATH or /usr/local/cuda/bin, no build/nvrtc (make deps):" \
		"without the kernels there is nothing to run on a GPU"
	exit 1
}
rm -rf "$folder"
# Each test has the daemon's parts in it: without the sections that nobody calls the folder is 8 MiB
# smaller.
make BUILD="$folder/build" CFLAGS="-O2 -ffunction-sections -fdata-sections" TEST="gpu_*" tests \
	LDFLAGS="-Wl,--gc-sections,--disable-new-dtags,-rpath,'\$\$ORIGIN/../lib' \
		-Wl,-rpath,'\$\$ORIGIN/../../lib'"
mkdir -p "$folder/lib"
ldd "$folder"/build/{kvtierd,kvtierctl,kvtier-bench,tests/gpu_fault,tests/kvt} |
	awk '$3 ~ /^\// && $1 !~ /^(libc|libm|libpthread|libdl)\.so/ { print $3 }' | sort -u |
	xargs cp -L -t "$folder/lib"
if git rev-parse --git-dir >/dev/null 2>&1; then
	git ls-files -z -- '*.[ch]' '*.cu' '*.cuh' '*.sh' '*.py' '*.map' '*.in' '*.kvt' '*.inc' \
		Makefile LICENSE
else
	find . -path "./${folder#./}" -prune -o -path './build*' -prune -o -type f \
		\( -name '*.[ch]' -o -name '*.cu*' -o -name '*.sh' \
			-o -name '*.py' -o -name '*.map' -o -name '*.in' \
			-o -name '*.kvt' -o -name '*.inc' \
		-o -name Makefile -o -name LICENSE \) -print0
fi | tar --null -T - -cf - | tar -C "$folder" -xf -
find "$folder/build" \( -name '*.o' -o -name '*.d' -o -name '*.a' \) -delete
find "$folder/build" -type f -perm -u+x -exec strip {} + 2>/dev/null || true
git describe --always --dirty 2>/dev/null >"$folder/COMMIT" || true
cat >"$folder/run.sh" <<'RUN'
#!/bin/bash
# run.sh [--emulated] [tests|figures|sanitizer|first-day]... - the tests of kind gpu, the figures,
# and the kernels' tests under compute-sanitizer, on this machine's GPU; all three, or these. Each
# has 10 minutes. first-day: tests/first-day.sh. Output: results.txt, which grows. --emulated:
# on the emulated driver, which takes the GPU's place; that tries this folder, and says nothing of a
# GPU.
cd "$(dirname "$0")" || exit 1
status=0 emulated=
if [ "${1:-}" = --emulated ]; then
	shift
	emulated=--emulated
	rm -f emulated.log
	export LD_LIBRARY_PATH=$PWD/build/tests/emu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
	export KVTIER_BENCH_CUDA_MIB=${KVTIER_BENCH_CUDA_MIB:-4} \
		KVTIER_EMU="log=$PWD/emulated.log memory=8192"
fi
[ $# -gt 0 ] || set -- tests figures sanitizer
part() {
	echo
	echo "### $(date -u +%F), $1"
	echo
	case $1 in
	tests | sanitizer) timeout 600 tests/check-gpu.sh build "$1" ;;
	figures) timeout 600 build/kvtier-bench cuda ;;
	first-day) timeout 600 tests/first-day.sh build $emulated ;;
	*) echo "run.sh: no such part: $1" && false ;;
	esac || {
		echo "$1: exit status $?"
		status=1
	}
}
{
	date -u
	echo "commit $(cat COMMIT)"
	nvidia-smi || echo "no nvidia-smi here"
	for p; do part "$p"; done
	! grep '\] violation:' emulated.log 2>/dev/null || status=1
	exit $status
} 2>&1 | tee -a results.txt
exit "${PIPESTATUS[0]}"
RUN
chmod +x "$folder/run.sh"
XZ_OPT="-2 -T0" tar -C "${folder%/*}" -cJf "$folder.tar.xz" "${folder##*/}"
size=$(du -sm "$folder.tar.xz" | cut -f 1)
echo "$folder.tar.xz: $size MiB; copy it to a machine with a GPU, there:" \
	"tar xJf gpu-bundle.tar.xz && gpu-bundle/run.sh"
[ "$size" -lt 60 ] || { echo "gpu-bundle: that is 60 MiB or more"; exit 1; }
