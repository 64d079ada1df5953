"""Charts whose clicks pick a layer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from senseapp.app.common import figure


def test_a_click_on_a_chart_of_before_the_pick_was_dropped_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    state, taken = SimpleNamespace(pick_round=3), list[str]()
    monkeypatch.setattr(figure, "session", lambda: state)
    clicked = figure._unless_forgotten(lambda: taken.append("first chart"))
    clicked()
    state.pick_round += 1  # "Close" in the layer's panel
    clicked()  # sent once more by the browser
    figure._unless_forgotten(lambda: taken.append("chart drawn anew"))()
    assert taken == ["first chart", "chart drawn anew"]
