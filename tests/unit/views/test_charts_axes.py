"""Saved pictures of charts: what is written on them, and that nothing of the process changes them."""

import io
import math

import altair as alt
import pandas as pd
import pytest
from PIL import Image

from senseapp.metrics import METRICS
from senseapp.views.charts.axes import picture_png, picture_spec, picture_svg
from senseapp.views.charts.histograms import histogram_chart
from senseapp.views.charts.layers import marked, network_bars, sensitivity_bars
from senseapp.views.charts.levels import sensitivity_heatmap
from senseapp.views.frames.network import network_frame
from senseapp.views.frames.results import at_level, measurement_frame
from tests.pages.records import NAMES, a_histogram, profile, result

TOP1 = METRICS["top1"]
FRAME = measurement_frame(result(), "top1")
ROWS = marked(at_level(FRAME, 0.5))
CHARTS = {
    "bars": sensitivity_bars(ROWS, TOP1, x_domain=(-1.0, 9.0)),
    "heat": sensitivity_heatmap(FRAME, TOP1, order=NAMES, level_texts=["25 %", "50 %", "75 %"]),
    "network": network_bars(network_frame(profile(), ROWS, TOP1, opened=frozenset()), TOP1, share_title="Share"),
    "histogram": histogram_chart(a_histogram()),
}


@pytest.mark.parametrize("name", CHARTS)
def test_a_drawing_carries_its_question_and_where_its_numbers_come_from(name: str) -> None:
    drawn = picture_svg(CHARTS[name], title="What is lost?", lines=["demo · 512 images", "95 % intervals"])
    assert drawn.startswith("<svg")
    for text in ("What is lost?", "demo · 512 images", "95 % intervals"):
        assert text in drawn
    assert 'fill="white"' in drawn
    assert "http" not in drawn.replace("http://www.w3.org", "")


def test_an_image_has_two_pixels_per_point() -> None:
    width = float(picture_svg(CHARTS["bars"], title="Bars").split('width="')[1].split('"')[0])
    with Image.open(io.BytesIO(picture_png(CHARTS["bars"], title="Bars"))) as image:
        assert image.width == pytest.approx(2 * width, abs=2)
        assert image.getpixel((0, 0))[:3] == (255, 255, 255)


def test_data_is_inside_whatever_the_process_does_with_frames() -> None:
    alt.data_transformers.register("elsewhere", lambda data, **_: {"name": "gone"})
    with alt.data_transformers.enable("elsewhere"):
        spec = picture_spec(CHARTS["heat"], title="Heat map")
    cells, rings, outline = spec["datasets"].values()
    assert (len(cells), len(outline)) == (len(FRAME), 0)
    assert len(rings) == FRAME["unclear"].sum()
    left = [part.data for part in (CHARTS["heat"], *CHARTS["heat"].layer) if part.data is not alt.Undefined]
    assert len(left) == 3
    assert all(isinstance(data, pd.DataFrame) for data in left)  # the chart on the page is left as it is


def test_what_is_unknown_becomes_null() -> None:
    rows = ROWS.assign(low=math.nan)
    spec = picture_spec(sensitivity_bars(rows, TOP1, x_domain=(-1.0, 9.0)), title="Bars")
    assert any(row.get("low", 0) is None for rows in spec["datasets"].values() for row in rows)
