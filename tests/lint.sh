#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh [BUILD] - rules of the tree that no compiler checks: which room includes which (rooms.py),
# which file calls which (circles.py), which header declares what (headers.py), how wide lines and
# how long files are (columns.py), words and sentences (prose.py), what pages cite (pages.py), the
# format (.clang-format), waits by the wall clock, whether FAULTS.md has each fault; and cppcheck.
set -u
cd "$(dirname "$0")/.." || exit 1
status=0
mapfile -t sources < <(find base client daemon kernels tiers tests \
	-name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
build=${1:-build}
for program in clang-format cppcheck; do
	command -v $program >/dev/null ||
		{ echo "lint: no $program here: apt-get install $program"; exit 1; }
done
make -j"$(nproc)" BUILD="$build" all >/dev/null || status=1
python3 tests/rooms.py || status=1
python3 tests/circles.py "$build" || status=1
python3 tests/headers.py "$build" || status=1
python3 tests/columns.py || status=1
python3 tests/prose.py || status=1
python3 tests/pages.py || status=1
clang-format --dry-run -Werror "${sources[@]}" || status=1
# A wait until a deadline goes by CLOCK_MONOTONIC, which nobody sets (base/thread.h).
wall=$(grep -rnE 'pthread_timedjoin_np\(|sem_timedwait\(|pthread_(mutex|rwlock)_timed[a-z]*lock\(' \
	base client daemon tiers --include='*.[ch]'
	grep -rl 'pthread_cond_timedwait(' base client daemon tiers --include='*.[ch]' |
		xargs grep -n 'pthread_cond_init(')
if [ -n "$wall" ]; then
	echo "$wall"
	echo "lint: a wait by the wall clock, see base/thread.h"
	status=1
fi
# Each test of a fault has an entry in FAULTS.md, and each test that it names is there.
for test in tests/{regr,fault,soak,fuzz}/*.{c,kvt} tests/sys/sys_hostile_*.c; do
	[ ! -e "$test" ] || grep -qw "$(basename "${test%.*}")" tests/FAULTS.md ||
		{ echo "$test: no entry in tests/FAULTS.md"; status=1; }
done
kinds='(unit|fault|sim|fuzz|regr|sys|gpu|soak)'
for test in $(grep -owE "${kinds}_[a-z0-9_]+" tests/FAULTS.md | sort -u); do
	compgen -G "tests/${test%%_*}/$test.*" >/dev/null ||
		{ echo "tests/FAULTS.md: no test $test"; status=1; }
done
# The table of helpers in tests/README.md has each header of tests/lib, and no other name of one.
for header in $(comm -3 <(cd tests/lib && ls -- *.h | sort) \
	<(grep '^| ' tests/README.md | grep -oE '[a-z_0-9]+\.h\b' | sort -u)); do
	echo "tests/README.md and tests/lib do not agree about $header: see the table of helpers"
	status=1
done
# A case registers itself (lib/test.h): only a fuzzer has a main(), and no program a list of cases.
rows=$(grep -nE 'cmocka_run_group_tests|^int main\(' -r tests --include='*.c' |
	grep -vE '^tests/(lib/test\.c|scenario/|fuzz/[^:]*:[0-9]+:int|bench/bench_main\.c)')
if [ -n "$rows" ]; then
	echo "$rows"
	echo "lint: a test says TEST(name) { ... }, see tests/lib/test.h"
	status=1
fi
cppcheck --quiet --enable=warning,portability --inline-suppr \
	--suppress=arrayIndexOutOfBoundsCond:base/loop.c --error-exitcode=1 \
	-D_GNU_SOURCE -I. -Iclient base client daemon kernels tiers || status=1
exit $status
