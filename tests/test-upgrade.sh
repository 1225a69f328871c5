#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# test-upgrade.sh BUILD - what `make test-upgrade` does: builds the trees of tests/upgrade/RELEASES,
# and runs their libraries and daemons beside those in BUILD. CASES="test_x ..." names the cases.
cd "$(dirname "$0")/.."
build=$(realpath "${1:?usage: test-upgrade.sh BUILD}")
. tests/lib/library.sh
n=$(grep -vc '^#' tests/upgrade/RELEASES)
for i in $(seq "$n"); do
	tree=$(tests/upgrade/tree.sh "$build" "$i") || {
		status=$?
		echo "$tree"
		[ $status != 77 ] || exit 0
		exit $status
	}
	trees="${trees:-} $tree"
done
mkdir -p "$build/upgrade"
export BUILD=$build KVTIER_RELEASES=$trees KVTIER_ENGINE_LOGS=$build/upgrade
export PYTHONPATH=$PWD/tests/sys:$PWD/tests/engines:$PWD/tests/upgrade:$PWD/client/examples
exec python3 -B -m unittest -v $(printf -- "-k %s " ${CASES:-test}) upgrade_test
