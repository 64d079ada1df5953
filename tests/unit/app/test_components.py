"""Components without a page: which layers are drawn, clicks on charts, rows in view, and what Expert hides."""

import base64
import hashlib
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.app.common import expert, figure
from senseapp.app.common.expert import notes_shown, reading_shown
from senseapp.app.common.figure import rows_height
from senseapp.app.common.notices import INLINE_SCRIPTS
from senseapp.app.results.layer_side import fitting_rows, most_fragile
from senseapp.app.server.guards import content_security_policy
from senseapp.views.frames.results import measurement_frame
from tests.pages.records import FRAGILE, NAMES, NOT_PRUNABLE, result

FRAME = measurement_frame(result(), "top1")


def names(**asked: object) -> list[str]:
    return list(dict.fromkeys(fitting_rows(FRAME, **asked)["layer"]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, list(NAMES)),
        ({"name": "conv1"}, ["conv1", "layer1.0.conv1", FRAGILE]),
        ({"name": " CONV2 "}, ["layer1.0.conv2"]),
        ({"name": "layer?.*.conv1"}, ["layer1.0.conv1", FRAGILE]),
        ({"blocks": ("layer2",)}, [FRAGILE, NOT_PRUNABLE]),
        ({"blocks": ("layer1.0", "layer2.0")}, list(NAMES[1:5])),
        ({"types": ("Linear",)}, ["fc"]),
        ({"types": ("Conv2d",), "blocks": ("layer1",), "name": "2"}, ["layer1.0.conv2"]),
        ({"name": "nothing"}, []),
        ({"name": "[conv1"}, []),
    ],
)
def test_name_block_and_type_narrow_the_choice(asked: dict[str, object], found: list[str]) -> None:
    assert names(**asked) == found


def test_a_block_is_not_its_namesake_with_more_digits() -> None:
    frame = measurement_frame(result(names=("layer1.conv", "layer10.conv")), "top1")
    assert set(fitting_rows(frame, blocks=("layer1",))["layer"]) == {"layer1.conv"}


def test_a_coupled_group_passes_with_any_of_its_members() -> None:
    frame = FRAME.assign(members=[f"{layer}, twin" if layer == "fc" else layer for layer in FRAME["layer"]])
    assert set(fitting_rows(frame, name="twin")["layer"]) == {"fc"}


def test_the_most_fragile_come_in_network_order() -> None:
    assert most_fragile(FRAME, 0.5, 2) == [FRAGILE, "fc"]
    assert most_fragile(FRAME, 0.5, 99) == list(NAMES)


def test_a_click_on_a_chart_of_before_the_pick_was_dropped_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    state, taken = SimpleNamespace(pick_round=3), list[str]()
    monkeypatch.setattr(figure, "session", lambda: state)
    clicked = figure._unless_forgotten(lambda: taken.append("first chart"))
    clicked()
    state.pick_round += 1  # "Close" in the layer's panel
    clicked()  # sent once more by the browser
    figure._unless_forgotten(lambda: taken.append("chart drawn anew"))()
    assert taken == ["first chart", "chart drawn anew"]


READ = (
    "Images: 32 × 32 pixels, values from 0 to 1, less 0.304, divided by 0.323, crop (it comes with the network).",
    "Images: 8 × 8 pixels, values from 0 to 1, less 0.5, 0.4, 1e-05, divided by 0.2, 0.2, 0.2, BGR, stretch.",
    "Images: 8 × 8 pixels, less a mean of 0.5, 0.4, 1e-05, over a std of 0.2, 0.2, 0.2, BGR, stretch.",
    "Task: Classification.",
)


@pytest.mark.parametrize("is_expert", [False, True])
def test_everyday_words_leave_out_what_only_experts_read(monkeypatch: pytest.MonkeyPatch, is_expert: bool) -> None:
    monkeypatch.setattr(expert, "expert", lambda: is_expert)
    everyday = ["Checked on 269 images.", "Measurements of run “Monday” were reused."]
    notes = (
        "Delivered with repair: it is better.",
        "torch.onnx.export keeps norms.",
        "“scores” is a Softmax; the network returns “logits”, the numbers before it.",
        "2 nodes inserted (2 QuantizeLinear).",
        *everyday,
    )
    if is_expert:
        assert (reading_shown(READ), notes_shown(notes)) == (list(READ), list(notes))
    else:
        assert reading_shown(READ) == [
            "Images: 32 × 32 pixels, crop (it comes with the network).",
            *["Images: 8 × 8 pixels, BGR, stretch."] * 2,
            "Task: Classification.",
        ]
        assert notes_shown(notes) == everyday
        of_zeros = "Zeros and removed channels go by the size of weights."
        assert (notes_shown([of_zeros]), notes_shown([of_zeros], of_bits=True)) == ([of_zeros], [])


def test_a_frame_with_a_scroll_bar_says_how_many_rows_it_shows() -> None:
    assert rows_height(12, tallest=250) is None
    frame = rows_height(23, tallest=250)
    assert frame is not None
    assert frame.height <= 250
    assert frame.note == "12 of 23 rows are in view: scroll for the others."


def test_the_policy_lets_the_script_run_that_the_page_holds() -> None:
    def page() -> None:
        from senseapp.app.common.notices import reveal

        reveal("bars_frame", 1 / 3)

    (element,) = AppTest.from_function(page).run().get("html")
    body = element.proto.body
    assert 'data-frame="bars_frame" data-place="0.3333"' in body
    script = body.split("<script>")[1].split("</script>")[0]
    assert script == INLINE_SCRIPTS["reveal"]
    found = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{found}'" in content_security_policy()
