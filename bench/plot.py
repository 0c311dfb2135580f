"""Draw SVG charts without a library: bars of ratios with marks at goals, and times over a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

LINE_HEIGHT = 22
LABEL_WIDTH = 360
BAR_WIDTH = 460
MARGIN = 60
PANEL_LEFT, PANEL_WIDTH, PANEL_HEIGHT = 70, 800, 180
TIME_MIN, TIME_MAX = 0.0005, 60.0
TIME_MARKS = ((0.001, "1 ms"), (0.01, "10 ms"), (0.1, "100 ms"), (1.0, "1 s"), (10.0, "10 s"))
LINE_COLOURS = ("#2a7f4f", "#1f5fa8", "#b5651d")
SPAN_COLOURS = {"compaction": "#e8eef7", "snapshot": "#e3f3e6", "defragment": "#fbe6d8"}


def plot(rows: Sequence[tuple[str, float, float]], path: Path) -> None:
    """Draw a bar for each (name, ratio, goal), from top to bottom."""
    greatest = max(max(ratio, goal) for _, ratio, goal in rows)
    scale = BAR_WIDTH / greatest
    height = LINE_HEIGHT * (len(rows) + 1)
    width = LABEL_WIDTH + BAR_WIDTH + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, (name, ratio, goal) in enumerate(rows):
        top = LINE_HEIGHT * number + 6
        colour = "#2a7f4f" if ratio >= goal else "#b5651d"
        mark = LABEL_WIDTH + goal * scale
        parts += [
            f'<text x="{LABEL_WIDTH - 8}" y="{top + 12}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LABEL_WIDTH}" y="{top}" width="{ratio * scale:.1f}" height="16"'
            f' fill="{colour}"/>',
            f'<text x="{LABEL_WIDTH + ratio * scale + 4:.1f}" y="{top + 12}">{ratio:.2f}</text>',
            f'<line x1="{mark:.1f}" x2="{mark:.1f}" y1="{top - 2}" y2="{top + 18}"'
            ' stroke="black"/>',
        ]
    foot = LINE_HEIGHT * len(rows) + 14
    parts.append(
        f'<text x="{LABEL_WIDTH}" y="{foot}">times etcd; the mark is the goal</text></svg>'
    )
    path.write_text("\n".join(parts) + "\n")


@dataclass(frozen=True, slots=True)
class Panel:
    """Times over the seconds of a run, and the activities beside it."""

    title: str
    lines: dict[str, Sequence[float]]
    """By name: a time in seconds for each second of the run; 0 where nothing was measured."""
    spans: Sequence[tuple[str, float, float]]
    """(name, begin, end)."""


def timeline(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels below each other, with the same scales; the scale of times is logarithmic."""
    seconds = max(len(line) for panel in panels for line in panel.lines.values())
    height = (PANEL_HEIGHT + 40) * len(panels) + 20
    width = PANEL_LEFT + PANEL_WIDTH + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, 30 + (PANEL_HEIGHT + 40) * number, seconds)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _panel(panel: Panel, top: int, seconds: int) -> list[str]:
    least, greatest = math.log10(TIME_MIN), math.log10(TIME_MAX)

    def across(second: float) -> float:
        return PANEL_LEFT + second / seconds * PANEL_WIDTH

    def down(time: float) -> float:
        place = (math.log10(min(max(time, TIME_MIN), TIME_MAX)) - least) / (greatest - least)
        return top + PANEL_HEIGHT * (1 - place)

    parts = [
        f'<text x="{PANEL_LEFT}" y="{top - 8}" font-weight="bold">{escape(panel.title)}</text>'
    ]
    for name, begin, end in panel.spans:
        left, right = across(begin), across(end)
        parts.append(
            f'<rect x="{left:.1f}" y="{top}" width="{max(right - left, 1):.1f}"'
            f' height="{PANEL_HEIGHT}" fill="{SPAN_COLOURS.get(name, "#eeeeee")}">'
            f"<title>{escape(name)}</title></rect>"
        )
    for time, label in TIME_MARKS:
        parts += [
            f'<line x1="{PANEL_LEFT}" x2="{PANEL_LEFT + PANEL_WIDTH}" y1="{down(time):.1f}"'
            f' y2="{down(time):.1f}" stroke="#cccccc"/>',
            f'<text x="{PANEL_LEFT - 6}" y="{down(time) + 4:.1f}" text-anchor="end">{label}</text>',
        ]
    for place, (name, line) in enumerate(panel.lines.items()):
        colour = LINE_COLOURS[place % len(LINE_COLOURS)]
        points = " ".join(
            f"{across(second + 0.5):.1f},{down(time):.1f}" for second, time in enumerate(line)
        )
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}"/>',
            f'<text x="{PANEL_LEFT + 420 + 90 * place}" y="{top - 8}" fill="{colour}">'
            f"{escape(name)}</text>",
        ]
    for place, name in enumerate(sorted({name for name, _, _ in panel.spans})):
        parts.append(
            f'<text x="{PANEL_LEFT + 100 * place}" y="{top + PANEL_HEIGHT + 2}" dy="10"'
            f' font-size="10">{escape(name)}: <tspan fill="{SPAN_COLOURS.get(name, "#eeeeee")}">'
            "■</tspan></text>"
        )
    return parts
