#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# test-wheel.sh BUILD - a newcomer's first minutes, with the wheel that `make wheel` left in BUILD:
# a new venv, a user without rights and with an empty environment, kvtierd as it comes. `kvtierctl
# status` is OK, and an engine in Python hits what another one stored. It takes 1 GiB of memory and
# 8 GiB of disk below BUILD, for a minute.
cd "$(dirname "$0")/.."
build=$(cd "${1:?usage: test-wheel.sh BUILD}" && pwd)
work=$(mktemp -d "$build/wheel-XXXXXX")
chmod 755 "$work"
uid=$(id -u)
as=(env -i HOME="$work/home" PATH="$work/venv/bin:/usr/bin:/bin")
if [ "$uid" = 0 ]; then
	uid=60999
	as=(setpriv --reuid=$uid --regid=$uid --clear-groups "${as[@]}")
fi
daemon=
end() {
	[ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
	wait
	rm -rf "$work"
	[ "$uid" = "$(id -u)" ] || rm -rf "/tmp/kvtier-$uid"
}
trap end EXIT

fail() {
	echo "FAILED  $1"
	exit 1
}

says() {	# "EXPECTED" COMMAND...
	local got code=0
	got=$("${as[@]}" "${@:2}" 2>&1) || code=$?
	[ $code = 0 ] && [[ $got == *"$1"* ]] ||
		{ echo "$got"; fail "${*:2}: exit $code, expected: $1"; }
	echo "ok      ${*:2}: $1"
}

wheels=("$build"/kvtier-*.whl)
[ -e "${wheels[0]}" ] || fail "no wheel in $build: make wheel"
size=$(stat -c %s "${wheels[0]}")
[ "$size" -le 4000000 ] || fail "the wheel has $size bytes: more than 4 MB"
echo "ok      $(basename "${wheels[0]}"): $size bytes, 4 MB are allowed"

for python in $(type -ap python3) ""; do	# not one in a home of root's
	! "${as[@]}" "$python" -c 'import ensurepip' 2>/dev/null || break
done
"${python:?no Python with venv here that user $uid may run}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "${wheels[0]}"
mkdir "$work/home"
[ "$uid" = "$(id -u)" ] || chown $uid:$uid "$work/home"
cp client/examples/store_load.py "$work"
version=$(sed -n 's/^VERSION := //p' Makefile)
says "$version" kvtierd --version
says "$version" python -c 'import kvtier; print(kvtier.version())'

"${as[@]}" kvtierd 2>"$work/log" &
daemon=$!
for ((i = 0; ; i++)); do
	"${as[@]}" kvtierctl status >"$work/status" 2>&1 && grep -q ^OK "$work/status" && break
	kill -0 $daemon 2>/dev/null && [ $i -lt 1200 ] ||
		{ cat "$work/log" "$work/status"; fail "kvtierctl status is not OK"; }
	sleep 0.1
done
echo "ok      kvtierd; kvtierctl status: $(head -n 1 "$work/status")"
says "stored 8 of 8 blocks" python "$work/store_load.py" store
says "8 of 8 blocks are present" python "$work/store_load.py" load
says "loaded 8 of 8 blocks, no values wrong" python "$work/store_load.py" load
kill $daemon
wait $daemon || fail "kvtierd ended with $?"
daemon=
echo "passed"
