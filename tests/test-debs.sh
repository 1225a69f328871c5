#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test-debs.sh BUILD - the Debian packages that `make deb` left in BUILD/deb, under a real systemd
# (lib/machine.sh), as apt installs, upgrades, removes and purges them.
set -u
cd "$(dirname "$0")/.." || exit 1
build=$(realpath --relative-to=. "${1:?usage: test-debs.sh BUILD}")
. tests/lib/machine.sh
packages=(kvtierd kvtierctl libkvtier0 libkvtier-dev python3-kvtier)
example=/src/client/examples/store_load.py

apt() { on env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"; }

# The packages with a higher version: what an upgrade takes.
make_newer() {
	local package files
	mkdir -p "$root/debs/newer"
	for package in "${packages[@]}"; do
		files=$work/$package
		dpkg-deb -R "$root"/debs/"${package}"_*.deb "$files"
		sed -i 's/^Version: .*/&+1/; s/(= [^)]*/&+1/' "$files/DEBIAN/control"
		dpkg-deb -Zgzip -b "$files" "$root/debs/newer/" >/dev/null
	done
}

# The service runs, engines of its group are served, and others are not.
case_install() {
	apt update
	apt install --no-install-recommends $(cd "$root" && ls debs/*.deb | sed 's|^|/|')
	is ActiveState active
	is ActiveState active kvtierd.socket
	is UnitFileState enabled
	is UnitFileState enabled kvtierd.socket
	is UnitFileState disabled kvtier-exporter.service
	is UnitFileState disabled kvtier-events.service
	on kvtierctl status | grep ^OK
	on useradd alice
	on usermod -aG kvtier alice
	on useradd bob
	as alice python3 $example store
	as alice python3 $example load | grep 'loaded 8 of 8 blocks, no values wrong'
	refused 'usermod -aG kvtier USER' as bob python3 $example load
}

# Where somebody enables it, as its own page says.
case_exporter() {
	on systemctl enable --now kvtier-exporter
	until_so on python3 -c 'import urllib.request as r
assert b"\nkvtier_up 1\n" in r.urlopen("http://127.0.0.1:9810/metrics").read()'
}

# An engine works on while daemon and library are replaced below it; each of its connects is
# answered, and its blocks come again from NVMe.
case_upgrade() {
	local engine before code=0
	before=$(property MainPID)
	as alice env PYTHONUNBUFFERED=1 python3 /src/tests/sys/service_load.py 4000 /tmp/done \
		>"$work/load" 2>&1 &
	engine=$!
	until_so grep -q stored "$work/load"
	apt install $(cd "$root" && ls debs/newer/*.deb | sed 's|^|/|')
	on kvtierctl status
	on touch /tmp/done
	wait $engine || code=$?
	tail -n 3 "$work/load"
	[ $code = 0 ]
	is ActiveState active
	is ActiveState active kvtier-exporter.service
	[ "$(property MainPID)" != "$before" ]
	on dpkg-query -W kvtierd | grep '+1$'
}

# An operator empties a node: engines compute, and go on by themselves when it is over.
case_drain() {
	on kvtierctl drain --timeout 60
	refused drain on kvtierctl status
	as alice python3 $example load | grep 'loaded 8 of 8 blocks'
	on kvtierctl undrain
	on kvtierctl status | grep ^OK
}

# What was kept stays for the next installation.
case_remove() {
	apt remove kvtierd kvtierctl
	is ActiveState inactive
	is ActiveState inactive kvtierd.socket
	is ActiveState inactive kvtier-exporter.service
	on test -s /var/lib/kvtier/nvme.store
	refused 'no kvtierd' as alice python3 $example load
}

case_purge() {
	apt purge "${packages[@]}"
	on find / /run -xdev \( -path /src -o -path /debs \) -prune -o -name '*kvtier*' -print |
		tee "$work/left"
	[ ! -s "$work/left" ]
	on getent passwd kvtier
}

compgen -G "$build/deb/kvtierd_*.deb" >/dev/null || skip "no packages in $build/deb: make deb"
machine_boot
mkdir "$root/debs"
for package in "${packages[@]}"; do
	cp "$build"/deb/"${package}"_*.deb "$root/debs"
done
make_newer
run_cases install ${CASES:-exporter upgrade drain remove purge}
