#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# pages.py [PAGE...] - what a page cites is there: the file that a link leads to, and in text between ` ` files and
# folders by their paths or ends of paths, and names of functions, tests and the like. Examples of what a reader may
# write are none of these: greet, subject, NAME, KIND.
import os
import re
import subprocess
import sys

EXAMPLE = (r"greet|_subject|NAME|KIND|^build|^\./|^results\.txt|kvtierd\.conf|redis\.conf|_\*|__wrap_a|"
           r"a_sentence|^\.\.\.|^vllm:")
FILE = r"[\w./-]*\w+\.(?:[ch]|cuh?|py|sh|md|kvt|inc)"
NAME = r"\b(?:[A-Za-z]\w*_\w+)\b|\b[a-z]\w+(?=\(\))"


def main():
    files = [f for f in subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True)
             .stdout.split("\n") if os.path.isfile(f)]
    names = {os.path.splitext(os.path.basename(f))[0] for f in files}
    for file in files:
        if re.search(r"(?:\.(?:[ch]|cuh?|py|sh|kvt|inc|[1358])|Makefile)$", file):
            with open(file, encoding="utf-8") as opened:
                names.update(re.findall(r"\w+", opened.read()))
    bad = 0
    for page in sys.argv[1:] or [f for f in files if f.endswith(".md")]:
        here, code = os.path.dirname(page), False
        for number, line in enumerate(open(page, encoding="utf-8"), 1):
            code ^= line.lstrip().startswith("```")
            lost = [to for to in re.findall(r"\]\(([^)#:]+)[^):]*\)", line)
                    if not os.path.exists(os.path.normpath(os.path.join(here, to)))]
            for cited in re.findall("`([^`]+)`", "" if code else line):
                if re.search(EXAMPLE, cited):
                    continue
                if re.fullmatch(FILE, cited):
                    path = os.path.normpath(os.path.join(here, cited))
                    lost += [cited] * (path not in files and not any(("/" + f).endswith("/" + cited) for f in files))
                else:
                    lost += [name for name in re.findall(NAME, cited)
                             if name not in names and not any(known.endswith("_" + name) for known in names)]
            for cited in lost:
                print(f"{page}:{number}: {cited} is not there")
                bad = 1
    sys.exit(bad)


main()
