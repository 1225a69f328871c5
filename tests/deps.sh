#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# deps.sh - installs the packages that building and testing need, and those in $ALSO, if they are
# not here (Debian, Ubuntu). redis-tools has all of the server but its name: the package
# redis-server would start one on this machine.
set -eu
cd "$(dirname "$0")/.."
packages="gcc libc6-dev make pkg-config libinih-dev libssl-dev libxxhash-dev libnuma-dev
	libjson-c-dev libcmocka-dev liburing-dev python3-venv systemd clang util-linux
	libhiredis-dev redis-tools openssl ${ALSO:-}"
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
