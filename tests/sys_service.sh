#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sys_service - goal: systemd takes the unit as it is installed. Method: systemd-analyze verify on a copy with the
# path that `make install` would write replaced by one that exists. Exit 0, 1, or 77 where systemd is not.
set -eu
command -v systemd-analyze > /dev/null || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
grep -q '^ExecStart=/usr/local/bin/kvtierd' systemd/kvtierd.service
sed 's|^ExecStart=/usr/local/bin/kvtierd|ExecStart=/bin/true|' systemd/kvtierd.service > "$dir/kvtierd.service"
systemd-analyze verify "$dir/kvtierd.service"
