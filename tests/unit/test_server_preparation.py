"""A run whose preprocessing the images choose: what was chosen is in its result, and a resumed run keeps it."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from zipfile import ZipFile

import pytest
import timm
import torch

from senseapp.core.codec import dumps, loads
from senseapp.measure import session as sessions
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.image_report import preview_images, sample_zip
from senseapp.server.session import open_local_session
from tests.pictures import write_zip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=10)
    torch.save({f"part{place}": tensor for place, tensor in enumerate(network.state_dict().values())}, folder / "a.pth")
    with ZipFile(BytesIO(sample_zip())) as digits:
        few = digits.namelist()[::6]
        write_zip(folder / "digits.zip", {name: digits.read(name) for name in few})
    return RunSpec(
        model=ModelSpec(library="auto", checkpoint=str(folder / "a.pth")),
        data=DataSpec(kind="archive", path=str(folder / "digits.zip"), preparation="auto"),
        sensitivity=SensitivitySpec(levels=(0.5,), num_samples=16, mode="quick"),
    )


def opened(spec, earlier=None):
    told: list[str] = []
    session = open_local_session(spec, data_roots=(), progress=told.append, earlier=earlier)
    return session.result(()), told


def test_the_result_says_what_was_chosen_and_a_resumed_run_keeps_it(spec, monkeypatch):
    result, told = opened(spec)
    assert "Choosing the preprocessing" in told
    assert (result.spec.model.title, result.spec.data.preparation) == ("timm/test_resnet", "given")
    verdict = next(note for note in result.notes if note.startswith("Preprocessing"))
    assert "of 64 right" in verdict
    assert verdict in told
    assert any("order and shapes fit timm/test_resnet. This is a guess" in note for note in result.notes)
    assert loads(dumps(result.spec), RunSpec) == result.spec

    monkeypatch.setattr(sessions, "choose_preparation", None)  # calling it again would fail
    again, _ = opened(spec, earlier=result)
    assert again.spec == result.spec
    assert again.notes == result.notes


@pytest.mark.wide
def test_a_preview_shows_what_was_tried(spec):
    report = preview_images(spec, num_images=None)
    assert report.choice is not None
    assert len(report.choice.trials) > 1
    assert report.choice.chosen in report.choice.trials
    assert report.score is not None
    given = replace(spec, data=replace(spec.data, preparation="given"))
    assert preview_images(given, num_images=None).choice is None
