# SPDX-License-Identifier: Apache-2.0
# machine.sh - sourced by scripts whose cases need a systemd: a small Debian that is made once, in
# $SERVICE_ROOT (BUILD/service-root, 400 MB). machine_boot boots a copy of it with systemd-nspawn,
# with this tree at /src; run_cases goes through cases, in their order, on this one machine.
#
# A case is a function case_NAME. It fails at the first command that fails. `on COMMAND...` runs a
# command in the machine as root, `as USER COMMAND...` as a user. A line tells how each case ended;
# of one that failed, its commands and the service's journal follow.
#
# The script sets build, a path below the tree, and has the tree as its working directory.

base=${SERVICE_ROOT:-$build/service-root}

skip() {
	echo "$(basename "$0" .sh): skipped: $1"
	exit 0
}

# The packages that the programs need come with their libraries; python3 and make are for `make
# install`, as on an operator's machine.
make_base() {
	local from libraries
	from=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/*.sources)
	libraries=$(ldd "$build/kvtierd" "$build/kvtierctl" | awk '/=> \// { print $3 }' | sort -u |
		xargs -n 1 readlink -f | sed 's|^/usr||; s|.*|*&|' | xargs dpkg -S |
		cut -d: -f1 | sort -u)
	rm -rf "$base.new"
	debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,procps \
		"$VERSION_CODENAME" "$base.new" "$from" &&
		cp /etc/resolv.conf "$base.new/etc/" &&
		DEBIAN_FRONTEND=noninteractive chroot "$base.new" apt-get install -q -y \
			--no-install-recommends $libraries python3 make redis-server &&
		chroot "$base.new" apt-get clean &&
		mv "$base.new" "$base"
}

on() {
	nsenter -t "$leader" -m -p -u -i -n -C -- \
		env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

as() {
	local user=$1
	shift
	on setpriv --reuid "$user" --regid "$user" --init-groups "$@"
}

# Until the command succeeds, for a minute and a half.
until_so() {
	local i
	for ((i = 0; i < 900; i++)); do
		"$@" >/dev/null 2>&1 && return
		sleep 0.1
	done
	echo "it has not become so: $*"
	return 1
}

# The command fails, and says these words.
refused() {	# WORDS COMMAND...
	local words=$1 said code=0
	shift
	said=$("$@" 2>&1) || code=$?
	echo "$said"
	[ $code != 0 ] && [[ $said == *"$words"* ]]
}

property() { on systemctl show -P "$1" "${2:-kvtierd.service}"; }
is() { [ "$(property "$1" "${3:-kvtierd.service}")" = "$2" ]; }

boot() {
	cp -a "$base" "$root" || return
	mkdir "$root/src"
	setsid systemd-nspawn -q -D "$root" --register=no --keep-unit --machine=kvtier-service \
		--bind-ro="$PWD:/src" -b >"$work/console" 2>&1 </dev/null &
	nspawn=$!
	until_so pgrep -P $nspawn || return
	leader=$(pgrep -P $nspawn | head -n 1)
	until_so on systemctl is-system-running --wait ||
		on systemctl is-system-running | grep -q degraded
}

machine_end() {
	[ -z "${leader:-}" ] || on systemctl poweroff >/dev/null 2>&1
	[ -z "${nspawn:-}" ] || wait "$nspawn" 2>/dev/null
	[ -z "${work:-}" ] || rm -rf "$work"
}

# Leaves the script where this cannot be, with the reason.
machine_boot() {
	local packages="debootstrap systemd-container"
	[ "$(id -u)" = 0 ] || skip "it needs root, for systemd-nspawn"
	. /etc/os-release
	[ "$ID" = debian ] || skip "it boots the Debian that it runs on, and this is $ID"
	ALSO=$packages tests/deps.sh >/dev/null || skip "needs the packages $packages"
	[ -d "$base" ] || { echo "making $base" && make_base >"$build/service-root.log" 2>&1; } ||
		skip "no Debian could be made: see $build/service-root.log"
	trap machine_end EXIT
	trap 'exit 1' INT TERM
	work=$(mktemp -d "$(dirname "$base")/service-run.XXXXXX")
	log=$work/log root=$work/root
	boot || { tail -n 5 "$work/console"; skip "systemd-nspawn boots nothing here"; }
}

# `set -e` holds in a case: it runs in the background, and neither it nor this function is the
# condition of an if, a while, && or ||.
run_case() {	# NAME
	local code=0 began=$SECONDS
	# systemd limits starts: each case may have as many as there may be.
	on systemctl reset-failed kvtierd kvtierd.socket 2>/dev/null
	(
		set -eE
		trap 'echo "line $LINENO: $BASH_COMMAND"' ERR
		"case_$1"
	) >"$log" 2>&1 &
	wait $! || code=$?
	if [ $code = 0 ]; then
		printf 'ok    %-12s %3d s  %s\n' "$1" $((SECONDS - began)) \
			"$(grep -F ' connects, ' "$log")"
		return
	fi
	printf 'FAIL  %-12s %3d s\n' "$1" $((SECONDS - began))
	{ cat "$log" && on journalctl -q -o cat -n 40 -u 'kvtier*'; } | sed 's/^/        /'
	return 1
}

run_cases() {	# NAME...
	local name failed=0 passed=0
	for name; do
		run_case "$name"
		[ $? = 0 ] && passed=$((passed + 1)) || failed=$((failed + 1))
	done
	echo "$(basename "$0" .sh): $passed passed, $failed failed"
	[ $failed = 0 ]
}
