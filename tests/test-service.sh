#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test-service.sh BUILD - the service under a real systemd (lib/machine.sh), as an operator meets
# it: installed by the README, with engines of users in the group and outside, restarted under load,
# killed, stopped, misconfigured, uninstalled, upgraded from the release before. CASES="name ..."
# runs these alone (install is always first).
set -u
cd "$(dirname "$0")/.." || exit 1
build=$(realpath --relative-to=. "${1:?usage: test-service.sh BUILD}")
. tests/lib/machine.sh

SMALL='[host]\nbytes = 256M\n[nvme]\nbytes = 1G\n'

# An engine of the group stores what is not there, and loads all of it.
served() {
	as alice store_load store >/dev/null
	loads_all
}

loads_all() { as alice store_load load | grep -F 'loaded 8 of 8 blocks, 0 values wrong'; }

# The README's way, with its defaults, over the state of a version whose user was dynamic. A user
# that is in the group, and one that is not.
case_install() {
	on install -d -m 700 /var/lib/private /var/lib/private/kvtier
	on touch /var/lib/private/kvtier/secret-before
	on ln -s private/kvtier /var/lib/kvtier
	on make -s -C /src -o all BUILD="$build" install
	on systemctl enable --now kvtierd
	on kvtierctl status
	[ "$(on stat -c '%a %U %G' /run/kvtier/kvtier.sock)" = "660 root kvtier" ]
	[ "$(on stat -c '%a %U' /var/lib/kvtier)" = "700 kvtier" ]
	[ "$(on stat -c %U /var/lib/kvtier/secret-before)" = kvtier ]
	on useradd alice
	on useradd bob
	on usermod -aG kvtier alice
	configure "$SMALL"
	on rm /var/lib/kvtier/nvme.store
	on systemctl start kvtierd
}

configure() {	# LINES of kvtierd.conf [LINES of the unit]
	on mkdir -p /etc/systemd/system/kvtierd.service.d
	printf "$1" | on tee /etc/kvtierd.conf >/dev/null
	printf '[Service]\nEnvironment="KVTIERD_OPTIONS=--config /etc/kvtierd.conf"\n'"${2:-}" |
		on tee /etc/systemd/system/kvtierd.service.d/test.conf >/dev/null
	on systemctl daemon-reload
	on systemctl stop kvtierd
}

case_group() {
	as alice store_load store | grep -F '0 of 8 blocks are present'
	loads_all
	on kvtierctl flush
}

case_no_group() {
	refused 'usermod -aG kvtier USER' as bob store_load load
	refused '/run/kvtier/stats' as bob kvtierctl stats
}

# A user of a group that kvtierd is not in reads the numbers, and may not connect.
case_monitor() {
	on useradd watcher
	configure "$SMALL"'[stats]\nmode = 0640\ngroup = watcher\n'
	on systemctl start kvtierd
	as watcher kvtierctl stats | grep -F 'blocks known'
	refused 'usermod -aG kvtier USER' as watcher store_load load
	refused '/run/kvtier/stats' as bob kvtierctl stats
	configure "$SMALL"
	on systemctl start kvtierd
}

# A socket of its own, whose engines see no block of the first one.
case_tenant() {
	on groupadd --system chat
	on usermod -aG chat bob
	printf '[socket chat]\n' | on tee -a /etc/kvtierd.conf
	on systemctl enable kvtierd@chat.socket
	on systemctl restart kvtierd
	[ "$(on stat -c '%a %U %G' /run/kvtier/kvtier-chat.sock)" = "660 root chat" ]
	as bob env KVTIER_SOCKET=/run/kvtier/kvtier-chat.sock store_load store |
		grep -F '0 of 8 blocks are present'
	loads_all
	on systemctl disable --now kvtierd@chat.socket
	on sed -i '/socket chat/d' /etc/kvtierd.conf
	on systemctl start kvtierd
}

# All that is optional works with the few rights that it has: io_uring, Redis, its secrets.
case_rights() {
	on systemd-analyze security --threshold=14 kvtierd
	on sh -c 'echo secret >/etc/redis-password && chmod 600 /etc/redis-password'
	on redis-cli config set requirepass secret
	configure "$SMALL"'io = io_uring\n[redis]\nendpoints = 127.0.0.1:6379
		password_file = /run/credentials/kvtierd.service/redis\n' \
		'LoadCredential=redis:/etc/redis-password\n'
	on systemctl start kvtierd
	until_so on sh -c 'kvtierctl status | grep -F "redis: up, 1 of 1 endpoints usable"'
	on kvtierctl status | grep -F 'nvme: io_uring'
	loads_all
	configure "$SMALL"
	on systemctl start kvtierd
}

# Routers hear of blocks, and engines of the group may describe theirs, whether kvtierd comes or
# goes. The publisher runs through the next cases, too.
case_events() {
	on apt-get install -q -y --no-install-recommends python3-zmq
	on systemctl stop kvtierd.socket
	on systemctl enable --now kvtier-events
	until_so on sh -c \
		'[ "$(stat -c "%a %U %G" /run/kvtier/events.sock)" = "660 kvtier kvtier" ]'
	served
	until_so on python3 -c 'import zmq
asked = zmq.Context().socket(zmq.DEALER)
asked.linger, asked.rcvtimeo = 0, 5000
asked.connect("tcp://127.0.0.1:5558")
asked.send_multipart([b"", bytes(8)])
while b"BlockStored" not in (said := asked.recv_multipart())[3]:
	assert said[2] != b"\xff" * 8'
	on systemctl restart kvtierd
	served
	is NRestarts 0 kvtier-events.service
	is ActiveState active kvtier-events.service
}

