#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh ARCHIVE... [-lLIB...] - each parser under libFuzzer for FUZZ_SECONDS (60). Corpus and finds lie in build-fuzz/.
# `make test` runs the same targets on a bounded number of seeded mutations.
set -eu -o pipefail
cd "$(dirname "$0")/.."
for file in tests/fuzz/fuzz_*.c; do
	name=$(basename "$file" .c)
	corpus=build-fuzz/corpus/$name
	mkdir -p "$corpus"
	for byte in 0 1 2 3 4 5 6 7; do	# a first byte chooses the target, zeros follow
		{ printf "\\$byte"; head -c 12288 /dev/zero; } >"$corpus/pages$byte"
	done
	echo "== $name, ${FUZZ_SECONDS:-60} s"
	clang -std=c11 -D_GNU_SOURCE -DKVTIER_LIBFUZZER -g -O1 -fsanitize=address,undefined,fuzzer -I. \
		-o "build-fuzz/$name" "$file" -Wl,--start-group "$@" -Wl,--end-group
	"build-fuzz/$name" -max_total_time="${FUZZ_SECONDS:-60}" -max_len=65536 -print_final_stats=1 \
		-artifact_prefix=build-fuzz/ "$corpus" 2>&1 | tail -n 12
done
