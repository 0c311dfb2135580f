"""A plot of a run is a drawing, whatever was measured."""

import tempfile
from math import inf
from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.plot import PANEL_LEFT, PANEL_WIDTH, Panel, timeline

SVG = "{http://www.w3.org/2000/svg}"
SECONDS = 20
TIMES = st.lists(st.floats(0, 1e6) | st.just(inf), min_size=1, max_size=SECONDS)
SPANS = st.lists(
    st.tuples(st.sampled_from(["compaction", "snapshot"]), st.floats(0, 20), st.floats(0, 20)),
    max_size=3,
)
PANELS = st.builds(Panel, st.text("ab<&>é"), st.dictionaries(st.text("x&<"), TIMES), SPANS)


@settings(max_examples=20, deadline=None)
@given(st.lists(PANELS.filter(lambda panel: panel.lines), min_size=1, max_size=3))
def test_every_line_is_drawn_within_its_panel(panels: list[Panel]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "plot.svg")
        timeline(panels, path)
        root = ElementTree.parse(path).getroot()
    height = float(root.attrib["height"])
    drawn = root.findall(f"{SVG}polyline")
    assert len(drawn) == sum(len(panel.lines) for panel in panels)
    lines = [line for panel in panels for line in panel.lines.values()]
    for polyline, line in zip(drawn, lines, strict=True):
        points = [point.split(",") for point in polyline.attrib["points"].split()]
        assert len(points) == len(line)
        for across, down in points:
            assert PANEL_LEFT <= float(across) <= PANEL_LEFT + PANEL_WIDTH
            assert 0 <= float(down) <= height
