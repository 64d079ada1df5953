"""Own pictures, labels and annotations on the Analyze page: together, apart, in either order, fewer than asked for."""

import io
import json
import threading
import time
import zipfile
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.app.common.state import VisitorState
from senseapp.records.inputs import PreviewReport
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.inputs import DETECTION_DEMO
from senseapp.server.model_cards import ModelCard
from tests.cases import seldom
from tests.pages.conftest import ScriptedInputs, wait_for_card
from tests.pages.records import profile
from tests.pictures import png

NAMES = tuple(f"{letter}.png" for letter in "abcdef")
PICTURES = {name: png(place) for place, name in enumerate(NAMES)}
MASKS = {name: png(place, mode="L") for place, name in enumerate(NAMES)}
TABLE = {"truth.csv": "\n".join(["file,label", *(f"{name},{n}" for n, name in enumerate(NAMES))]).encode()}
BOX = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>8</xmax><ymax>8</ymax></bndbox>"


def voc(name: str) -> bytes:
    size = "<size><width>10</width><height>12</height><depth>3</depth></size>"
    text = f"<annotation><filename>{name}</filename>{size}<object><name>red</name>{BOX}</object></annotation>"
    return text.encode()


VOC = {name.replace(".png", ".xml"): voc(name) for name in NAMES}
COCO = {
    "instances.json": json.dumps(
        {
            "images": [
                {"id": n, "file_name": name, "width": 10, "height": 12} for n, name in enumerate(NAMES, start=1)
            ],
            "annotations": [
                {"id": n, "image_id": n, "category_id": 1, "bbox": [1, 1, 7, 7], "area": 49, "iscrowd": 0}
                for n in range(1, len(NAMES) + 1)
            ],
            "categories": [{"id": 1, "name": "red"}],
        }
    ).encode()
}  # fmt: skip


def packed(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for member, content in files.items():
            opened.writestr(member, content)
    return {name: file.getvalue()}


ZIP = packed(PICTURES, "photos.zip")
CLASSIFIER, DETECTOR = RunSpec(), DETECTION_DEMO
SEGMENTER = RunSpec(
    model=ModelSpec(library="torchvision", name="lraspp_mobilenet_v3_large", task="segmentation"), data=DataSpec()
)
LABELS, BOXES, MASKED = "6 images · 6 classes · from a table", "6 images · with boxes", "6 images · with masks"


@pytest.mark.parametrize(
    ("spec", "rounds", "said"),
    [
        (CLASSIFIER, [PICTURES | TABLE], LABELS),
        (CLASSIFIER, [ZIP, TABLE, ZIP], LABELS),
        (CLASSIFIER, [PICTURES, TABLE, PICTURES], LABELS),
        seldom((CLASSIFIER, [TABLE, PICTURES], LABELS)),
        (DETECTOR, [ZIP | COCO], BOXES),
        seldom((DETECTOR, [COCO, ZIP], BOXES)),
        seldom((DETECTOR, [PICTURES, VOC], BOXES)),
        seldom((SEGMENTER, [packed(PICTURES, "images.zip") | packed(MASKS, "masks.zip")], MASKED)),
        (SEGMENTER, [PICTURES, MASKS], MASKED),
        seldom((SEGMENTER, [MASKS, PICTURES], MASKED)),
    ],
    ids=["together", "zip again", "pictures again", "table first", "zip with COCO", "COCO first", "VOC later",
         "zips of masks", "masks later", "masks first"],
)  # fmt: skip
def test_own_data_is_taken_in_whatever_way_it_comes(app, service, backend, monkeypatch, spec, rounds, said):
    monkeypatch.setattr(type(backend.cards), "card", lambda *_: ModelCard(profile=profile()))
    app.session_state["senseapp.session"] = VisitorState(draft=spec)
    app.run().button_group(key="analyze.data.source").set_value("Upload images").run()
    for files in rounds:
        uploader = next(each for each in app.file_uploader if each.label in ("Images", "Add more files"))
        uploader.set_value([(name, content, "") for name, content in files.items()]).run()
        wait_for_card(app)
        assert not app.exception
        assert not app.error
    assert said in " ".join(caption.value for caption in app.caption)
    offered = {option for box in app.selectbox for option in box.options}
    assert ("The file instances.json" in offered) == any("instances.json" in files for files in rounds)
    assert not app.button(key="analyze.run").disabled  # also of a demo that asks for 96 images
    app.button(key="analyze.run").click().run()
    started = service.runs()[0].spec
    assert started.data.kind == "archive"
    assert started.sensitivity.num_samples is None


@pytest.mark.parametrize(
    ("files", "said", "has_choice"),
    [
        ({"other.csv": b""}, "The table other.csv cannot be read. It is empty.", True),
        ({"other.csv": b"x,y\n1,2\n3,4\n"}, "other.csv names none of the 6 pictures: expected lines such as", True),
        ({"other.json": b'{"hello": [1]}'}, "Labels are not read from other.json: boxes, masks and points", False),
    ],
)
def test_files_that_hold_no_labels_are_said_with_the_reason_and_block_nothing(
    app: AppTest, files: dict[str, bytes], said: str, has_choice: bool
) -> None:
    app.run().button_group(key="analyze.data.source").set_value("Upload images").run()
    app.file_uploader[0].set_value([(name, content, "") for name, content in (PICTURES | files).items()]).run()
    wait_for_card(app)
    captions = " ".join(caption.value for caption in app.caption)
    assert said in captions
    assert "There are no labels" in captions
    assert "--" not in captions
    assert any(box.label == "Labels come from" for box in app.selectbox) == has_choice
    assert not app.button(key="analyze.run").disabled


def test_files_that_come_alone_ask_for_their_pictures(app: AppTest, tmp_path: Path) -> None:
    app.run().button_group(key="analyze.data.source").set_value("Upload images").run()
    assert "Download a sample zip" in [button.label for button in app.get("download_button")]
    app.file_uploader[0].set_value([(name, content, "") for name, content in TABLE.items()]).run()
    wait_for_card(app)
    assert "truth.csv came without pictures. Add the pictures" in app.info[0].value
    assert app.button(key="analyze.run").disabled
    assert app.button(key="analyze.run").help.startswith("truth.csv came without pictures")
    assert [path.name for path in (tmp_path / "home" / "uploads").rglob("*") if path.is_file()] == ["1 file.zip"]


def test_no_time_is_said_before_images_and_input_are_known(app: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, preview = threading.Event(), ScriptedInputs.preview

    def slow(self: ScriptedInputs, spec: RunSpec) -> PreviewReport:
        if spec.data.path:
            seen.wait(30)
        return preview(self, spec)

    monkeypatch.setattr(ScriptedInputs, "preview", slow)
    app.run().button_group(key="analyze.data.source").set_value("Upload images").run()
    app.file_uploader[0].set_value([(name, content, "") for name, content in (PICTURES | TABLE).items()]).run()
    for _ in range(100):
        if any("Trying on some of the images" in caption.value for caption in app.caption):
            break
        time.sleep(0.05)
        app.run()
    assert "You can already press Run. The time is predicted once model and images have been read." in [
        text.value for text in app.markdown
    ]
    assert not app.button(key="analyze.run").disabled
    seen.set()
    wait_for_card(app)
    assert any("about 40 s" in text.value for text in app.markdown)
