"""A network with one logit is a classifier of two classes; every number is compared with NumPy's own."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torch import Tensor, nn

from senseapp.core.errors import UnsupportedModel
from senseapp.data.images import TensorImages
from senseapp.data.pictures import survey_images
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.session import Session
from senseapp.measure.sweep import Sweep
from senseapp.metrics import METRICS
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.run_requests import preview_images
from senseapp.tasks import CLASSIFICATION
from tests.pictures import png
from tests.plain_loop import sparse_logits
from tests.small_models import small_network

Array = npt.NDArray[np.float64]
COUNT = 40


class Squeezed(nn.Module):
    """Returns (N,) in place of (N, 1)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)
        return logits.squeeze(1)


def one_logit(*, squeezed: bool = False) -> nn.Module:
    torch.manual_seed(3)
    network = small_network()
    network.head = nn.Linear(8, 1)
    with torch.no_grad():
        network.head.weight.mul_(6)
    return (Squeezed(network) if squeezed else network).eval()


def pictures() -> Tensor:
    return torch.randn(COUNT, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def centred(network: nn.Module) -> nn.Module:
    """Move the logits so that half of the images are above 0."""
    with torch.no_grad():
        network.head.bias -= network(pictures()).median()
    return network


def labels() -> Tensor:
    return torch.randint(2, (COUNT,), generator=torch.Generator().manual_seed(2))


def logits_of(output: Tensor) -> Array:
    return output.detach().double().numpy().reshape(-1)


def cross_entropy(logits: Array, truth: Array) -> float:
    """Binary cross-entropy, from the two logarithms of the sigmoid."""
    return float(np.mean(truth * np.logaddexp(0, -logits) + (1 - truth) * np.logaddexp(0, logits)))


def divergence(before: Array, after: Array) -> Array:
    """KL of two Bernoulli distributions, of each image."""
    p, q = (1 / (1 + np.exp(-each)) for each in (before, after))
    return np.asarray(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))


@pytest.mark.parametrize("squeezed", [False, True])
def test_each_layer_is_measured_as_by_hand(squeezed: bool) -> None:
    network = centred(one_logit())
    model = Squeezed(network) if squeezed else network
    spec = SensitivitySpec(levels=(0.5,), device="cpu")
    sweep = Sweep.open(model, TensorImages(pictures(), labels()), spec, task=CLASSIFICATION)
    truth, before = labels().numpy(), logits_of(network(pictures()))
    assert sweep.baseline.values()["top1"] == pytest.approx(np.mean((before > 0) == truth))
    assert sweep.baseline.values()["loss"] == pytest.approx(cross_entropy(before, truth), rel=1e-6)
    measured = list(sweep.measure())
    assert len(measured) == 6
    for item in measured:
        after = logits_of(sparse_logits(network, item.layer.removeprefix("network."), "weight", pictures()))
        values = {change.metric: change.value for change in item.changes}
        assert values["top1"] == pytest.approx(np.mean((after > 0) == truth))
        assert values["agreement"] == pytest.approx(np.mean((after > 0) == (before > 0)))
        assert values["loss"] == pytest.approx(cross_entropy(after, truth), rel=1e-5)
        assert values["kl"] == pytest.approx(divergence(before, after).mean(), rel=1e-4, abs=1e-9)
        assert item.change("sqnr").delta == pytest.approx(((after - before) ** 2).sum() / (before**2).sum(), rel=1e-4)
        assert "top5" not in values


def test_the_quick_scan_of_the_last_layer_is_exact() -> None:
    network = centred(one_logit())
    spec = SensitivitySpec(levels=(0.25, 0.75), layers=("head",), device="cpu", mode="quick")
    found = list(quick_scan(Sweep.open(network, TensorImages(pictures(), labels()), spec, task=CLASSIFICATION)))
    before = logits_of(network(pictures()))
    for item in found:
        after = logits_of(sparse_logits(network, "head", "weight", pictures(), sparsity=item.level))
        assert item.change("kl").delta == pytest.approx(divergence(before, after).mean(), rel=1e-3)
        expected = cross_entropy(after, labels().numpy()) - cross_entropy(before, labels().numpy())
        assert item.change("loss").delta == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert len(found) == 2


