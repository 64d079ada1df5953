"""The Analyze page: labels or networks that tell the task, and pictures with a rotation mark."""

from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.metrics import METRICS
from senseapp.records.inputs import PreviewReport
from senseapp.records.spec import RunSpec
from senseapp.server.service import Service
from tests.pages.conftest import ScriptedInputs, started, texts, wait_for_card
from tests.pages.test_analyze_uploads import archive, upload_images
from tests.pictures import class_files, png

LABELS = tuple("abcdefghij")
NETWORK = "timm/test_vit"


@pytest.fixture
def analyze(app: AppTest) -> AppTest:
    """The page with a network of the library."""
    app.run()
    app.button_group(key="analyze.model.source").set_value("Library").run()
    app.text_input(key="analyze.model.library.search").set_value("test_vit").run()
    app.radio(key="analyze.model.library.entry").set_value(NETWORK).run()
    app.toggle(key="analyze.model.pretrained").set_value(False).run()
    return wait_for_card(app)


def several() -> bytes:
    """Return pictures with a table of ten label columns, of which two are true of each picture."""
    names = [f"{number}.png" for number in range(6)]
    rows = [",".join([name, *(str(int(place in (n, n + 3))) for place in range(10))]) for n, name in enumerate(names)]
    table = "\n".join([",".join(["file", *LABELS]), *rows])
    return archive({name: png(n) for n, name in enumerate(names)} | {"labels.csv": table.encode()})


def test_labels_decide_that_the_head_is_multi_label_and_the_page_says_so(analyze: AppTest, service: Service) -> None:
    upload_images(analyze, "several.zip", several())
    assert not analyze.exception
    assert "Several labels are true of some images, so the model is taken to be multi-label." in texts(analyze)
    assert "6 images · 10 labels · from a table" in texts(analyze)
    offered = analyze.selectbox(key="analyze.metric").options
    assert METRICS["label_agreement"].label in offered
    assert METRICS["agreement"].label not in offered
    analyze.button(key="analyze.run").click().run()
    assert started(service).model.task == "multilabel"


def test_a_person_says_that_a_head_is_multi_label(analyze: AppTest, service: Service) -> None:
    analyze.selectbox(key="analyze.model.task").set_value("multilabel").run()
    analyze.button_group(key="analyze.data.source").set_value("None").run()
    wait_for_card(analyze)
    assert METRICS["label_agreement"].label in analyze.selectbox(key="analyze.metric").options
    analyze.button(key="analyze.run").click().run()
    assert started(service).model.task == "multilabel"


def test_pictures_with_a_rotation_mark_have_a_switch_that_the_run_keeps(
    analyze: AppTest, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, asked = ScriptedInputs.preview, []

    def preview(self: ScriptedInputs, spec: RunSpec) -> PreviewReport:
        asked.append(spec.data.upright)
        return replace(plain(self, spec), num_marked=3)

    monkeypatch.setattr(ScriptedInputs, "preview", preview)
    upload_images(analyze, "photos.zip", archive(class_files(tuple(map(str, range(10))), each=1)))
    (switch,) = [each for each in analyze.toggle if "rotation mark" in each.label]
    assert "3 pictures" in switch.label
    assert not switch.value
    switch.set_value(True)
    analyze.button(key="reading.apply").click().run()
    wait_for_card(analyze)
    assert asked[-1]
    analyze.button(key="analyze.run").click().run()
    assert started(service).data.upright
