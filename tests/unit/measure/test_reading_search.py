"""Layout, preparation and class numbers of uploaded detectors and maps, found with labels, without, or asked."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from torch import nn

from senseapp.cli.main import main
from senseapp.core.codec import decode, encode
from senseapp.core.errors import InvalidSpec, ReadingOpen
from senseapp.measure.preparation_search import choose_preparation
from senseapp.measure.quick import scan
from senseapp.measure.readings import preparation_words, reading_of
from senseapp.measure.session import Session
from senseapp.metrics.detection import TASK as DETECTION
from senseapp.networks.loaded import Preprocessing
from senseapp.networks.sources.load import load_model
from senseapp.records.inputs import PreparationChoice
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec, with_reading
from senseapp.tasks.detection.heads.layout import HeadLayout
from senseapp.tasks.reading import Reading, UsualInput
from tests.cases import first_of
from tests.detector_exports import FORMS, exported_detector, shape_pictures

BYTES = (1 / 255,) * 3


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shape_pictures(tmp_path_factory.mktemp("labelled"), 16)


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shape_pictures(tmp_path_factory.mktemp("unlabelled"), 3, labelled=False)


def asked(path: Path, images: Path) -> RunSpec:
    return RunSpec(
        model=ModelSpec(library="onnx", checkpoint=str(path), task=DETECTION),
        data=DataSpec(kind="folder", path=str(images), preparation="auto"),
        sensitivity=SensitivitySpec(mode="quick", layers=("nothing*",)),
    )


def told(path: Path) -> Path:
    """Add the metadata of Ultralytics to a file."""
    model = onnx.load(path)
    for key, value in {"stride": "32", "task": "segment", "names": "{0: 'r', 1: 'g', 2: 'b'}"}.items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)
    return path


def figure(choice: PreparationChoice) -> str:
    assert choice.chosen is not None
    return choice.chosen.result


@pytest.mark.parametrize("form", ["pair", *(pytest.param(form, marks=pytest.mark.wide) for form in FORMS)])
def test_labels_choose_layout_and_range_together(tmp_path: Path, labelled: Path, form: str) -> None:
    """All forms hold the same boxes, so the right reading of each finds the same."""
    wanted = choose_preparation(asked(exported_detector(tmp_path / "a.onnx", "columns"), labelled))
    choice = choose_preparation(asked(exported_detector(tmp_path / "b.onnx", form, high=255.0), labelled))
    assert choice.question == ""
    assert (choice.spec.data.mean, choice.spec.data.std) == ((0.0,) * 3, BYTES)
    assert figure(choice) == figure(wanted)
    assert dict(choice.spec.data.evidence)["preparation"] == "labels"
    assert load_model(choice.spec.model).num_classes == 3 + (form == "pair")


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=pytest.mark.wide) for form in ("object", "columns", "angle")]
)
def test_boxes_before_columns_are_read_by_what_the_values_are(tmp_path: Path, labelled: Path, form: str) -> None:
    path = exported_detector(tmp_path / "a.onnx", form, anchors_last=False)
    wanted = choose_preparation(asked(exported_detector(tmp_path / "b.onnx", "columns"), labelled))
    assert figure(choose_preparation(asked(path, labelled))) == figure(wanted)


def test_without_labels_and_evidence_a_person_is_asked(tmp_path: Path, unlabelled: Path) -> None:
    spec = asked(exported_detector(tmp_path / "a.onnx", "columns", high=255.0), unlabelled)
    choice = choose_preparation(spec)
    assert choice.question.startswith("It is not known how images of a.onnx are read")
    assert {"values from 0 to 1", "values from 0 to 255"} <= {trial.title for trial in choice.trials}
    with pytest.raises(ReadingOpen, match="with --reading FILE"):
        Session.open(spec)
    chosen = next(trial.spec for trial in choice.trials if trial.title == "values from 0 to 255")
    assert (chosen.data.preparation, chosen.data.std) == ("given", BYTES)


@pytest.mark.parametrize("coloured", first_of([True, False]))
def test_an_order_of_channels_that_no_family_fixes_is_asked_where_answers_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coloured: bool
) -> None:
    monkeypatch.setattr(HeadLayout, "usual_input", UsualInput(family="any", channel_order=""))
    images = shape_pictures(tmp_path / "set", 12, labelled=False) / "images"
    for each in images.iterdir():
        pixels = np.array(Image.open(each))
        pixels[..., 2] = pixels[..., 2 if coloured else 0]
        Image.fromarray(pixels).save(each)
    choice = choose_preparation(asked(exported_detector(tmp_path / "a.onnx", "columns"), images))
    assert bool(choice.question) is coloured
    assert ("BGR" in {trial.title for trial in choice.trials}) is coloured


def test_an_original_that_finds_nothing_is_asked_about(tmp_path: Path) -> None:
    """Even where a file says how it is read: nothing could be compared, so any file would seem to keep everything."""
    path = told(exported_detector(tmp_path / "a.onnx", "masks"))
    (tmp_path / "plain").mkdir()
    Image.new("RGB", (64, 64), (120, 120, 120)).save(tmp_path / "plain" / "a.png")
    choice = choose_preparation(asked(path, tmp_path / "plain"))
    assert choice.question.startswith("a.onnx takes images of 64 × 64 pixels. The uncompressed model finds no object")
    assert len(choice.trials) == 1


def test_what_a_person_gives_is_kept(tmp_path: Path, unlabelled: Path) -> None:
    spec = asked(exported_detector(tmp_path / "a.onnx", "columns", high=255.0), unlabelled)
    choice = choose_preparation(replace(spec, data=replace(spec.data, mean=(0.0,) * 3, std=BYTES)))
    assert choice.question == ""
    assert dict(choice.spec.data.evidence)["preparation"] == "person"


@pytest.mark.wide
def test_labels_of_other_pictures_say_that_it_is_read_wrongly(tmp_path: Path, labelled: Path) -> None:
    other = tmp_path / "shuffled"
    (other / "images").mkdir(parents=True)
    names = sorted(each.name for each in (labelled / "images").iterdir())
    for name, source in zip(names, [*names[5:], *names[:5]], strict=True):
        (other / "images" / name).write_bytes((labelled / "images" / source).read_bytes())
    (other / "instances.json").write_bytes((labelled / "instances.json").read_bytes())
    choice = choose_preparation(asked(exported_detector(tmp_path / "a.onnx", "columns"), other))
    assert "probably read wrongly" in choice.question
    assert choice.trials


def test_how_pixels_are_scaled_is_said_without_terms() -> None:
    own = Preprocessing(input_shape=(1, 32, 32), mean=(0.304,), std=(0.323,))
    assert preparation_words(own) == "32 × 32 pixels, values from 0 to 1, less 0.304, divided by 0.323, crop of 100 %"
    half = replace(own, input_shape=(3, 32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    assert preparation_words(half).startswith("32 × 32 pixels, values from −1 to 1, RGB, ")
    assert ", RGB as usual, " in preparation_words(half, by_images=True)


def test_metadata_of_ultralytics_decide_without_labels(tmp_path: Path, unlabelled: Path) -> None:
    choice = choose_preparation(asked(told(exported_detector(tmp_path / "a.onnx", "masks")), unlabelled))
    assert choice.question == ""
    loaded = load_model(choice.spec.model)
    assert (loaded.num_classes, loaded.class_names) == (3, ("r", "g", "b"))
    reading = reading_of(choice.spec, loaded)
    assert (reading.mean, reading.std, reading.fit) == ((0.0,) * 3, (1.0,) * 3, "letterbox")
    assert dict(reading.evidence)["preparation"] == "file"
    assert any("32 further columns of each box not read" in sentence for sentence in reading.sentences)


def test_a_reading_is_written_and_taken_by_commands(
    tmp_path: Path, unlabelled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_DRAWN", 3)  # no figure is looked at
    path = exported_detector(tmp_path / "a.onnx", "columns", high=255.0)
    command = ["read", "--model", "onnx", "--checkpoint", str(path), "--task", DETECTION, "--data", str(unlabelled)]
    assert main(command) == 2
    listed = capsys.readouterr().err
    number = int(listed.partition("values from 0 to 255")[0].rpartition("[")[2].partition("]")[0])
    out = tmp_path / "reading.json"
    assert main([*command, "--reading", str(number), "--out", str(out)]) == 0
    assert "values from 0 to 255" in capsys.readouterr().out
    analyze = ["analyze", *command[1:], "--reading", str(out), "--compression", "sparsity", "--levels", "50"]
    assert main([*analyze, "--mode", "quick", "--samples", "3", "--out", str(tmp_path / "run")]) == 0
    out.write_text(out.read_text().replace("boxes and classes", "rings"))
    assert main([*analyze, "--out", str(tmp_path / "other")]) == 2
    assert "is none that outputs of this task can have" in capsys.readouterr().err


def test_a_reading_is_the_same_when_it_is_stored() -> None:
    reading = Reading(task=DETECTION, class_map=(("a", 1),), evidence=(("layout", "labels"),))
    assert decode(encode(reading), Reading) == reading
    spec = with_reading(RunSpec(), replace(reading, task="classification", layout=""))
    assert dict(spec.data.evidence) == {"layout": "person"}
    with pytest.raises(InvalidSpec, match="none that outputs of this task can have"):
        ModelSpec(library="onnx", checkpoint="a.onnx", task=DETECTION, layout='{"name":"grid","num_classes":99999}')


def test_answers_to_mirrored_pictures_agree_only_for_answers_with_a_place() -> None:
    from senseapp.tasks import CLASSIFICATION, SEGMENTATION

    scores = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 4, 8, 6))).float()
    assert SEGMENTATION.mirror_agreement(scores, scores.flip(3), 6) == pytest.approx([1.0] * 3)
    assert max(SEGMENTATION.mirror_agreement(scores, scores, 6)) < 0.3
    assert CLASSIFICATION.mirror_agreement(scores, scores, 6) == [0.0]


class Colours(nn.Module):
    """A class for each of four colours, in one of the forms of segmentation networks."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.layer = form, nn.Conv2d(3, 4, 1)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor(PALETTE / 255.0)[:, :, None, None].float() * 20)
            self.layer.bias.copy_(-self.layer.weight.square().sum(dim=(1, 2, 3)) / 40)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores = self.layer(images)
        return {
            "first": lambda: scores,
            "last": lambda: scores.permute(0, 2, 3, 1),
            "numbers": lambda: scores.argmax(1),
            "numbers with a channel": lambda: scores.argmax(1, keepdim=True),
            "float numbers": lambda: scores.argmax(1).float(),
            "numbers of the last axis": lambda: scores.permute(0, 2, 3, 1).argmax(3),
        }[self.form]()


