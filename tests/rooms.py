#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# rooms.py - the rooms of the product, from the lowest to the highest, and the rooms that each one
# includes. A row names rows above it only. So there is no circle of rooms: a room can be read and
# built without the rooms below it in this list. And a room is a place where one finds things: it has
# at most 4,000 lines of code, no two files of the tree have one name, and a header is read once.
import collections
import glob
import os
import re
import subprocess
import sys

ROOMS = """
base
kernels
client/abi
client
client/lib/base     base client/abi client
client/lib/memory   base client/abi client client/lib/base
client/lib          base client/abi client client/lib/base client/lib/memory
tiers               base kernels
daemon/stats        base tiers
daemon/quota
daemon/changes      base
daemon/config       base client/abi tiers
daemon/device       base kernels client/abi
daemon/cuda/driver  base kernels client/abi tiers daemon/device
daemon/cuda/lane    base kernels daemon/device daemon/cuda/driver
daemon/cuda         base daemon/config daemon/device daemon/cuda/driver daemon/cuda/lane
daemon/index        base client/abi
daemon/table        base kernels client/abi client tiers daemon/quota daemon/changes daemon/config
                    daemon/index
daemon/policy       base tiers daemon/table
daemon/move         base kernels client/abi tiers daemon/stats daemon/device
                    daemon/table daemon/policy
daemon/kvtierd.h    base daemon/stats daemon/quota daemon/changes daemon/config daemon/device
                    daemon/index daemon/table daemon/move
daemon/write        base tiers daemon/stats daemon/config daemon/table daemon/move
daemon/verify       base tiers daemon/stats daemon/device daemon/table daemon/policy daemon/move
daemon/up           base tiers daemon/config daemon/move daemon/kvtierd.h daemon/write
                    daemon/verify
daemon/session      base kernels client/abi tiers daemon/device daemon/table daemon/move
daemon/op           base client/abi tiers daemon/stats daemon/quota daemon/config daemon/device
                    daemon/table daemon/policy daemon/move daemon/write daemon/session
daemon/conn         base client/abi daemon/config daemon/kvtierd.h daemon/session daemon/op
daemon/replay       base daemon/table
daemon/admin        base client/abi tiers daemon/config daemon/table daemon/policy daemon/move
                    daemon/kvtierd.h daemon/write daemon/verify daemon/up daemon/op daemon/conn
daemon/main.c       base tiers daemon/config daemon/device daemon/cuda daemon/policy daemon/move
                    daemon/kvtierd.h daemon/write daemon/verify daemon/up daemon/op daemon/conn daemon/admin
daemon/ctl          base kernels client/abi tiers daemon/stats daemon/config daemon/admin
daemon/ctl/export   base daemon/stats daemon/admin daemon/ctl
daemon/ctl/doctor   base daemon/stats daemon/config daemon/ctl
daemon/ctl/replay   daemon/config daemon/replay daemon/ctl
"""
# The files that may see the whole daemon in one struct: they look at all of it, or bring a tier up.
LINES = 4000
WHOLE = r"daemon/(main\.c|conn/.*|admin/.*|up/.*)"


def table():
    rooms, current = {}, None
    for line in ROOMS.strip().splitlines():
        words = line.split()
        if not line[0].isspace():
            current, words = words[0], words[1:]
            rooms[current] = set()
        for word in words:
            if word not in rooms:
                sys.exit(f"rooms.py: {current} names {word}, which is not above it")
            rooms[current].add(word)
    return rooms


def room_of(path, rooms):
    while path and path not in rooms:
        path = path.rpartition("/")[0]
    return path


def includes(file):
    folder = file.rpartition("/")[0]
    for number, line in enumerate(open(file, encoding="utf-8"), 1):
        match = re.match(r'\s*#\s*include "([^"]+)"', line)
        if match:
            name = match[1]
            yield number, name if "/" in name else f"{folder}/{name}"


def names_and_sizes():
    tree = subprocess.run(["git", "ls-files", "*.c", "*.h", "*.cu", "*.cuh", "*.py"], check=True, capture_output=True,
                          text=True).stdout.split()
    tree = [file for file in tree if os.path.exists(file)]
    lines, named = collections.Counter(), collections.defaultdict(list)
    for file in tree:
        folder, name = os.path.split(file)
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
        if not folder.startswith("tests"):
            lines[folder] += text.count("\n")
        if name != "__init__.py":
            named[name].append(file)
        once = name.startswith("tbl_") or file == "client/kvtier.h" or "\n#pragma once\n" in text
        if name.endswith(("h", "cuh")) and not once:
            yield f"{file}: #pragma once keeps it from being read twice"
    for folder, count in lines.items():
        if count > LINES:
            yield f"{folder}: {count} lines: a room has at most {LINES}"
    for files in named.values():
        if len(files) > 1:
            yield f"{' and '.join(files)} have one name"


def main():
    rooms, used, bad = table(), {}, 0
    files = [file for top in ("base", "client", "daemon", "kernels", "tiers")
             for file in sorted(glob.glob(top + "/**", recursive=True))
             if re.search(r"\.(c|h|cu|cuh)$", file) and not file.startswith("client/examples/")]
    for file in files:
        room = room_of(file, rooms)
        for number, name in includes(file):
            other = room_of(name, rooms)
            used.setdefault(room, set()).add(other)
            whole = name == "daemon/kvtierd.h" and not re.fullmatch(WHOLE, file)
            if whole or other not in rooms[room] | {room}:
                print(f"{file}:{number}: {room} may not include {name}")
                bad = 1
    for sentence in names_and_sizes():
        print(sentence)
        bad = 1
    for room, allowed in rooms.items():
        for other in sorted(allowed - used.get(room, set())):
            print(f"tests/rooms.py: {room} does not include {other} any more: take it out")
            bad = 1
    sys.exit(bad)


main()
