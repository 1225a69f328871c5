#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# circles.py BUILD - files call each other in one direction: a file and the files that it calls, and that these
# call, can be read and tested without it. Who calls whom is read from the relocations of the objects, so no
# static function, namesake or comment is in the way. A call through a pointer is none: done(), a table of
# operations, a timer are the ways in which a lower file reaches a higher one.
import os
import re
import subprocess
import sys

CALL = re.compile(r"R_(?:X86_64_PLT32|AARCH64_(?:CALL|JUMP)26)\s+(\w+)")


def objects(build):
    found = [os.path.relpath(os.path.join(folder, name), build)[:-2]
             for room in ("base", "client", "daemon", "kernels", "tiers")
             for folder, _, names in os.walk(os.path.join(build, room))
             for name in names if name.endswith(".o")]
    files = sorted(file for file in found if os.path.exists(file + ".c"))
    stale = [file for file in files if os.path.getmtime(f"{build}/{file}.o") < os.path.getmtime(file + ".c")]
    if stale or not files:
        sys.exit(f"circles.py: {build} is not what lies here, make first: {' '.join(stale)}")
    return files


def tool(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()


# libkvtier and the rest are never linked together: both may have a function of the same name.
def program(file):
    return file.startswith("client/lib/")


def calls_between(build, files):
    paths = [f"{build}/{file}.o" for file in files]
    file_of = dict(zip(paths, files))
    definer, calls, caller = {}, {file: {} for file in files}, None
    for line in tool("nm", "-A", "-g", "--defined-only", *paths):
        path, rest = line.split(":", 1)
        definer[program(file_of[path]), rest.split()[-1]] = file_of[path]
    for line in tool("objdump", "-r", *paths):
        if ":     file format " in line:
            caller = file_of[line.split(":")[0]]
        call = CALL.search(line)
        callee = call and definer.get((program(caller), call[1]))
        if callee and callee != caller:
            calls[caller].setdefault(callee, set()).add(call[1])
    return calls


def reached(calls, file):
    seen, todo = set(), [file]
    while todo:
        new = set(calls[todo.pop()]) - seen
        seen |= new
        todo += new
    return seen


def main():
    build = sys.argv[1]
    files = objects(build)
    calls = calls_between(build, files)
    reach = {file: reached(calls, file) for file in files}
    circles = {frozenset(b for b in reach[a] if a in reach[b]) for a in files if a in reach[a]}
    for circle in circles:
        print("files that call each other in a circle:", *sorted(circle))
        for a in sorted(circle):
            for b in sorted(circle & set(calls[a])):
                print(f"\t{a}.c calls {b}.c:", *sorted(calls[a][b]))
    sys.exit(bool(circles))


main()
