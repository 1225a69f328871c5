#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh - each parser under libFuzzer for FUZZ_SECONDS (60). Corpus and finds lie in build-fuzz/.
# `make test` runs the same targets on a bounded number of seeded mutations.
set -eu -o pipefail
cd "$(dirname "$0")/.."
tests/deps.sh
echo 'int LLVMFuzzerTestOneInput(void); int LLVMFuzzerTestOneInput(void) { return 0; }' |
	clang -fsanitize=fuzzer -xc - -o /dev/null 2>/dev/null || {
	echo "clang has no libFuzzer here: apt-get install libclang-rt-14-dev (or clang's version)"
	exit 1
}
names=$(basename -s .c tests/fuzz/fuzz_*.c)
make -j"$(nproc)" CC=clang BUILD=build-fuzz SAN=address,undefined,fuzzer-no-link \
	LDFLAGS=-fsanitize=fuzzer \
	CFLAGS="-g -O1 -DKVTIER_LIBFUZZER" $(printf 'build-fuzz/tests/%s ' $names)
for name in $names; do
	corpus=build-fuzz/corpus/$name
	mkdir -p "$corpus"
	for byte in 0 1 2 3 4 5 6 7; do	# a first byte chooses the target, zeros follow
		{ printf "\\$byte"; head -c 12288 /dev/zero; } >"$corpus/pages$byte"
	done
	echo "== $name, ${FUZZ_SECONDS:-60} s"
	"build-fuzz/tests/$name" -max_total_time="${FUZZ_SECONDS:-60}" \
		-max_len=65536 -print_final_stats=1 \
		-artifact_prefix=build-fuzz/ "$corpus" 2>&1 | tail -n 12
done
