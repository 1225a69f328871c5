#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# test-containers.sh BUILD - what `make test-containers` does: systemd/containers/compose.yaml as
# it is written, by podman-compose and podman, with an image that holds this build's programs and
# their libraries alone. In vLLM's place stand engines that store and load, with its mounts, under
# podman's own seccomp profile. Skipped where podman cannot run a container.
cd "$(dirname "$0")/.."
build=$(realpath "${1:?usage: test-containers.sh BUILD}")
dir=systemd/containers venv=$build/containers
fail() { echo "test-containers: $1"; exit 1; }
"$build/kvtierd" --config $dir/kvtierd.conf --check-config
command -v podman >/dev/null || { echo "skipped: there is no podman"; exit 0; }
[ "$(id -u)" = 0 ] || { echo "skipped: only root can give directories to kvtierd's user"; exit 0; }
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --disable-pip-version-check --quiet podman-compose==1.6.0

# Limits that any machine can give, and a runtime that knows both versions of cgroups, if there is
# one.
work=$(mktemp -d /tmp/kvtier-containers.XXXXXX)
cat >"$work/containers.conf" <<-END
	[containers]
	default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
	[engine]
	runtime = "$(command -v runc >/dev/null && echo runc || echo crun)"
END
export CONTAINERS_CONF=$work/containers.conf
project=kvtier-$$ image=localhost/kvtier-test:$$
compose() { # where podman finds the profile
	(cd $dir &&
		"$venv/bin/podman-compose" -p $project -f compose.yaml -f "$work/test.yaml" "$@")
}
clean() {
	podman rm -f -t 0 $(podman ps -aq --filter label=io.podman.compose.project=$project) \
		>/dev/null 2>&1 || :
	podman volume rm -f ${project}_{sockets,store,models} >/dev/null 2>&1 || :
	podman rmi -f $image >/dev/null 2>&1 || :
	rm -rf "$work"
}
outside=
trap '[ ! "$outside" ] || kill -9 $outside 2>/dev/null || :; clean' EXIT

mkdir -p "$work"/root/{bin,etc,proc,sys,dev}
install -d -m 1777 "$work/root/tmp"
install -d -o 10001 -g 10001 "$work/root/run/kvtier" "$work/root/var/lib/kvtier" # as the Dockerfile
cc -Iclient -D_GNU_SOURCE -o "$work/root/bin/store_load" client/examples/store_load.c \
	"$build/libkvtier.a" -lpthread
cp "$build/kvtierd" "$build/kvtierctl" "$work/root/bin"
ldd "$work"/root/bin/* | awk '/=> \// { print $3 } /^\t\/lib/ { print $1 }' | sort -u |
	while read -r library; do install -D "$library" "$work/root$library"; done
tar -C "$work/root" -c . | podman import --quiet - $image >/dev/null
podman run --rm --network none $image /bin/kvtierd --version ||
	{ echo "skipped: podman cannot run a container here"; exit 0; }

sed 's/^bytes = 32G/bytes = 64M/; s/^bytes = 256G/bytes = 256M/' $dir/kvtierd.conf >"$work/conf"
cat >"$work/test.yaml" <<-END
	services:
	  kvtierd:
	    image: $image
	    ulimits: !override {memlock: 1048576, nofile: 1024, nproc: 1000}
	    volumes: ["$work/conf:/etc/kvtier/kvtierd.conf:ro"]
	  vllm:
	    image: $image
	    command: !override [store_load, store]
	    network_mode: none
	    ports: !reset []
END
compose up -d kvtierd || fail "kvtierd's container does not start"
daemon=${project}_kvtierd_1
ready() {
	for i in $(seq 300); do
		podman exec $daemon kvtierctl status --ready >/dev/null 2>&1 && return
		sleep 0.1
	done
	fail "kvtierd is not ready: $(podman logs $daemon 2>&1 | tail -3)"
}
ready
podman exec $daemon kvtierctl status
# The engine's container: as root, as another user, and as root of a user namespace of its own.
compose run --rm -T vllm store_load store
compose run --rm -T --user 65534 vllm store_load load
in_own() {
	podman run --rm --network none -v ${project}_sockets:/run/kvtier:ro "$@"
}
in_own --uidmap 0:200000:65536 $image store_load load
in_own --cap-drop all --security-opt no-new-privileges --read-only $image store_load load
! in_own $image kvtierctl status || fail "an engine's container reaches the admin socket"
# A kvtierd outside, whose socket is for a group: a container has it by its number.
install -d -o 10001 "$work/run" "$work/state"
chmod 755 "$work"
cat >"$work/outside" <<-END
	[daemon]
	runtime_dir = $work/run
	state_dir = $work/state
	[socket]
	mode = 0660
	[host]
	bytes = 64M
	[nvme]
	bytes = 0
END
cp "$build/kvtierd" "$work/kvtierd"
setpriv --reuid 10001 --regid 10001 --clear-groups "$work/kvtierd" --config "$work/outside" \
	2>"$work/log" &
outside=$!
until [ -S "$work/run/admin.sock" ] && [ -S "$work/run/kvtier.sock" ]; do
	kill -0 $outside || fail "kvtierd ended: $(tail -1 "$work/log")"
	sleep 0.1
done
chgrp 12345 "$work/run/kvtier.sock"
of_node() {
	podman run --rm --network none -v "$work/run:/run/kvtier:ro" --user 65534 "$@"
}
! of_node $image store_load store || fail "a user without the group connects"
of_node --group-add 12345 $image store_load store
kill $outside && wait $outside
# Blocks outlive the container.
podman stop -t 60 $daemon >/dev/null
[ "$(podman inspect -f '{{.State.ExitCode}}' $daemon)" = 0 ] || fail "SIGTERM does not end kvtierd"
compose down
compose up -d kvtierd
ready
compose run --rm -T vllm store_load load
echo "test-containers: all as it must be"