def test_a_logit_of_zero_is_class_0_and_one_that_is_no_number_is_wrong() -> None:
    output = CLASSIFICATION.output(torch.tensor([[0.0], [float("nan")], [1e-6], [-1e-6]]))
    assert METRICS["top1"].moments(output, output, torch.tensor([0, 1, 1, 0]))[:2] == (4.0, 3.0)
    answers, sure = CLASSIFICATION.answers(output[2:])
    assert answers.tolist() == [1, 0]
    assert sure.tolist() == pytest.approx([0.5, 0.5], abs=1e-5)


def folder_of(path: Path, names: tuple[str, ...]) -> DataSpec:
    for place, name in enumerate(names):
        (path / name).mkdir(parents=True)
        for number in range(6):
            (path / name / f"{number}.png").write_bytes(png(100 * place + number))
    return DataSpec(kind="folder", path=str(path))


MODEL = ModelSpec(library="timm", name="test_resnet", num_classes=1)


def test_two_folders_are_the_two_classes_and_the_model_says_how_it_is_read(tmp_path: Path) -> None:
    images = folder_of(tmp_path, ("defect", "good"))
    survey = survey_images(images, num_classes=1, task=CLASSIFICATION)
    assert survey.proposal is not None
    assert survey.proposal.pairs == (("defect", 0), ("good", 1))
    assert "logit of the second of two classes" in load_model(MODEL).notes[-1]
    report = preview_images(RunSpec(model=MODEL, data=images), num_images=12)
    assert report.num_scored == 12
    assert {picture.prediction for picture in report.pictures} <= {"defect", "good"}


def test_a_confirmed_order_turns_the_classes_around(tmp_path: Path) -> None:
    images = folder_of(tmp_path, ("defect", "good"))
    turned = DataSpec(kind="folder", path=images.path, class_map=(("defect", 1), ("good", 0)))
    scores = [preview_images(RunSpec(model=MODEL, data=each), num_images=12).score for each in (images, turned)]
    assert sum(score or 0 for score in scores) == pytest.approx(1)


@pytest.mark.parametrize("shape", [(4, 2, 2), (4, 2, 1, 2), (4, 0), (3, 1), (1,), ()])
def test_what_is_no_logit_of_each_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedModel, match=r"shape \(4, classes\), or one logit"):
        CLASSIFICATION.check_output(torch.zeros(shape), 4)


@pytest.mark.wide
@pytest.mark.slow
def test_the_images_decide_which_folder_is_the_second_class(tmp_path: Path) -> None:
    """Pictures above logit 0 lie in the folder that comes first: sorted by name, every answer would be wrong."""
    generator, files = np.random.default_rng(0), []
    for number in range(40):
        colour = generator.integers(0, 256, 3)
        noise = generator.integers(-20, 21, (12, 12, 3))
        file = tmp_path / f"{number}.png"
        Image.fromarray(np.clip(colour + noise, 0, 255).astype(np.uint8)).save(file)
        files.append(file)
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=1).eval()
    prepared = create_transform(**resolve_data_config({}, model=network))
    pixels = torch.stack([prepared(Image.open(file)) for file in files])
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.0, generator=torch.Generator().manual_seed(1))
        network.get_classifier().bias -= network(pixels).median()
        logits = network(pixels)[:, 0]
        network.get_classifier().weight *= 4 / logits.abs().median()
        network.get_classifier().bias *= 4 / logits.abs().median()
    torch.save(network.state_dict(), tmp_path / "net.pth")
    for name in ("above", "below"):
        (tmp_path / "images" / name).mkdir(parents=True)
    for file, value in zip(files, logits.tolist(), strict=True):
        file.rename(tmp_path / "images" / ("above" if value > 0 else "below") / file.name)
    spec = RunSpec(
        model=ModelSpec(library="timm", name="test_resnet", checkpoint=str(tmp_path / "net.pth")),
        data=DataSpec(kind="folder", path=str(tmp_path / "images")),
        sensitivity=SensitivitySpec(levels=(0.5,), mode="quick", layers=("fc",), device="cpu"),
    )
    session = Session.open(spec)
    list(session.estimates())
    assert session.baseline["top1"] >= 0.97  # the median itself may be on either side
    assert dict(session.spec.data.class_map) == {"above": 1, "below": 0}
    assert any("reverse order" in note for note in session.notes)
