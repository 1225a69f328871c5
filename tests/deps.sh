#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# deps.sh - installs the packages that building and testing need, and those in $ALSO, if they are
# not here (Debian, Ubuntu). redis-tools has all of the server but its name: the package
# redis-server would start one on this machine.
set -eu
cd "$(dirname "$0")/.."
packages="gcc libc6-dev make pkg-config libssl-dev libxxhash-dev liblz4-dev libnuma-dev
	libjson-c-dev libcmocka-dev liburing-dev python3-venv systemd clang util-linux
	libhiredis-dev redis-tools openssl mandoc python3-zmq python3-msgpack ${ALSO:-}"
command -v dpkg-query >/dev/null || {
	echo "not a Debian system; kvtier needs:" $packages
	exit 0
}
missing=
for p in $packages; do
	dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' ||
		missing="$missing $p"
done
if [ -n "$missing" ]; then
	echo "installing:$missing"
	sudo=
	[ "$(id -u)" = 0 ] || sudo=sudo
	$sudo apt-get update -q
	$sudo env DEBIAN_FRONTEND=noninteractive \
		apt-get install -q -y --no-install-recommends $missing
fi
command -v redis-server >/dev/null || {
	mkdir -p build/bin
	ln -sf "$(command -v redis-check-rdb)" build/bin/redis-server
}
# A CUDA compiler of 12.x, in a library: its kernels run on drivers from 12.0 on, those of nvcc 13
# need a driver of 13.0. From PyPI, 90 MB, once. Without it the build says what it leaves out.
nvrtc=nvidia-cuda-nvrtc-cu12==12.9.86
fetch_nvrtc() {
	work=$(mktemp -d) || return 1
	trap 'rm -rf "$work"' EXIT
	echo "fetching $nvrtc"
	python3 -m venv "$work/venv" &&
		"$work/venv/bin/python" -m pip download --disable-pip-version-check --quiet \
			--retries 2 --no-deps --only-binary :all: -d "$work" "$nvrtc" &&
		python3 -m zipfile -e "$work"/*.whl "$work/wheel" &&
		mkdir -p build/nvrtc &&
		mv "$work"/wheel/nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.* build/nvrtc/ &&
		mv "$work/wheel/nvidia/cuda_nvrtc/lib/libnvrtc.so.12" build/nvrtc/
}
[ -e build/nvrtc/libnvrtc.so.12 ] || fetch_nvrtc ||
	echo "$nvrtc cannot be had: no CUDA kernels for drivers older than nvcc"
