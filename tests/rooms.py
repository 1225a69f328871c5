#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# rooms.py - the rooms of the product, from the lowest to the highest, and the rooms that each one
# includes. A row names rows above it only. So there is no circle of rooms: a room can be read and
# built without the rooms below it in this list.
import glob
import re
import sys

ROOMS = """
kernels
client              kernels
client/lib          client kernels
daemon/base
tiers               daemon/base kernels
daemon/stats        daemon/base tiers
daemon/config       client daemon/base tiers
daemon/device       client daemon/base kernels
daemon/cuda         client daemon/base kernels tiers daemon/config daemon/device
daemon/store        client daemon/base kernels tiers daemon/stats daemon/device
daemon/kvtierd.h    daemon/base daemon/stats daemon/config daemon/device daemon/store
daemon/nvme         daemon/base tiers daemon/stats daemon/config daemon/device daemon/store
                    daemon/kvtierd.h
daemon/redis        daemon/base tiers daemon/stats daemon/config daemon/store daemon/kvtierd.h
daemon/shared       client daemon/base kernels tiers daemon/device daemon/store
daemon/op           client daemon/base tiers daemon/stats daemon/config daemon/device daemon/store
                    daemon/nvme daemon/redis daemon/shared
daemon/front        client daemon/base daemon/config daemon/kvtierd.h daemon/shared daemon/op
daemon/admin        client daemon/base tiers daemon/store daemon/kvtierd.h daemon/nvme daemon/op
                    daemon/front
daemon/main.c       daemon/base tiers daemon/config daemon/cuda daemon/store daemon/kvtierd.h
                    daemon/nvme daemon/redis daemon/op daemon/front daemon/admin
client/ctl          client daemon/base tiers daemon/stats daemon/config daemon/admin
"""
# The files that may see the whole daemon in one struct: they look at all of it, or bring a tier up.
WHOLE = r"daemon/(main\.c|front/.*|admin/.*|nvme/nvme_up\.c|redis/redis_up\.c)"


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


def main():
    rooms, used, bad = table(), {}, 0
    files = [file for top in ("client", "daemon", "kernels", "tiers")
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
    for room, allowed in rooms.items():
        for other in sorted(allowed - used.get(room, set())):
            print(f"tests/rooms.py: {room} does not include {other} any more: take it out")
            bad = 1
    sys.exit(bad)


main()
