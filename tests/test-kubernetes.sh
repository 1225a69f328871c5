#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# test-kubernetes.sh BUILD - what `make test-kubernetes` does: the manifests of systemd/kubernetes
# against the API's schemas, what they must not ask for, and kvtierd's configuration in them.
# kubectl, where it is here, makes the manifests that `kubectl apply -k` would send.
cd "$(dirname "$0")/.."
build=$(realpath "${1:?usage: test-kubernetes.sh BUILD}")
dir=systemd/kubernetes venv=$build/kubernetes
fail() { echo "$1"; exit 1; }
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --disable-pip-version-check --quiet kubernetes-validate==1.37.0
cp $dir/engine.yaml $dir/vllm.yaml $dir/base/daemonset.yaml $dir/base/namespace.yaml "$venv"
manifests="$venv/engine.yaml $venv/vllm.yaml $venv/daemonset.yaml $venv/namespace.yaml"
if command -v kubectl >/dev/null; then
	for variant in base gpu; do
		kubectl kustomize $dir/$variant >"$venv/$variant.yaml"
		manifests="$manifests $venv/$variant.yaml"
	done
else
	echo "skipped: there is no kubectl, which puts base and gpu together"
fi
for manifest in $manifests; do
	"$venv/bin/python" -m kubernetes_validate --strict -k 1.33 "$manifest"
	! grep -nE 'host(PID|IPC|Network)|privileged: *true|ADMIN|Escalation: *true' \
		"$manifest" || fail "$manifest asks for what no pod needs"
done
# The check itself: a misspelt field is refused.
sed 's/livenessProbe/livenesProbe/' "$venv/daemonset.yaml" >"$venv/wrong.yaml"
! "$venv/bin/python" -m kubernetes_validate --strict -k 1.33 "$venv/wrong.yaml" >/dev/null 2>&1 ||
	fail "a misspelt field passes"
"$build/kvtierd" --config $dir/base/kvtierd.conf --check-config
# [host] bytes is the pod's limit of huge pages.
bytes=$(sed -n '/^\[host\]/,/^\[/s/^bytes = \(.*\)G$/\1/p' $dir/base/kvtierd.conf)
grep -q "limits: .*hugepages-2Mi: ${bytes}Gi" $dir/base/daemonset.yaml ||
	fail "the limit hugepages-2Mi is not [host] bytes = ${bytes}G"

# --- the pod's commands, as its users, in namespaces of their own, below a directory ---

[ "$(id -u)" = 0 ] || { echo "skipped: only root can be the pod's users"; exit 0; }
node=$(mktemp -d /tmp/kvtier-node.XXXXXX)
pod= # unshare, whose child is the first process of the pod
trap '[ ! "$pod" ] || kill -9 $(pgrep -P $pod) || :; rm -rf "$node"' EXIT
chmod 755 "$node"
mkdir -p "$node"/run/kvtier "$node"/var/lib/kvtier "$node"/seccomp "$node"/bin
install -d -m 777 "$node/run/kvtierd" # as an emptyDir is
cp "$build/kvtierd" "$build/kvtierctl" "$node/bin"
cc -Iclient -D_GNU_SOURCE -o "$node/bin/store_load" client/examples/store_load.c \
	"$build/libkvtier.a" -lpthread
here() { sed "s|/run/kvtier|$node/run/kvtier|g; s|/var/lib/kvtier|$node/var/lib/kvtier|g; $1"; }
here 's|^bytes = 32G|bytes = 64M|; s|^bytes = 256G|bytes = 256M|; s|= 2m|= no|' \
	<$dir/base/kvtierd.conf >"$node/kvtierd.conf"
said() { # a path in the DaemonSet's pod: its words, a line each
	"$venv/bin/python" -c 'import sys, yaml
pod = yaml.safe_load(open(sys.argv[1]))["spec"]["template"]["spec"]
print("\n".join(eval(sys.argv[2], {"pod": pod, "main": pod["containers"][0]})))' \
		$dir/base/daemonset.yaml "$1"
}
as_user() { # in the pod, without a capability
	env PATH="$node/bin:$PATH" KVTIER_SOCKET="$node/run/kvtierd/kvtier.sock" setpriv \
		--reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all "$@"
}
asks() { # a command of the pod
	mapfile -t words < <(said "$1")
	as_user "${words[@]}"
}
said 'pod["initContainers"][0]["command"][2:]' |
	here "s|/etc/kvtier|$PWD/$dir/base|; s|/seccomp/|$node/seccomp/|" >"$node/init"
for again in once twice; do
	setpriv --no-new-privs --bounding-set=-all,+chown,+fowner sh -eu "$node/init" ||
		fail "the init container fails $again"
done
cmp $dir/base/seccomp.json "$node/seccomp/kvtierd.json"
[ "$(said 'main["command"]' | tr '\n' ' ')" = "kvtierd --config /etc/kvtier/kvtierd.conf " ]
unshare --pid --fork --net --ipc --uts \
	setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all \
	"$node/bin/kvtierd" --config "$node/kvtierd.conf" >"$node/log" 2>&1 &
pod=$!
for i in $(seq 300); do
	asks 'main["readinessProbe"]["exec"]["command"]' >/dev/null 2>&1 && break
	sleep 0.1
done
asks 'main["readinessProbe"]["exec"]["command"]' || fail "not ready: $(tail -3 "$node/log")"
asks 'main["livenessProbe"]["exec"]["command"]'
for what in store load; do # an engine's pod, which runs as root of a user namespace
	env KVTIER_SOCKET="$node/run/kvtier/default/kvtier.sock" \
		setpriv --reuid 65534 --regid 65534 --clear-groups unshare --user --map-root-user \
		--pid --fork --net --ipc --uts "$node/bin/store_load" $what
done
asks 'main["lifecycle"]["preStop"]["exec"]["command"]'
kill "$(pgrep -P $pod)"
wait $pod || fail "SIGTERM: kvtierd ended with $?"
pod=
echo "test-kubernetes: all as it must be"
