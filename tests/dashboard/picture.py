# SPDX-License-Identifier: Apache-2.0
"""picture.py - draws systemd/grafana.json as Grafana would about show it, from answers of Prometheus."""
import re

import matplotlib
import numpy
from PIL import Image
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import FuncFormatter  # noqa: E402

BACK, FACE, TEXT = "#111217", "#181b1f", "#c7d0d9"
COLOURS = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#b877d9", "#f2495c", "#8ab8ff", "#ffa6b0", "#96d98d", "#fade2a"]
SCALES = {"bytes": 1024, "Bps": 1024, "none": 1000, "ops": 1000}


def shown(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        for factor, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {name}"
        return "0"
    scale, names = SCALES[unit], ["", "K", "M", "G", "T"]
    while abs(value) >= scale and len(names) > 1:
        value, names = value / scale, names[1:]
    ends = {"bytes": "B", "Bps": "B/s", "ops": "/s"}
    return f"{value:.3g} {names[0]}{ends.get(unit, '')}".strip()


def legend(target: dict, labels: dict) -> str:
    """A path is cut to its last name: that of a directory of this test says nothing."""
    return re.sub(r"\{\{(\w+)\}\}", lambda m: re.sub(r"\S*/", "", labels.get(m[1], "")), target["legendFormat"])


def rows_of(panel: dict, series: dict) -> list:
    found = []
    for target in panel["targets"]:
        for answer in series[panel["id"], target["refId"]]:
            points = [(at, float(value)) for at, value in answer["values"] if value != "NaN"]
            if points:
                found.append((legend(target, answer["metric"]), points))
    return found


def draw_stat(axes, unit: str, rows: list) -> None:
    axes.axis("off")
    name, points = rows[0] if rows else ("no data", [(0, 0)])
    text = name if unit == "none" and " " in name and points[-1][1] == 1 else shown(points[-1][1], unit)
    axes.text(0.5, 0.4, text, color=COLOURS[0], ha="center", va="center", transform=axes.transAxes,
              fontsize=17 if len(text) < 10 else 9)


def draw_states(axes, rows: list) -> None:
    rows = [row for row in rows if any(value for _, value in row[1])]
    for y, (name, points) in enumerate(rows):
        at = [t for t, value in points if value]
        axes.hlines([y] * len(at), at, [t + 1 for t in at], color=COLOURS[y % len(COLOURS)], linewidth=5)
        axes.text(0.01, y + 0.25, name, color=TEXT, fontsize=5.5, transform=axes.get_yaxis_transform())
    axes.set_ylim(-0.6, max(len(rows), 1))
    axes.set_yticks([])
    if not rows:
        axes.text(0.5, 0.5, "none holds", color=TEXT, fontsize=7, ha="center", transform=axes.transAxes)


def draw_lines(axes, panel: dict, unit: str, rows: list) -> None:
    rows = sorted(rows, key=lambda row: -max(value for _, value in row[1]))[:10]
    stacked = "custom" in panel["fieldConfig"]["defaults"]
    below = {}
    for i, (name, points) in enumerate(rows):
        at = [t for t, _ in points]
        base = [below.get(t, 0.0) if stacked else 0.0 for t in at]
        value = [low + v for low, (_, v) in zip(base, points)]
        if stacked:
            axes.fill_between(at, base, value, color=COLOURS[i % len(COLOURS)], alpha=0.4, linewidth=0)
            below.update(zip(at, value))
        axes.plot(at, value, color=COLOURS[i % len(COLOURS)], linewidth=0.9, label=name)
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])     # the legend is above
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit)))
    axes.grid(color="#2c3235", linewidth=0.4)
    if rows:
        axes.legend(fontsize=5, loc="upper left", ncol=2, frameon=False, labelcolor=TEXT, borderaxespad=0.1,
                    handlelength=1)


def draw(board: dict, series: dict, file) -> None:
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = pyplot.figure(figsize=(12, height * 0.21), facecolor=BACK)
    for panel in board["panels"]:
        at = panel["gridPos"]
        x, y, w, h = at["x"] / 24, 1 - (at["y"] + at["h"]) / height, at["w"] / 24, at["h"] / height
        if panel["type"] == "row":
            figure.text(x + 0.006, y + h * 0.3, panel["title"], color="white", fontsize=8, weight="bold")
            continue
        axes = figure.add_axes([x + 0.035, y + 0.9 / height, w - 0.042, h - 2.3 / height], facecolor=FACE)
        figure.text(x + 0.008, y + h - 1.05 / height, panel["title"], color=TEXT, fontsize=6.5)
        axes.tick_params(colors=TEXT, labelsize=5, length=0)
        axes.set_xticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
        rows, unit = rows_of(panel, series), panel["fieldConfig"]["defaults"]["unit"]
        if panel["type"] == "stat":
            draw_stat(axes, unit, rows)
        elif panel["type"] == "state-timeline":
            draw_states(axes, rows)
        else:
            draw_lines(axes, panel, unit, rows)
    figure.canvas.draw()
    Image.fromarray(numpy.asarray(figure.canvas.buffer_rgba())).convert("RGB").quantize(32).save(file, optimize=True)