PALETTE = np.array([[60, 60, 60], [130, 60, 60], [60, 130, 60], [60, 60, 130]])


@pytest.mark.parametrize(
    "form",
    first_of(["last", "numbers", "first", "numbers with a channel", "float numbers", "numbers of the last axis"]),
)
def test_maps_of_any_layout_give_the_same_figure(tmp_path: Path, form: str) -> None:
    generator = np.random.default_rng(0)
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for place in range(12):
        mask = generator.integers(0, 4, (6, 8)).repeat(8, 0).repeat(8, 1).astype(np.uint8)  # 48 x 64
        noisy = PALETTE[np.where(generator.random(mask.shape) < 0.1, generator.integers(0, 4, mask.shape), mask)]
        Image.fromarray(noisy.astype(np.uint8)).save(tmp_path / "images" / f"{place}.png")
        Image.fromarray(mask).save(tmp_path / "masks" / f"{place}.png")
    file = io.BytesIO()
    torch.onnx.export(
        Colours(form), (torch.zeros(1, 3, 48, 64),), file, dynamo=False, input_names=["images"], output_names=["map"],
        dynamic_axes={"images": {0: "batch"}, "map": {0: "batch"}},
    )  # fmt: skip
    path = tmp_path / "colours.onnx"
    path.write_bytes(file.getvalue())
    spec = RunSpec(
        model=ModelSpec(library="onnx", checkpoint=str(path), task="segmentation"),
        data=DataSpec(kind="folder", path=str(tmp_path), preparation="auto"),
    )
    choice = choose_preparation(spec)
    assert choice.question == ""
    assert choice.spec.data.std == (1.0,) * 3
    images = [np.asarray(Image.open(tmp_path / "images" / f"{place}.png")) for place in range(12)]
    masks = [np.asarray(Image.open(tmp_path / "masks" / f"{place}.png")) for place in range(12)]
    found = [np.abs(each[:, :, None] - PALETTE).sum(3).argmin(2) for each in images]
    shares = [
        sum(((a == k) & (b == k)).sum() for a, b in zip(found, masks, strict=True))
        / sum(((a == k) | (b == k)).sum() for a, b in zip(found, masks, strict=True))
        for k in range(4)
    ]
    assert figure(choice) == f"Mean IoU {100 * np.mean(shares):.1f} %"
