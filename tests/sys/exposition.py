# SPDX-License-Identifier: Apache-2.0
"""exposition.py - reads Prometheus' text format 0.0.4, and finds what is wrong with it.

`promtool check metrics` says the same and more, where there is one; this needs the standard library alone.
"""
import re
from typing import Dict, NamedTuple, Tuple

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)$")
TYPES = {"counter", "gauge", "histogram"}


class Page(NamedTuple):
    types: Dict[str, str]                                       # of each family
    samples: Dict[Tuple[str, Tuple[Tuple[str, str], ...]], float]

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, tuple(sorted(labels.items()))]

    def series(self, name: str) -> Dict[Tuple[Tuple[str, str], ...], float]:
        return {labels: value for (sample, labels), value in self.samples.items() if sample == name}


def unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text)


def _family_of(sample: str, types: Dict[str, str]) -> str:
    base = re.sub(r"_(bucket|sum|count)$", "", sample)
    return base if types.get(base) == "histogram" else sample


def _histogram(name: str, page: Page) -> None:
    buckets = page.series(name + "_bucket")
    for rest in {tuple(pair for pair in labels if pair[0] != "le") for labels in buckets}:
        row = sorted((float(dict(labels)["le"]), value) for labels, value in buckets.items()
                     if tuple(pair for pair in labels if pair[0] != "le") == rest)
        values = [value for _, value in row]
        assert row[-1][0] == float("inf"), f"{name} has no +Inf"
        assert values == sorted(values), f"{name} is not cumulative"
        assert values[-1] == page.samples[name + "_count", rest], f"{name}: +Inf is not its count"
        assert (name + "_sum", rest) in page.samples, f"{name} has no sum"


def parse(text: str) -> Page:
    """AssertionError names the line that is wrong."""
    page, family, helped, closed = Page({}, {}), None, set(), set()
    assert text.endswith("\n"), "the last line has no end"
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, said = line[7:].split(" ", 1)
            assert name not in helped, f"twice: {line}"
            assert re.fullmatch(NAME, name) and said, line
            assert not re.search(r"\\(?![\\n])", said), f"escape: {line}"
            helped.add(name)
            closed.add(family)
            family = None
        elif line.startswith("# TYPE "):
            family, kind = line[7:].split(" ")
            assert family in helped and family not in page.types and kind in TYPES, line
            assert (kind == "counter") == family.endswith("_total"), f"a counter, and no other, is a _total: {line}"
            page.types[family] = kind
        else:
            match = SAMPLE.match(line)
            assert match, f"no sample: {line!r}"
            name, value = match[1], float(match[3])
            assert _family_of(name, page.types) == family and family not in closed, f"not in its family: {line}"
            pairs = [pair.split("=", 1) for pair in re.findall(LABEL, match[2] or "")]
            labels = tuple(sorted((key, unescape(quoted[1:-1])) for key, quoted in pairs))
            assert len({key for key, _ in labels}) == len(labels), f"a label twice: {line}"
            assert (name, labels) not in page.samples, f"twice: {line}"
            assert value >= 0 or page.types[family] == "gauge", f"a counter below 0: {line}"
            page.samples[name, labels] = value
    for name, kind in page.types.items():
        if kind == "histogram":
            _histogram(name, page)
        else:
            assert page.series(name), f"{name} has no sample"
    return page
