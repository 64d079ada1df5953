"""ONNX files whose weights are in other files: read from one zip or folder, and from nowhere else."""

import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.external_data_helper import convert_model_to_external_data, write_external_data_tensors

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.onnx.open import open_onnx
from senseapp.networks.onnx.upload import read_file, with_weights_inside
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec
from tests.onnx_files import exported
from tests.small_models import small_network


@pytest.fixture(scope="module")
def whole() -> bytes:
    return exported(small_network())


@pytest.fixture
def apart(whole: bytes, tmp_path: Path) -> Path:
    """A folder as exporters leave it: the graph, and all weights in one file beside it."""
    folder = tmp_path / "apart"
    folder.mkdir()
    model = onnx.load_from_string(whole)
    convert_model_to_external_data(model, location="net.onnx.data", size_threshold=0)
    write_external_data_tensors(model, str(folder))
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    return folder


def zipped(folder: Path, target: Path, *, inside: str = "") -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, inside + path.name)
    return target


def weights_in(content: bytes) -> dict[str, np.ndarray]:
    graph = onnx.load_from_string(content).graph
    return {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}


@pytest.mark.parametrize("form", ["folder", "zip", "zip of a folder", "one file in a zip"])
def test_weights_of_other_files_are_inside(whole: bytes, apart: Path, tmp_path: Path, form: str) -> None:
    path = apart
    if form == "one file in a zip":
        path = tmp_path / "net.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("net.onnx", whole)
    elif form != "folder":
        path = zipped(apart, tmp_path / "net.zip", inside="a/b/" if form == "zip of a folder" else "")
    content = read_file(path)
    found, expected = weights_in(content), weights_in(whole)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert open_onnx(content).difference == open_onnx(whole).difference


def test_a_zip_is_a_model_with_its_own_name_and_a_word_on_what_is_delivered(apart: Path, tmp_path: Path) -> None:
    spec = ModelSpec(library="onnx", checkpoint=str(zipped(apart, tmp_path / "mine.zip")), task="classification")
    loaded = load_model(spec)
    assert spec.title == loaded.title == "mine.zip"
    assert any("one ONNX file with all weights inside" in note for note in loaded.notes)
    assert loaded.onnx is not None
    onnx.checker.check_model(loaded.onnx.content)


def test_a_graph_without_its_weights_is_refused_with_what_to_do(apart: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"in another file\. Choose both files together"):
        open_onnx(read_file(apart / "net.onnx"))  # the file beside it was not given
    (apart / "net.onnx.data").rename(apart / "other.data")
    for path in (apart, zipped(apart, tmp_path / "a.zip")):
        with pytest.raises(InvalidCheckpoint, match=r"in the file “net\.onnx\.data”, which did not come along"):
            read_file(path)


@pytest.mark.parametrize("place", ["../secret", "/etc/passwd", "a/../../secret", "..", ""])
def test_only_files_of_the_upload_are_read(apart: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "secret").write_bytes(b"\1" * 10_000)
    model = onnx.load(str(apart / "net.onnx"), load_external_data=False)
    next(entry for entry in model.graph.initializer[0].external_data if entry.key == "location").value = place
    (apart / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InvalidCheckpoint, match="did not come along"):
        read_file(apart)
    packed = zipped(apart, tmp_path / "a.zip")
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("x/../../secret", b"\1" * 10_000)
    with pytest.raises(InvalidCheckpoint, match="did not come along"):
        read_file(packed)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("offset", "1000000", "beyond the end"),
        ("offset", "-4", "beyond the end"),
        ("length", "99999999", "beyond the end"),
        ("length", "-1", "beyond the end"),
        ("offset", "many", "does not say where"),
    ],
)
def test_places_outside_the_file_are_refused(whole: bytes, key: str, value: str, sentence: str) -> None:
    model = onnx.load_from_string(whole)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for name, text in {"location": "d", "offset": "0", "length": "4", key: value}.items():
        tensor.external_data.add(key=name, value=text)
    with pytest.raises(InvalidCheckpoint, match=sentence):
        with_weights_inside(model.SerializeToString(), {"d": lambda: b"\0" * 64})


def test_one_file_that_many_tensors_name_stays_below_the_limit(whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("senseapp.networks.onnx.upload.MOST_BYTES", 100_000)
    model = onnx.load_from_string(whole)
    for number in range(3):
        tensor = model.graph.initializer.add(name=f"t{number}", dims=[10_000], data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="d")
    with pytest.raises(InvalidCheckpoint, match="larger than 2 GB"):
        with_weights_inside(model.SerializeToString(), {"d": lambda: b"\0" * 40_000})


def test_archives_without_one_graph_are_refused(whole: bytes, tmp_path: Path) -> None:
    for number, (files, sentence) in enumerate(
        [
            ({"a.data": b"x"}, r"no \.onnx file \(a\.data\)"),
            ({"a.onnx": whole, "b.onnx": whole}, r"several \.onnx files \(a\.onnx, b\.onnx\)"),
            ({"a.onnx": b"\0" * 30_000_000}, "more than 4 times its size"),
        ]
    ):
        path = tmp_path / f"{number}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        with pytest.raises(InvalidCheckpoint, match=sentence):
            read_file(path)
    (tmp_path / "cut.zip").write_bytes((tmp_path / "1.zip").read_bytes()[:-100])
    with pytest.raises(InvalidCheckpoint, match="cut short or is damaged"):
        read_file(tmp_path / "cut.zip")
