#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
#
# Goal: every configuration that a page of the tree shows is one that kvtierd takes as it stands.
# Method: each indented or fenced block of a README, and each literal block of a manual, that has a
# [section] of the configuration goes through --check-config. A group that this machine does not
# have is replaced by one that it has.

build=${BUILD:-build}
work=$(mktemp -d /tmp/kvtier-test-XXXXXX)
trap 'rm -rf "$work"' EXIT

# Writes each such block of a page to a file of its own, PAGE.LINE.
blocks() {
	awk -v page="$1" -v to="$work/$(echo "$1" | tr / _)" '
		function flush() {
			if (section)
				printf "%s", text >(to "." first ".conf")
			text = ""
			section = 0
		}
		/^```/ { fenced = !fenced; flush(); next }
		/^\.Bd -literal/ { fenced = 1; flush(); next }
		/^\.Ed/ { fenced = 0; flush(); next }
		!fenced && !/^(    |$)/ { flush(); next }
		text == "" { first = FNR }
		{ text = text $0 "\n" }
		/^ *\[(daemon|socket|admin|host|nvme|redis|gpu|hints|device|index)]/ { section = 1 }
		END { flush() }' "$1"
}

while read -r page; do
	blocks "$page"
done < <(find README.md client daemon kernels systemd tests tiers "$build"/kvtier*.[15] \
	-name '*.md' -o -name '*.[1358]')

n=0
for file in "$work"/*.conf; do
	group=$(sed -n 's/^ *group *= *\([^ ]*\).*/\1/p' "$file")
	if [ -n "$group" ] && ! getent group "$group" >/dev/null; then
		sed -i "s/^\( *group *= *\)$group/\1$(id -gn)/" "$file"
	fi
	"$build/kvtierd" --config "$file" --check-config >"$work/said" 2>&1 || {
		cat "$file" "$work/said"
		echo "$(basename "$file" .conf): kvtierd refuses what this page shows"
		exit 1
	}
	n=$((n + 1))
done
[ "$n" -ge 5 ] || { echo "only $n examples were found"; exit 1; }
echo "$n examples"
