"""What a preview says of the reading: the one that is taken, and those to choose from where nothing decides."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.process.requester import WorkerRequest, answer_here
from senseapp.server.run_requests import preview_images
from senseapp.tasks import SEGMENTATION
from tests.detector_exports import exported_detector, shape_pictures

BYTES = (1 / 255,) * 3


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector for values from 0 to 255, which nothing in it says."""
    return exported_detector(tmp_path_factory.mktemp("export") / "net.onnx", "columns", high=255.0)


def spec_of(export: Path, folder: Path, count: int, *, labelled: bool) -> RunSpec:
    pictures = shape_pictures(folder / "set", count, labelled=labelled)
    return RunSpec(
        model=ModelSpec(library="onnx", checkpoint=str(export), task="detection"),
        data=DataSpec(kind="folder", path=str(pictures), preparation="auto"),
    )


@pytest.mark.wide
def test_where_nothing_decides_each_reading_is_drawn_on_the_same_pictures(export: Path, tmp_path: Path) -> None:
    spec = spec_of(export, tmp_path, 4, labelled=False)
    asked = WorkerRequest(call=partial(preview_images, spec, num_images=4, data_roots=()))
    report = asked.decoded(answer_here(asked.encoded()))
    assert report.choice is not None
    assert "4 images without labels do not decide" in report.choice.question
    assert not report.pictures
    assert "only assumed" in report.reading.facts["Images"]
    assert [trial for trial, _ in report.asked] == list(report.choice.trials[:4])
    assert len({tuple(picture.name for picture in pictures) for _, pictures in report.asked}) == 1
    assert all(len(pictures) == 4 for _, pictures in report.asked)
    chosen_trial, right = next(each for each in report.asked if each[0].spec.data.std == BYTES)
    wrong = next(pictures for trial, pictures in report.asked if trial.spec.data.std != BYTES)
    assert [picture.drawn for picture in right] != [picture.drawn for picture in wrong]

    chosen = preview_images(report.choice.picked(chosen_trial), num_images=4)
    assert chosen.choice is None
    assert "values from 0 to 255" in chosen.reading.facts["Images"]
    assert "chosen by a person" in chosen.reading.facts["Images"]
    assert "nothing else fits" in chosen.reading.facts["Outputs"]
    assert [picture.drawn for picture in chosen.pictures] == [picture.drawn for picture in right]


def test_what_a_person_says_of_the_values_is_kept_and_the_other_ways_are_listed(export: Path, tmp_path: Path) -> None:
    asked = spec_of(export, tmp_path, 12, labelled=True)
    told = replace(asked, data=replace(asked.data, mean=(0.0,) * 3, std=(1.0,) * 3))
    report = preview_images(told, num_images=12)
    assert report.choice is not None  # values from 0 to 1 are wrong, and the labels say so
    assert "probably read wrongly" in report.choice.question
    assert all(trial.spec.data.std == (1.0,) * 3 for trial, _ in report.asked)
    assert all(len(picture.drawn) == 2 for _, pictures in report.asked for picture in pictures)
    assert ("values from 0 to 255", (0.0,) * 3, BYTES) in report.ranges
    assert any("3 classes" in words for _, words in report.layouts)


def test_a_demo_is_read_as_its_library_says() -> None:
    report = preview_images(RunSpec(), num_images=None)
    assert report.reading.facts["Images"].endswith("(it comes with the network)")
    assert (report.asked, report.layouts) == ((), ())


def test_a_list_of_boxes_is_no_map_of_class_numbers() -> None:
    assert SEGMENTATION.readers(torch.zeros(1, 7, 320), (64, 64)) == ()
    assert SEGMENTATION.readers(torch.zeros(1, 32, 32), (64, 64))
    assert SEGMENTATION.readers(torch.zeros(1, 24, 48), (96, 192))
    assert SEGMENTATION.readers(torch.zeros(1, 85, 100), (64, 64)) == ()
