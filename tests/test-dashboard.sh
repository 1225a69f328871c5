#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# test-dashboard.sh BUILD - what `make test-dashboard` does: the alerts' own tests, and
# dashboard/dashboard_test.py, with a Prometheus from apt. PICTURE=FILE: where the board is drawn
# (BUILD/dashboard.png). DASHBOARD_SECONDS=n: how long engines are busy (40).
cd "$(dirname "$0")/.."
build=$(realpath "${1:?usage: test-dashboard.sh BUILD}")
export BUILD=$build
. tests/lib/library.sh
for program in prometheus promtool redis-server; do
	command -v $program >/dev/null || {
		echo "skipped: no $program here: apt-get install prometheus redis-server"
		exit 0
	}
done
promtool check rules systemd/alerts.yml
promtool test rules tests/dashboard/alerts_test.yml
python=python3
if ! python3 -c 'import matplotlib' 2>/dev/null; then
	python=$build/dashboard-venv/bin/python
	[ -x "$python" ] || python3 -m venv "$build/dashboard-venv"
	"$python" -c 'import matplotlib' 2>/dev/null ||
		"$python" -m pip -q install matplotlib || python=python3
fi
export PYTHONPATH=$PWD/tests/dashboard:$PYTHONPATH
exec "$python" -B -m unittest -v dashboard_test
