#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
# sys_service - goal: what `make install` puts in place is whole, and systemd takes the units, which
# leave kvtierd few rights.
# Method: install into an empty directory, look for each file, systemd-analyze verify and security
# on the installed units with the program's path made one that exists here; uninstall, and nothing
# is left. Exit 0, 1, or 77 where systemd is not. `make test-service` starts them.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$1"; exit 1; }
make -s -o all install BUILD="${BUILD:-build}" DESTDIR="$dir" PREFIX=/opt/kvtier >"$dir/log" 2>&1 ||
	fail "$(cat "$dir/log")"
for file in bin/kvtierd bin/kvtierctl bin/kvtier-bench lib/libkvtier.so.0 lib/libkvtier.so \
	lib/libkvtier.a include/kvtier.h lib/pkgconfig/kvtier.pc share/man/man1/kvtierctl.1 \
	share/man/man3/kvtier.3 share/man/man8/kvtierd.8 share/man/man5/kvtierd.conf.5 \
	lib/systemd/system/kvtierd.service \
	lib/systemd/system/kvtierd.socket lib/systemd/system/kvtierd@.socket \
	lib/sysusers.d/kvtier.conf lib/tmpfiles.d/kvtier.conf share/doc/kvtier/no-network.conf \
	share/doc/kvtier/kvtierd.conf; do
	[ -s "$dir/opt/kvtier/$file" ] || fail "not installed: $file"
done
man=$dir/opt/kvtier/share/man
if command -v mandoc >/dev/null; then
	warned=$(mandoc -Tlint -Wwarning "$man"/man[58]/kvtierd* 2>/dev/null) || :
	[ -z "$warned" ] || fail "$warned"
fi
grep -q '^\.It Ic runtime_dir ' "$man/man5/kvtierd.conf.5" && grep -q '^\.It Li uptime_s ' \
	"$man/man1/kvtierctl.1" || fail "the manual lacks the keys or the counters"
grep -q '^prefix=/opt/kvtier$' "$dir/opt/kvtier/lib/pkgconfig/kvtier.pc" ||
	fail "kvtier.pc has another prefix"
unit=$dir/opt/kvtier/lib/systemd/system/kvtierd.service
grep -q '^ExecStart=/opt/kvtier/bin/kvtierd' "$unit" || fail "the unit starts another kvtierd"
# Engines' pages stay lent to a daemon that stands still until this ends it (kvtier.h), and then
# another one must come.
grep -q '^WatchdogSec=30$' "$unit" && grep -q '^Restart=on-failure$' "$unit" ||
	fail "no watchdog of 30 s that restarts"
# A GPU is to be had right after boot, and an MPS daemon's pipes can be reached.
for line in '^After=.*nvidia-fabricmanager.service' '^After=.*nvidia-persistenced.service' \
	'^ExecStartPre=+-/usr/bin/nvidia-modprobe -u -c=0$' '^BindPaths=-/tmp/nvidia-mps$'; do
	grep -q "$line" "$unit" || fail "the unit has no line $line"
done
stop=$(sed -n 's/^TimeoutStopSec=\([0-9]*\)$/\1/p' "$unit")
drain=$("$dir/opt/kvtier/bin/kvtierd" --print-config | sed -n 's/^stop_us = \([0-9]*\)$/\1/p')
stall=$("$dir/opt/kvtier/bin/kvtierd" --print-config | sed -n 's/^stall_us = \([0-9]*\)$/\1/p')
# and 3 s for ops and the rest, see main.c
[ $((stop * 1000000)) -gt $((drain + stall + 3000000)) ] ||
	fail "TimeoutStopSec=$stop is too short for stop_us = $drain"
grep -q '^ExecReload=/bin/sh -c "kill -HUP $MAINPID"$' "$unit" || fail "the unit cannot reload"
grep -q '^RestartPreventExitStatus=78$' "$unit" || fail "a wrong configuration is started again"
# Another directory, with files of other programs, which stay.
mkdir -p "$dir/other/usr/lib"
touch "$dir/other/usr/lib/libkvtier2.so"
for target in install uninstall; do
	make -s -o all $target BUILD="${BUILD:-build}" DESTDIR="$dir/other" PREFIX=/usr \
		>"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
done
left=$(cd "$dir/other/usr" && find . -mindepth 2)
[ "$left" = ./lib/libkvtier2.so ] || fail "uninstalled, and left: $left"
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not here"; exit 77; }
sed -i "s|^ExecStart=/opt|ExecStart=$dir/opt|" "$unit"
exporter=${unit%/*}/kvtier-exporter.service
sed -i "s|^ExecStart=/opt|ExecStart=$dir/opt|" "$exporter"
events=${unit%/*}/kvtier-events.service
grep -q '^Environment=PYTHONPATH=/opt/kvtier/lib/python.*/dist-packages$' "$events" ||
	fail "kvtier-events.service runs another kvtier.events"
systemd-analyze verify "$unit" "${unit%.service}.socket" "${unit%.service}@tenant.socket" \
	"$exporter" "$events"
systemd-analyze --help | grep -q -e --offline || { echo "systemd is older than 250"; exit 77; }
systemd-analyze security --offline=yes --threshold=14 "$unit" >"$dir/score" || {
	cat "$dir/score"
	fail "the unit leaves kvtierd more rights than it did"
}
for aside in 11:"$exporter" 14:"$events"; do
	systemd-analyze security --offline=yes --threshold="${aside%%:*}" "${aside#*:}" \
		>"$dir/score" || {
		cat "$dir/score"
		fail "${aside##*/} has more rights than it needs"
	}
done
mkdir "$unit.d"
cp "$dir/opt/kvtier/share/doc/kvtier/no-network.conf" "$unit.d"
systemd-analyze security --offline=yes --threshold=7 "$unit" >"$dir/score" || {
	cat "$dir/score"
	fail "no-network.conf leaves kvtierd more rights than it did"
}
