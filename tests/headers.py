#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# headers.py BUILD - a header declares the functions and variables that the .c of its name defines, and nothing
# that another file defines: so the place of a name is known from its header. And that .c includes it first, so
# the header stands alone. Definitions are read from the symbols of the objects, and declarations from the
# header's text outside comments and braces. Tables (tbl_*.h) declare nothing. In the daemon a tag (struct, enum,
# union) means one thing: no second file has the same.
import glob
import os
import re
import subprocess
import sys

# The headers that declare names of other files, each with its reason.
SEVERAL = {
    "kernels/kernels.h": "one face of all codecs: select.c picks one of them",
    "tiers/io/io_engine.h": "what io.c and its engines say to each other, and nobody else may",
    "tiers/nvme/log/nvme_log_inner.h": "what the files of the log share, and nobody else may",
    "tiers/nvme/log/nvme_log.h": "one log, whatever file of it a call is in; its head says more",
}


def defined(build, files):
    paths = [f"{build}/{file[:-2]}.o" for file in files if os.path.exists(f"{build}/{file[:-2]}.o")]
    names = subprocess.run(["nm", "-A", "-g", "--defined-only", *paths], check=True, capture_output=True, text=True)
    found = {}
    for line in names.stdout.splitlines():
        path, rest = line.split(":", 1)
        found.setdefault(rest.split()[-1], set()).add(os.path.relpath(path, build)[:-2])
    return found


def declared(header):
    text = re.sub(r"/\*.*?\*/", "", open(header, encoding="utf-8").read(), flags=re.S)
    text = re.sub(r"^[ \t]*#(.*\\\n)*.*$", "", text, flags=re.M)
    text = re.sub(r'extern "C" \{', "", text)
    while re.search(r"\{[^{}]*\}", text):
        text = re.sub(r"\{[^{}]*\}", " ", text)
    statements = [statement for statement in text.split(";") if "static" not in statement.split()]
    functions = {name for statement in statements for name in re.findall(r"\b(\w+)\s*\(", statement)}
    variables = {name for statement in statements if re.match(r"\s*extern\b[^(]*$", statement)
                 for name in re.findall(r"(\w+)\s*(?:\[\w*\]\s*)*(?:,|$)", statement)}
    return functions | variables


def tags_defined_twice(files):
    definers = {}
    for file in files:
        for tag in re.findall(r"^(?:struct|enum|union) (\w+) \{", open(file, encoding="utf-8").read(), flags=re.M):
            definers.setdefault(tag, []).append(file)
    return {tag: found for tag, found in sorted(definers.items()) if len(found) > 1}


def main():
    build = sys.argv[1]
    found = [file for top in ("base", "client/lib", "daemon", "kernels", "tiers")
             for file in glob.glob(top + "/**/*.[ch]", recursive=True)]
    definer = defined(build, sorted(file for file in found if file.endswith(".c")))
    used, bad = set(), 0
    for header in sorted(file for file in found if re.search(r"/(?!tbl_)[^/]+\.h$", file)):
        own = header[:-2]
        for name in sorted(declared(header)):
            others = definer.get(name, set())
            if not others or own in others:
                continue
            # libkvtier and the daemon may have namesakes; a header is of one of the two.
            others = {file for file in others if file.startswith("client/lib/") == own.startswith("client/lib/")}
            if others and header in SEVERAL:
                used.add(header)
            elif others:
                print(f"{header} declares {name}, which {' and '.join(sorted(others))}.c defines")
                bad = 1
    for file in sorted(file for file in found if file.endswith(".c") and file[:-2] + ".h" in found):
        first = re.search(r'^#include [<"](.*)[>"]', open(file, encoding="utf-8").read(), flags=re.M).group(1)
        if first != os.path.basename(file)[:-2] + ".h" and os.path.dirname(file) + "/" + first not in SEVERAL:
            print(f"{file} includes {first} before its own header")
            bad = 1
    for tag, files in tags_defined_twice(file for file in found if not file.startswith("client/")).items():
        print(f"{' and '.join(sorted(files))} define the tag {tag}")
        bad = 1
    for header in sorted(set(SEVERAL) - used):
        print(f"tests/headers.py: {header} serves one file: take it out of SEVERAL")
        bad = 1
    sys.exit(bad)


main()
