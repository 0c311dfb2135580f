"""Pieces of an SVG picture over a time axis, as text that is well-formed XML."""

from html import escape

SECOND_WIDTH = 200.0
SECOND_WIDTH_MAX = 1000.0
WIDTH_MIN = 1500.0
WIDTH_MAX = 12_000.0
_LETTER_WIDTH = 5.6
_TAG_HEIGHT = 13.0
_ROW_HEIGHT = 14.0
_STROKE_HEIGHT = 6.0
_PADDING = 4.0
_STRIPES = (
    '<defs><pattern id="stripes" width="8" height="8" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="3" height="8" fill="#f8c04e"/></pattern></defs>'
)


def safe(text: str) -> str:
    """Return text as it may be in XML: control characters as escapes, and markup quoted."""
    shown = "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode()
        for each in text
    )
    return escape(shown)


def number(value: float) -> str:
    """Return a coordinate, with as many digits as an eye can see."""
    return f"{value:.1f}".removesuffix(".0")


class Canvas:
    """A drawing with time from left to right."""

    __slots__ = ("pieces", "scale", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        # A short run fills the screen, and a long one can be scrolled through.
        width = min(max(SECOND_WIDTH * seconds, WIDTH_MIN), WIDTH_MAX)
        self.scale = min(width / max(seconds, 0.001), SECOND_WIDTH_MAX)
        self.pieces: list[str] = []

    def x(self, moment: float) -> float:
        """Return the x coordinate of a moment."""
        return moment * self.scale

    @property
    def width(self) -> float:
        """The width of the drawing, with room for words at its end."""
        return self.x(self.seconds) + 120.0

    def add(self, piece: str, title: str = "") -> None:
        """Add an element, given without its end; hovering over it shows the title."""
        if title:
            name = piece[1:].split(maxsplit=1)[0]
            self.pieces.append(f"{piece}><title>{safe(title)}</title></{name}>")
        else:
            self.pieces.append(f"{piece}/>")

    def span(
        self,
        begin: float,
        end: float,
        top: float,
        height: float,
        style: str,
        title: str = "",
        width_min: float = 1.0,
        name: str = "",
    ) -> None:
        """Add a bar from one moment to another; `name` lets links lead to it."""
        left = self.x(begin)
        width = max(self.x(end) - left, width_min)
        identity = f' id="{safe(name)}"' if name else ""
        self.add(
            f'<rect{identity} class="{style}" x="{number(left)}" y="{number(top)}" '
            f'width="{number(width)}" height="{number(height)}"',
            title,
        )

    def upright(
        self, moment: float, top: float, bottom: float, style: str, title: str = ""
    ) -> None:
        """Add a vertical line at a moment."""
        x = number(self.x(moment))
        self.add(
            f'<line class="{style}" x1="{x}" x2="{x}" y1="{number(top)}" y2="{number(bottom)}"',
            title,
        )

    def text(self, left: float, bottom: float, text: str, style: str, title: str = "") -> None:
        """Add words at an x coordinate."""
        within = f"<title>{safe(title)}</title>" if title else ""
        self.pieces.append(
            f'<text class="{style}" x="{number(left)}" y="{number(bottom)}">'
            f"{within}{safe(text)}</text>"
        )

    def steps(self, points: list[tuple[float, float]], end: float, style: str, title: str) -> None:
        """Add a line that keeps its height from each point to the next, up to a moment."""
        path = ""
        for moment, height in points:
            x, y = number(self.x(moment)), number(height)
            path += f"H{x}V{y}" if path else f"M{x} {y}"
        self.add(f'<path class="{style}" d="{path}H{number(self.x(end))}"', title)

    def svg(self, height: float) -> str:
        """Return the whole picture."""
        size = f'width="{number(self.width)}" height="{number(height)}"'
        inner = "\n".join(self.pieces)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="lanes" {size}>\n{_STRIPES}\n{inner}\n'
            f"</svg>"
        )


class Tags:
    """Words at moments, in as many rows of a lane as they need.

    If all rows are taken, a stroke stands for the words; hovering over it shows the title.
    """

    __slots__ = ("_canvas", "_tags")

    def __init__(self, canvas: Canvas) -> None:
        self._canvas = canvas
        self._tags: list[tuple[float, str, str, str]] = []

    def add(self, moment: float, words: str, style: str, title: str) -> None:
        """Add words, and the title that hovering over them shows."""
        self._tags.append((moment, words, style, title))

    def draw(self, top: float, rows_max: int) -> float:
        """Draw all tags; return the height they take."""
        canvas = self._canvas
        # The x coordinate up to which each row is taken.
        ends: list[float] = []
        strokes = []
        for tag in sorted(self._tags, key=lambda tag: tag[0]):
            moment, words, style, title = tag
            left = canvas.x(moment)
            width = len(words) * _LETTER_WIDTH + 2 * _PADDING
            row = next((at for at, end in enumerate(ends) if end <= left), len(ends))
            if row == rows_max:
                strokes.append(tag)
                continue
            ends[row : row + 1] = [left + width + 1]
            bottom = top + (row + 1) * _ROW_HEIGHT
            canvas.span(moment, moment, bottom - _TAG_HEIGHT, _TAG_HEIGHT, style, title, width)
            canvas.text(left + _PADDING, bottom - 3, words, "tagged")
        height = max(len(ends), 1) * _ROW_HEIGHT + 2.0
        for moment, _, style, title in strokes:
            canvas.span(moment, moment, top + height, _STROKE_HEIGHT, style, title, 2.0)
        return height + _STROKE_HEIGHT if strokes else height
