#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# deb.sh BUILD - what `make deb` does: Debian packages in BUILD/deb, made of a copy of this tree by
# systemd/debian. lintian must have no error and no warning to say.
cd "$(dirname "$0")/.."
build=${1:?usage: deb.sh BUILD}
ALSO="debhelper dh-python dpkg-dev lintian" tests/deps.sh
rm -rf "$build/deb"
tree=$build/deb/kvtier
mkdir -p "$tree/build"
tar -c --exclude=./.git --exclude='./build*' . | tar -x -C "$tree"
cp -r systemd/debian "$tree"
[ ! -e build/nvrtc ] || ln -s "$PWD/build/nvrtc" "$tree/build"
(cd "$tree" && dpkg-buildpackage --build=binary --no-sign --no-pre-clean) \
	>"$build/deb/log" 2>&1 || { tail -n 30 "$build/deb/log"; exit 1; }
lintian --allow-root --fail-on error,warning "$build"/deb/*.changes
rm -rf "$tree"
ls -l "$build"/deb/*.deb
