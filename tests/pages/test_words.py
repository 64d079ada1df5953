"""The words on the way from Analyze to the file: few that a reader of newspapers has to look up, each explained."""

import re
from collections.abc import Callable, Iterator

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Block, Element, Node, Selectbox

from senseapp.records.spec import RunSpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.cases import first_of
from tests.pages.conftest import finish, open_page, wait_for_card
from tests.pages.test_recommendation import RESULTS, recommend

EXPERT = re.compile(
    r"\b(nats?|KL|MACs|Bonferroni|Spearman|SQNR|mAP|IoU|QDQ|BatchNorms?|logits|divergence|quantize_static)\b|equalis"
)
"""Words that are nowhere on the way to the file, not even folded away, unless *Expert* is on."""
JARGON = re.compile(r"\b(int8|held-out|repaired|calibration|packed|proven|opset)\b", re.IGNORECASE)
"""Words of people who make files, likewise."""


def seen(node: Node, *, until: str = "") -> Iterator[str]:
    """Yield the texts in sight, in the order of the page: nothing in folded blocks, closed popovers and expanders."""
    if isinstance(node, Block):
        name = getattr(node.proto, "id", "") if node.proto is not None else ""
        if node.type in ("expander", "popover") or "_folded" in str(name):
            return
        for child in node.children.values():
            yield from seen(child)
    elif isinstance(node, Element):
        hidden = getattr(getattr(node.proto, "label_visibility", None), "value", 0) != 0
        chosen = node.options[node.index or 0] if isinstance(node, Selectbox) else getattr(node, "value", "")
        texts = ("" if hidden else getattr(node, "label", ""), chosen)
        yield from (text for text in texts if isinstance(text, str) and text)


@pytest.mark.parametrize(
    ("page", "words"),
    first_of(
        [
            *((page, [EXPERT, JARGON]) for page in (RESULTS, "pages/targets.py", "pages/present.py")),
            ("pages/analyze.py", [EXPERT]),
        ],
        2,
    ),
)
def test_words_of_experts_are_behind_their_switch(
    app: AppTest, finished_run: str, backend: Backend, page: str, words: list[re.Pattern[str]]
) -> None:
    recommend(backend, finished_run)
    unfolded = {f"show-{section}": "yes" for section in ("files", "schedule")}
    wait_for_card(open_page(app, page, run=finished_run, **unfolded))
    assert not app.exception
    protos = "\n".join(str(getattr(node, "proto", "")) for node in app.main)
    shown = "\n".join(line for line in protos.splitlines() if not re.match(r"\s*(id|url|form_id|element_hash)\b", line))
    found = [each for pattern in words for each in pattern.finditer(shown)]
    assert not {shown[max(0, each.start() - 60) : each.end() + 30] for each in found}


LOOKED_UP = re.compile(
    r"\b(int8|calibration|held-out|packed|nats?|KL|MACs|tensors?|QDQ|binomial|Bernstein|Spearman|correlation|seed|"
    r"ONNX|[Cc]heckpoints?)\b"
)
"""Words that a reader of newspapers has to look up."""


@pytest.mark.parametrize(
    "page",
    first_of(
        ["pages/analyze.py", RESULTS, "pages/check.py", "pages/runs.py", "pages/compare.py", "pages/system.py"], 2
    ),
)
def test_a_reader_of_newspapers_looks_nothing_up(app: AppTest, service: Service, backend: Backend, page: str) -> None:
    runs = [finish(service, backend, RunSpec()) for _ in range(2)]
    for run_id in runs:
        recommend(backend, run_id)
    wait_for_card(open_page(app, page, run=runs if "compare" in page else runs[0], **{"show-layers": "yes"}))
    assert not app.exception
    tables = [str(cell) for table in app.dataframe for cell in (*table.value, *table.value.to_numpy().ravel())]
    read = " ".join([*seen(app.main), *(tables if "system" not in page else ())])
    assert {read[max(0, each.start() - 60) : each.end() + 30] for each in LOOKED_UP.finditer(read)} == set()


def test_the_switch_expert_is_off_at_first_and_kept_for_the_person(
    app: AppTest, another_app: Callable[[], AppTest]
) -> None:
    app.run()
    assert app.toggle(key="account.expert").value is False
    app.toggle(key="account.expert").set_value(True).run()
    later = another_app().run()
    assert later.toggle(key="account.expert").value is True
    later.toggle(key="account.expert").set_value(False).run()
    assert another_app().run().toggle(key="account.expert").value is False


def blocks(node: Node) -> Iterator[Block]:
    """Yield a block and those inside it."""
    if isinstance(node, Block):
        yield node
        for child in node.children.values():
            yield from blocks(child)
