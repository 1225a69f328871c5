#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# columns.py - lines and files are short enough to read: lines of C, CUDA, shell and the Makefile have at most 100
# columns (a tab is 8), of Python and of pages 120, and a file of code has at most 1,000 lines.
# In a page tables, code and the addresses of links are not counted.
import os
import re
import sys

COLUMNS = {".c": 100, ".h": 100, ".cu": 100, ".cuh": 100, ".sh": 100, "Makefile": 100, ".py": 120, ".md": 120}
LINES = 1000


def files():
    yield "Makefile"
    for name in sorted(os.listdir(".")):
        if name.endswith(".md"):
            yield name
    for top in ("base", "client", "daemon", "kernels", "systemd", "tests", "tiers"):
        for folder, folders, names in os.walk(top):
            folders[:] = sorted(f for f in folders if f not in ("build", "__pycache__") and not f.endswith(".egg-info"))
            yield from (os.path.join(folder, name) for name in sorted(names))


# The lines of a page that people read as text: a table, code, an address may be as wide as it has to be.
def prose(lines):
    code = False
    for number, line in lines:
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and not line.lstrip().startswith("|") and not line.startswith("    "):
            yield number, re.sub(r"\]\([^)]*\)", "]", line)


def main():
    bad = 0
    for file in files():
        kind = os.path.splitext(file)[1] or os.path.basename(file)
        if kind not in COLUMNS:
            continue
        with open(file, encoding="utf-8") as opened:
            lines = [(number, line.rstrip().expandtabs(8)) for number, line in enumerate(opened, 1)]
        if kind != ".md" and len(lines) > LINES:
            print(f"{file}: {len(lines)} lines")
            bad = 1
        for number, line in prose(lines) if kind == ".md" else lines:
            if len(line) > COLUMNS[kind]:
                print(f"{file}:{number}: {len(line)} columns")
                bad = 1
    sys.exit(bad)


main()
