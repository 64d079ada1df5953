"""Settings of pages in their address: what is written, what is read again, and what is not."""

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.app.common.address import SWITCH, WORDS, Form, named, number, one_of, some_of, span, whole
from senseapp.app.common.state import LayerEdits
from senseapp.app.schedule.settings import edits_form
from senseapp.core.errors import NotFound
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.pages.conftest import open_page


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (one_of(["Heat map", "Table"]), "Heat map", "heat-map"),
        (named({"0.5": 0.5}), 0.5, "0.5"),
        (number(0, 5), 1.55, "1.55"),
        (whole(1, 99), 62, "62"),
        (span(whole(0, 99)), (3, 90), "3~90"),
        (some_of(["a.b", "c"]), ["c", "a.b"], "c~a.b"),
        (SWITCH, False, "no"),
        (WORDS, "layer1.*", "layer1.*"),
    ],
)
def test_a_value_is_read_from_its_own_text(form: Form[Any], value: Any, text: str) -> None:
    assert form.write(value) == text
    assert form.read(text) == value


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (one_of(["Table"]), "Table"),
        (number(0, 5), "5.1"),
        (number(), "nan"),
        (number(), "1e999"),
        (whole(1, 99), "62.5"),
        (whole(1, 99), "0"),
        (span(whole(0, 99)), "3"),
        (span(whole(0, 99)), "3~4~5"),
        (some_of(["a", "b"]), "a~a"),
        (some_of(["a", "b"]), ""),
        (SWITCH, "maybe"),
        (WORDS, "a" * 201),
        (WORDS, "a\x00b"),
    ],
)
def test_any_other_text_is_refused(form: Form[Any], text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        form.read(text)


def _target(app: AppTest, run_id: str) -> Any:
    return app.slider(key=f"schedule.target.{run_id}")


def test_an_address_that_the_browser_has_not_updated_yet_takes_nothing_back(app: AppTest, finished_run: str) -> None:
    open_page(app, "pages/targets.py", run=finished_run)
    _target(app, finished_run).set_value(31).run()
    del app.query_params["target"]  # as it was when somebody moved the next slider, before the answer had come
    app.slider(key=f"schedule.limits.{finished_run}").set_value((5, 80)).run()
    assert _target(app, finished_run).value == 31
    assert app.query_params["target"] == "31"
    assert app.query_params["limits"] == "5~80"


def test_locks_are_in_the_address_and_only_of_their_network() -> None:
    form = edits_form(["conv1", "layer1.0.conv1", "fc"], (0.0, 0.99))
    edits = LayerEdits(fixed={"fc": 0.0, "conv1": 0.123}, bounds={"layer1.0.conv1": (0.1, None)})
    text = form.write(edits)
    assert form.read(text) == edits
    assert form.read(form.write(LayerEdits())) == LayerEdits()
    check = text.partition("~")[0]
    for form_of, bad in (
        (edits_form(["conv1", "layer1.0.conv2", "fc"], (0.0, 0.99)), text),
        (form, f"{check}~3:0.5::"),
        (form, f"{check}~0:1.5::"),
        (form, f"{check}~0:nan::"),
        (form, f"{check}~x:0.5::"),
        (form, f"{check}~"),
        (form, ""),
    ):
        with pytest.raises(ValueError, match=r".*"):
            form_of.read(bad)


def test_the_switch_expert_is_of_one_person(service: Service, backend: Backend) -> None:
    bob = Service(backend, "bob")
    bob.set_expert(expert=True)
    assert (bob.is_expert(), service.is_expert()) == (True, False)
    bob.set_expert(expert=False)
    assert not bob.is_expert()
    with pytest.raises(NotFound):
        Service(backend, "").set_expert(expert=True)
