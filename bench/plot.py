"""A bar chart of ratios as an SVG file, written by hand: one bar a line, a mark at each goal."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

LINE_HEIGHT = 22
LABEL_WIDTH = 360
BAR_WIDTH = 460
MARGIN = 60


def plot(rows: Sequence[tuple[str, float, float]], path: Path) -> None:
    """Draw (name, ratio, goal) from top to bottom."""
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
