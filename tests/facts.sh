#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# facts.sh - prints what the tests say of themselves, for Makefile and run.sh: a word NAME:KEY=VALUE
# a line. A test says it at its head, behind `make:`, as tests/README.md explains:
#	/* make: wrap=mmap,calloc lane=wait no=thread (its threads are the daemon's) */
cd "$(dirname "$0")" || exit 1
exec awk '
	FNR == 1 {
		name = FILENAME
		sub(/.*\//, "", name)
		sub(/\.[a-z]*$/, "", name)
		if (name ~ /^(sim|fuzz)_/)	# one thread, by the nature of their kind
			print name ":no=thread"
		if (name ~ /^gpu_/)	# the emulated driver
			print name ":needs=emu/libcuda.so.1"
	}
	FNR > 12 { nextfile }
	/^(\/\*|#) make: / {
		sub(/^.* make: /, "")
		sub(/\*\/$/, "")
		gsub(/\([^)]*\)/, "")
		for (i = 1; i <= NF; i++) {
			if ($i !~ /^(wrap|needs|link|no|lane|seconds)=./) {
				print "tests/" FILENAME ": no fact: " $i >"/dev/stderr"
				exit 1
			}
			n = split(substr($i, index($i, "=") + 1), value, ",")
			for (v = 1; v <= n; v++)
				print name ":" substr($i, 1, index($i, "=")) value[v]
		}
	}' unit/*.c fault/*.c sim/*.c fuzz/*.c regr/*.c sys/*.c sys/*.sh sys/sys_*.py soak/*.c \
		gpu/*.c gpu/*.sh lib/*.c scenario/*.c */*.kvt