# In the same process; a wrong file changes nothing.
case_reload() {
	local pid
	pid=$(property MainPID)
	on sed -i '1i [daemon]\nlog_level = debug' /etc/kvtierd.conf
	on systemctl reload kvtierd
	until_so on sh -c 'journalctl -u kvtierd | grep "event=config_applied.*log_level"'
	echo 'wrong' | on tee -a /etc/kvtierd.conf
	on systemctl reload kvtierd || :
	until_so on sh -c \
		'journalctl -u kvtierd | grep "event=config_mistake.*/etc/kvtierd.conf:[0-9]*: "'
	is MainPID "$pid"
	served
	configure "$SMALL"
	on systemctl start kvtierd
}

case_watchdog() {
	local before
	before=$(property NRestarts)
	configure "$SMALL" 'WatchdogSec=3\n'
	on systemctl start kvtierd
	on systemctl kill -s STOP kvtierd
	until_so is NRestarts $((before + 1))
	until_so loads_all
}

# An engine that connects in the second before the next kvtierd starts waits for it.
case_crash() {
	local before
	before=$(property NRestarts)
	on systemctl kill -s KILL kvtierd
	until_so is SubState auto-restart
	loads_all
	is NRestarts $((before + 1))
}

case_restart() {
	local engine i
	on rm -f /tmp/done
	as alice env PYTHONUNBUFFERED=1 python3 /src/tests/sys/service_load.py 4000 /tmp/done \
		>"$work/load" 2>&1 &
	engine=$!
	until_so grep -q stored "$work/load"
	for i in 1 2 3; do
		on systemctl restart kvtierd
		sleep 1
	done
	on touch /tmp/done
	i=0
	wait $engine || i=$?
	tail -n 3 "$work/load"
	[ $i = 0 ]
}

case_second() {
	refused 'must be a directory of user' on kvtierd
	refused 'another kvtierd runs in /run/kvtier' as kvtier timeout 20 \
		env RUNTIME_DIRECTORY=/run/kvtier STATE_DIRECTORY=/var/lib/kvtier kvtierd
	served
}

# Loads go on while it is drained, and a restart loses no block.
case_drain() {
	served
	on kvtierctl drain
	loads_all
	on systemctl restart kvtierd
	loads_all
	served
}

# One start, and one line that says what is wrong. An engine that comes has systemd try again, a few
# times, and is told.
case_bad() {
	configure '[host]\nbites = 256M\n'
	refused '' on systemctl start kvtierd
	is ExecMainStatus 78
	is SubState failed
	is NRestarts 0
	[ "$(on journalctl -u kvtierd | grep -cF 'bites: no such key')" = 1 ]
	refused 'connect: ' as alice store_load load
	configure "$SMALL"
	on systemctl reset-failed kvtierd kvtierd.socket
	on systemctl start kvtierd
	served
}

case_stop() {
	on systemctl stop kvtierd.socket
	is ActiveState inactive
	refused 'no kvtierd' on kvtierctl status
	refused 'no /run/kvtier/kvtier.sock' as alice store_load load
	on systemctl start kvtierd
	served
}

# The socket of a tenant, too.
case_uninstall() {
	on groupadd -f --system chat
	printf '[socket chat]\n' | on tee -a /etc/kvtierd.conf
	on systemctl enable kvtierd@chat.socket
	on systemctl restart kvtierd
	on make -s -C /src -o all BUILD="$build" uninstall
	is ActiveState inactive
	[ -z "$(on find /usr/local -name '*kvtier*')" ]
	[ -z "$(on find /etc/systemd/system -type l -name 'kvtier*')" ]
	[ -z "$(on find /run -path '/run/kvtier/*' -type s)" ]
	on test -s /var/lib/kvtier/nvme.store
}

# From the release before, whose user was dynamic, and whose engine goes on without a restart.
case_upgrade() {
	on make -s -C /src -o all BUILD="$build" uninstall
	on rm -rf /var/lib/kvtier /etc/systemd/system/kvtierd.service.d
	on userdel kvtier
	on apt-get install -q -y --no-install-recommends libinih1	# it needed that
	on make -s -C "/src/$before" -o all BUILD=build install
	on systemctl daemon-reload
	on systemctl start kvtierd
	on store_load_before store
	on kvtierctl flush
	on store_load_before load | grep -F 'loaded 8 of 8 blocks, 0 values wrong'
	on make -s -C /src -o all BUILD="$build" install
	on systemctl restart kvtierd
	is ActiveState active kvtierd.socket
	on kvtierctl status
	on store_load_before load | grep -F 'loaded 8 of 8 blocks, 0 values wrong'
	on usermod -aG kvtier alice
	loads_all
}

machine_boot
before=$(realpath --relative-to=. "$(tests/upgrade/tree.sh "$build")") &&
	make -s -C "$before" BUILD=build NVCC= all >"$build/before.log" 2>&1 &&
	gcc -std=c11 -D_GNU_SOURCE -I"$before/client" "$before/client/examples/store_load.c" \
		"$before/build/libkvtier.a" -lcrypto -lpthread \
		-o "$root/usr/local/bin/store_load_before" || exit 1
gcc -std=c11 -D_GNU_SOURCE -Iclient client/examples/store_load.c "$build/libkvtier.a" -lpthread \
	-o "$root/usr/local/bin/store_load" || exit 1
run_cases install ${CASES:-group no_group monitor tenant rights events reload watchdog crash \
	restart drain second bad stop uninstall upgrade}
