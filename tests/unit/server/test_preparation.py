"""A run whose preprocessing the images choose: what was chosen is in its result, and a resumed run keeps it."""

from dataclasses import replace
from io import BytesIO
from zipfile import ZipFile

import pytest
import timm
import torch

from senseapp.core.codec import dumps, loads
from senseapp.data.load import demo_pictures, load_demo_images
from senseapp.measure import session as sessions
from senseapp.networks.loaded import IMAGENET_MEAN, IMAGENET_STD
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.run_requests import preview_images, sample_zip
from senseapp.server.tasks import open_local_session
from tests.pictures import write_zip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=10)
    learn_digits(network)
    torch.save({f"part{place}": tensor for place, tensor in enumerate(network.state_dict().values())}, folder / "a.pth")
    with ZipFile(BytesIO(sample_zip())) as digits:
        few = digits.namelist()[::10]
        write_zip(folder / "digits.zip", {name: digits.read(name) for name in few})
    return RunSpec(
        model=ModelSpec(library="auto", checkpoint=str(folder / "a.pth")),
        data=DataSpec(kind="archive", path=str(folder / "digits.zip"), preparation="auto"),
        sensitivity=SensitivitySpec(levels=(0.5,), num_samples=16, mode="quick"),
    )


def learn_digits(network: torch.nn.Module) -> None:
    """Fit the classifier to digits by least squares: at chance a person would be asked."""
    pixels = torch.from_numpy(demo_pictures()).float()[::10, None].expand(-1, 3, -1, -1)
    images = torch.nn.functional.interpolate(pixels / 255, size=160, mode="bilinear")
    mean, std = (torch.tensor(each)[:, None, None] for each in (IMAGENET_MEAN, IMAGENET_STD))
    with torch.no_grad():
        features = network.eval().forward_head(network.forward_features((images - mean) / std), pre_logits=True)
        wanted = torch.nn.functional.one_hot(load_demo_images().labels[::10], 10).float()
        centre = features.mean(0)
        weight = torch.linalg.lstsq(features - centre, wanted - 0.1).solution.T
        network.fc.weight.copy_(weight)
        network.fc.bias.copy_(-weight @ centre)


def opened(spec, earlier=None):
    told: list[str] = []
    return open_local_session(spec, data_roots=(), progress=told.append, earlier=earlier).result(()), told


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
