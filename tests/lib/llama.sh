# SPDX-License-Identifier: Apache-2.0
# llama.sh - sourced by tests with the real llama.cpp. Sets what library.sh sets, and python: the
# interpreter of the environment that has engine and model. Ends the script with exit status 77, and
# says why, if there can be none.

. "${BASH_SOURCE[0]%/*}/library.sh"
python=$("$tree/client/examples/venv.sh" "$build") || {
	[ $? -eq 77 ] || exit 1
	echo "skipped: the wheels of engine and model cannot be had (see above)"
	exit 77
}
# Two threads that spin at each barrier keep other tests from the cores.
export OMP_WAIT_POLICY=passive
