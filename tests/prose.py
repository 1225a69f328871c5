#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# prose.py [FILE...] - comments, help texts and tables are written as one would say them to a colleague. No
# sentence opens with Of, Likewise or As; a block is evicted or freed, and does not "go"; an argument "may be NULL"; and
# nobody, nothing, none and nor, which make a reader turn the sentence round, are rare. A thing has the field's
# word, in text and in code, and a word means one thing. With files: of these alone.
import re
import subprocess
import sys

NEGATIVES, LIMIT = r"\b(?:nobody|nothing|none|nor)\b", 30      # in 10,000 words
WORDS = {"herd": "victim", "spot": "row", "tally": "counts", "grave": "orphan", "recheck": "verify", "parked": "kept"}
# Files -> a word with another meaning than its own (daemon/README.md, Words), and the word for that meaning.
MEANINGS = [
    (r"^kernels/(?!.*(?:math|fp8))|^daemon/cuda/lane/", r"(?<![a-z])units?(?![a-z]|_(?:cuda|codec)_)", "tile"),
    (r"\.[ch]$", r"(?<!WAIT)_PARTS?\b|\bPARTS?\b", "ALLOCS: allocations"),
    (r"", r"\b(?:within|beyond|divide|more than) (?:its|their) parts?\b|\bguaranteed part\b", "guarantee"),
    (r"", r"\bturns? of (?:the|its) (?:loop|thread)\b|[a-z]_turns?\b|\bturn_(?!number)[a-z]|_TURNS?\b",
     "iteration, or schedule"),
    (r"\.(?:[ch]|cuh?)$", r"(?<!socket)_shares?\b|\bstruct share", "share is a percentage: guarantee, limit, usage"),
]
RULES = [
    (r"(?:^|[.!?:]\s+|\*\s+|-\s+)(?:Of|Likewise|As)\b(?! (?:if|long as|soon as|many as|well as)\b)",
     "a sentence opens with Of, Likewise or As: begin with its subject"),
    (r"\blets? go\b|\bletting go\b|\bgoes(?! (?:to|through|into|on|over|back|from|with|by|down|up|in|along|past)\b)",
     "goes, let go: say that it is evicted, freed, given back, removed"),
    (r"\bNULL is (?:fine|allowed|ok|okay|good)\b|\bor NULL is\b|\bNULL: (?:fine|allowed)\b", "say: may be NULL"),
]


def comments(file):
    text = open(file, encoding="utf-8").read()
    if file.endswith(".py"):
        found = [(m.start(), m[1]) for m in re.finditer(r"((?:^[ \t]*#(?!!)[^\n]*\n)+)", text, flags=re.M)]
        found += [(m.start(), m[1]) for m in re.finditer(r'"""(.*?)"""', text, flags=re.S)]
        found = [(start, re.sub(r"\bNone\b", "null", body)) for start, body in found]      # a value, no word
        clean = r"^[ \t]*# ?"
    else:
        found = [(m.start(), m[1]) for m in re.finditer(r"/\*(.*?)\*/", text, flags=re.S)]
        clean = r"^[ \t]*\*(?: |$)"
        if "/tbl_" in file:
            string = r'"(?:[^"\\]|\\.)*"'
            found += [(m.start(), re.sub(r'"\s*"', "", m[0])) for m in re.finditer(rf"{string}(?:\s*{string})*", text)]
    for start, body in found:
        body = "\n".join(re.sub(clean, "", line).strip() for line in body.strip('"').split("\n"))
        body = body.replace("\\n", "\n")
        if "SPDX" not in body and not body.startswith("make:"):
            yield text.count("\n", 0, start) + 1, body


def main():
    files = sys.argv[1:] or subprocess.run(["git", "ls-files", "base", "client", "daemon", "kernels", "tiers"],
                                           check=True, capture_output=True, text=True).stdout.split()
    words = negatives = bad = 0
    for file in files:
        if not re.search(r"\.(c|h|cu|cuh|py)$", file):
            continue
        for number, text in enumerate(open(file, encoding="utf-8"), 1):
            for word in re.findall("(?<![a-z])(" + "|".join(WORDS) + ")s?(?![a-z])", text, flags=re.I):
                print(f"{file}:{number}: {word}: say {WORDS[word.lower()]}")
                bad = 1
            for where, word, meaning in MEANINGS:
                found = re.search(where, file) and re.search(word, text)
                if found:
                    print(f"{file}:{number}: {found[0]}: say {meaning}")
                    bad = 1
        for line, body in comments(file):
            words += len(re.findall(r"[A-Za-z']+", body))
            negatives += len(re.findall(NEGATIVES, body, flags=re.I))
            for rule, advice in RULES:
                for found in re.finditer(rule, body, flags=re.M):
                    at = line + body.count("\n", 0, found.start())
                    print(f"{file}:{at}: {body[found.start():found.start() + 50]!r}: {advice}")
                    bad = 1
    rate = negatives * 10000 // max(words, 1)
    if rate >= LIMIT or sys.argv[1:]:
        print(f"nobody, nothing, none, nor: {rate} in 10,000 of {words} words, below {LIMIT} is wanted")
        bad |= rate >= LIMIT
    sys.exit(bad)


main()
