#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# Goal: mandoc has no complaint about the manual pages, also those that the tables make.
# Method: mandoc -Tlint on each page of the build and of the sources. That a page which they refer
# to is not installed on this machine is no fault of theirs.
command -v mandoc >/dev/null || { echo "skipped: no mandoc"; exit 77; }
pages=("$BUILD"/kvtierctl.1 "$BUILD"/kvtierd.conf.5 daemon/kvtierd.8 client/man/kvtier.3)
found=$(mandoc -Tlint "${pages[@]}" 2>&1 |
	grep -v -e 'referenced manual not found' -e 'outdated mandoc.db') || true
[ -z "$found" ] || { echo "$found"; exit 1; }
