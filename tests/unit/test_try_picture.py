"""One picture of a person's own: what the original and delivered files answer to it."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import timm.data
import torch
from PIL import Image

from senseapp.core.codec import decode, encode
from senseapp.core.errors import InvalidDataset, NotFound
from senseapp.networks.loaded import LoadedModel
from senseapp.networks.onnx.metadata import told_of
from senseapp.networks.sources.load import load_model
from senseapp.prove.answers import picture_answers
from senseapp.reconstruct.write import onnx_model
from senseapp.records.answers import PictureAnswers
from senseapp.records.candidate import Delivery
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.cases import first_of
from tests.deployments import a_candidate
from tests.pages.conftest import finish
from tests.pages.records import opener

pytestmark = pytest.mark.slow  # exports networks, starts the process that decodes pictures

DIGITS, RESNET = ModelSpec(), ModelSpec(library="timm", name="test_resnet", num_classes=4)
NAMES = {"demo": "0123456789", "test_resnet": ("crow", "jay", "jackdaw, Corvus monedula", "rook")}


def a_photo(width: int, height: int) -> Image.Image:
    """Noise over a gradient: every pixel of the crop counts."""
    noise = np.random.default_rng(width).integers(0, 100, (height, width, 3))
    return Image.fromarray((noise + np.linspace(0, 155, width)[None, :, None]).astype(np.uint8))


def saved(picture: Image.Image, path: Path, kind: str = "PNG") -> Path:
    picture.save(path, kind)
    return path


def in_onnxruntime(**files: Path) -> list[tuple[str, Path, str]]:
    return [(name, path, "onnxruntime") for name, path in files.items()]


def exported(model: LoadedModel, path: Path, names: tuple[str, ...]) -> Path:
    content = onnx_model(model.module, torch.zeros(1, *model.preprocessing.input_shape))
    path.write_bytes(OPERATIONS.described(content, told_of(preprocessing=model.preprocessing, class_names=names)))
    return path


def probabilities(path: Path, picture: Image.Image, model: LoadedModel) -> np.ndarray:
    """What a person gets with timm's own transform and onnxruntime."""
    how = model.preprocessing
    transform = timm.data.create_transform(
        input_size=how.input_shape,
        is_training=False,
        mean=how.mean,
        std=how.std,
        crop_pct=how.crop_pct,
        interpolation=how.interpolation,
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = transform(picture.convert("L" if how.input_shape[0] == 1 else "RGB"))[None].numpy()
    (scores,) = session.run(None, {session.get_inputs()[0].name: given})[0].astype(np.float64)
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


@pytest.fixture(scope="module", params=first_of([RESNET, DIGITS]), ids=["colour, bicubic", "grey digits"])
def tried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Model, picture, two files of which one is of other weights, and the answers."""
    folder, spec = tmp_path_factory.mktemp("tried"), RunSpec(model=request.param)
    model = load_model(spec.model)
    names = tuple(NAMES["demo" if spec.model == DIGITS else "test_resnet"])
    own = exported(model, folder / "own.onnx", names)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(0.9)
    other = exported(model, folder / "other.onnx", names)
    photo = a_photo(330, 270)
    found = picture_answers(spec, saved(photo, folder / "photo.png"), in_onnxruntime(own=own, other=other))
    return model, photo, {"own": own, "other": other}, found, names


def test_the_shares_are_those_of_onnxruntime_with_the_transform_of_timm(tried) -> None:
    model, photo, files, found, names = tried
    for name, path in files.items():
        expected = probabilities(path, photo, model)
        order = np.argsort(-expected)[:5]
        answer = found.files[name]
        assert [name for name, _ in answer.shares] == [names[index].split(",")[0] for index in order]
        np.testing.assert_allclose([share for _, share in answer.shares], expected[order], atol=2e-5)
        assert answer.text == answer.shares[0][0]
    assert found.files["own"].shares != found.files["other"].shares


def test_the_original_is_the_network_of_the_run(tried) -> None:
    _, _, _, found, _ = tried
    own = found.files["own"]
    assert [name for name, _ in found.original.shares] == [name for name, _ in own.shares]
    shares = ([share for _, share in answer.shares] for answer in (found.original, own))
    np.testing.assert_allclose(*shares, atol=2e-5)  # the same weights in torch


def test_the_picture_is_shown_as_the_network_sees_it_and_all_of_it_can_be_written(tried) -> None:
    model, photo, _, found, _ = tried
    _, height, width = model.preprocessing.input_shape
    assert found.input_size == (width, height)
    shown = Image.open(io.BytesIO(found.png))
    crop = timm.data.create_transform(
        input_size=model.preprocessing.input_shape,
        is_training=False,
        crop_pct=model.preprocessing.crop_pct,
        interpolation=model.preprocessing.interpolation,
        normalize=False,
    )
    picture = photo.convert("L" if model.preprocessing.input_shape[0] == 1 else "RGB")
    seen = np.asarray(crop(picture)).transpose(1, 2, 0)
    wanted = Image.fromarray(np.repeat(seen, 3 // seen.shape[2], axis=2)).resize(shown.size)
    assert np.abs(np.asarray(shown, dtype=float) - np.asarray(wanted, dtype=float)).mean() < 12
    assert decode(encode(found), PictureAnswers) == found


@pytest.mark.wide
def test_the_preparation_that_the_run_chose_is_used(tmp_path: Path) -> None:
    model = load_model(DIGITS)
    file = exported(model, tmp_path / "own.onnx", ())
    picture = saved(a_photo(60, 90), tmp_path / "photo.jpg", "JPEG")
    spec = RunSpec(data=DataSpec(kind="folder", path="somewhere", mean=(0.9,), std=(2.0,)))
    found = picture_answers(spec, picture, in_onnxruntime(own=file))
    how = replace(model, preprocessing=replace(model.preprocessing, mean=(0.9,), std=(2.0,)))
    expected = np.sort(probabilities(file, Image.open(picture), how))[::-1][:5]
    np.testing.assert_allclose([share for _, share in found.files["own"].shares], expected, atol=2e-5)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty file"),
        (b"<html><script>alert(1)</script>", "not a picture"),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), "not a picture|damaged"),
        (
            b"BM" + (10**9).to_bytes(4, "little") + bytes(8) + b"\x28\0\0\0\0\0\1\0\0\0\1\0\1\0\x18\0" + bytes(24),
            "too many pixels",
        ),
    ],
    ids=["empty", "markup", "cut off", "endless"],
)
def test_a_bad_picture_gets_one_sentence(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "bad.png"
    path.write_bytes(content)
    with pytest.raises(InvalidDataset, match=rf"bad\.png cannot be used as a picture: .*({why}).*Choose another"):
        picture_answers(RunSpec(), path, [])


def test_a_picture_that_is_gone_or_too_large_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidDataset, match="no longer on this server"):
        picture_answers(RunSpec(), tmp_path / "gone.png", [])
    monkeypatch.setattr("senseapp.data.pictures.MOST_PICTURE_MEGABYTES", 0)
    with pytest.raises(InvalidDataset, match="may have up to 0 MB"):
        picture_answers(RunSpec(), saved(a_photo(9, 9), tmp_path / "large.png"), [])


@pytest.fixture
def service(tmp_path: Path):
    backend = Backend(tmp_path / "home", open_session=opener(), workers=0)
    yield Service(backend)
    backend.close()


def an_upload(service: Service, content: bytes) -> Path:
    path = service.inputs.reserve_upload(len(content))
    path = path.replace(path.with_name("mine.png"))
    path.write_bytes(content)
    return path


@pytest.mark.wide
def test_the_picture_is_removed_whatever_comes_of_it(service: Service) -> None:
    run_id = finish(service, service._backend, RunSpec())
    folder = service._backend.store.folder(run_id)
    file = io.BytesIO()
    a_photo(40, 40).save(file, "PNG")
    first = an_upload(service, file.getvalue())
    with pytest.raises(NotFound, match="no file that runs"):
        service.work.try_picture(run_id, first)
    candidate = a_candidate()
    folder.save("0" * 16, Delivery(candidates=(candidate, a_candidate("onnx", size=5_000_000))))
    exported(load_model(DIGITS), folder.path / candidate.file, tuple("0123456789"))
    second = an_upload(service, file.getvalue())
    found = service.work.try_picture(run_id, second)
    assert list(found.files) == [candidate.file]  # the other one is not on this server
    third = an_upload(service, b"no picture")
    with pytest.raises(InvalidDataset, match="not a picture"):
        service.work.try_picture(run_id, third)
    assert not any(path.parent.exists() for path in (first, second, third))


def test_nobody_else_may_ask_the_networks_of_a_run(service: Service) -> None:
    run_id = finish(service, service._backend, RunSpec())
    with pytest.raises(NotFound):
        Service(service._backend, owner="somebody else").work.try_picture(run_id, Path("picture.png"))


def test_files_without_class_names_say_so() -> None:
    network = onnx_model(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval(), torch.zeros(1, 1, 2, 2))
    assert OPERATIONS.class_names(network) == ()
    described = OPERATIONS.described(network, told_of(preprocessing=None, class_names=("no", "yes")))
    assert OPERATIONS.class_names(described) == ("no", "yes")
