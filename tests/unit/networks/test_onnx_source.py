"""An ONNX file as a model: outputs by task, preparation, names, sizes, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto
from torch import nn

from senseapp.core.errors import InvalidCheckpoint, InvalidInput, InvalidSpec, UnsupportedModel
from senseapp.metrics.detection.rows import BOX
from senseapp.networks.network import images_per_pass
from senseapp.networks.onnx.metadata import PREPARATION, described
from senseapp.networks.onnx.source import examine_onnx
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec
from senseapp.runtimes.onnxruntime.uploaded import UploadedRuntime
from senseapp.tasks import CLASSIFICATION
from senseapp.tasks.detection import DETECTION
from tests.cases import seldom
from tests.onnx_files import exported, fixed_to, write_export
from tests.onnx_graphs import by_onnxruntime, model_of, node, weights
from tests.small_models import NUM_CLASSES, small_network

CONV = weights(3, 3, 3, 3)
HEAD = [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "f")]


def spec_of(path: Path, **settings: Any) -> ModelSpec:
    return ModelSpec(library="onnx", checkpoint=str(path), **{"task": "classification"} | settings)


def written(path: Path, *args: Any, metadata: dict[str, str] | None = None, **kwargs: Any) -> Path:
    model = model_of(*args, **kwargs)
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    return path


def classifier(path: Path, *more: Any, outputs: tuple[str, ...] = ("f",), **kwargs: Any) -> Path:
    return written(path, [*HEAD, *more], {"w": CONV}, outputs=outputs, **kwargs)


def test_an_export_is_its_module(tmp_path: Path) -> None:
    module = small_network(seed=0)
    loaded = load_model(spec_of(write_export(tmp_path / "net.onnx", module)))
    images = torch.randn(5, 3, 16, 16)
    with torch.no_grad():
        assert torch.allclose(loaded.module(images), module(images), atol=1e-4)
    assert (loaded.title, loaded.num_classes, loaded.preprocessing.input_shape) == (
        "net.onnx",
        NUM_CLASSES,
        (3, 16, 16),
    )
    layers = {name for name, each in loaded.module.named_modules() if isinstance(each, nn.Conv2d | nn.Linear)}
    assert layers == {name for name, each in module.named_modules() if isinstance(each, nn.Conv2d | nn.Linear)}
    assert loaded.onnx is not None
    assert loaded.onnx.tensors["head.weight"].initializer == "head.weight"


def test_a_fixed_batch_takes_any_number_of_images(tmp_path: Path) -> None:
    module = small_network(seed=0)
    path = tmp_path / "three.onnx"
    path.write_bytes(fixed_to(exported(module, batch=3), 3, NUM_CLASSES))
    loaded = load_model(spec_of(path))
    assert loaded.onnx is not None
    assert loaded.onnx.batch == 3
    assert images_per_pass(loaded.module) == 3
    assert "The file is fixed to 3 images at a time" in loaded.notes[0]
    images = torch.randn(7, 3, 16, 16)
    with torch.no_grad():
        for few in (images, images[:3], images[:1]):
            places = torch.arange(len(few)) % 3
            assert torch.allclose(loaded.module(few), module(few) + places[:, None], atol=1e-4)


def test_of_several_outputs_the_one_like_answers_is_measured_and_the_others_are_named(tmp_path: Path) -> None:
    more = [node("Identity", "f", "features"), node("Relu", "f", "class_scores")]
    path = classifier(tmp_path / "a.onnx", *more, outputs=("features", "class_scores"))
    report = examine_onnx(spec_of(path))
    assert report.outputs == ("class_scores",)
    assert [each.name for each in report.candidates] == ["features", "class_scores"]
    assert report.notes[-2].startswith("Of several outputs of the file, 1 is not measured. ")
    assert "“" not in report.notes[-2]  # notes that quote a name are for experts
    assert report.notes[-1] == "Of several outputs “class_scores” is measured, not “features”."
    chosen = load_model(spec_of(path, outputs=("features",)))
    assert chosen.onnx is not None
    assert chosen.onnx.outputs == ("features",)
    assert not any("several outputs" in note for note in chosen.notes)


@pytest.mark.parametrize(
    "end", [None, node("Transpose", "s", "end", perm=[0, 2, 3, 1]), node("Squeeze", "s a", "end")], ids=str
)
def test_class_scores_with_axes_of_length_1_are_those_without(tmp_path: Path, end: Any) -> None:
    """(N, 3, 1, 1), (N, 1, 1, 3) and (N, 3, 1) of probabilities, which are measured before their softmax."""
    head = [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("GlobalAveragePool", "c", "p")]
    nodes = [*head, node("Softmax", "p", "s", axis=1), *([end] if end else [])]
    path = written(
        tmp_path / "net.onnx", nodes, {"w": weights(3, 3, 3, 3), "a": np.array([3])}, outputs=["end" if end else "s"]
    )
    loaded, images = load_model(spec_of(path)), torch.randn(1, 3, 8, 8)
    assert (loaded.num_classes, examine_onnx(spec_of(path)).problem) == (3, "")
    found = CLASSIFICATION.predictions(loaded.module(images))
    expected = by_onnxruntime(path.read_bytes(), images)[0].reshape(1, 3)
    assert np.allclose(found.softmax(1) if not end or end.op_type == "Squeeze" else found, expected, atol=1e-6)
    with pytest.raises(UnsupportedModel, match="These outputs could be classification or multilabel or values"):
        load_model(spec_of(path, task="segmentation"))


def test_a_file_without_an_output_of_the_task_lists_those_that_it_has(tmp_path: Path) -> None:
    path = classifier(tmp_path / "a.onnx", outputs=("c",))
    with pytest.raises(UnsupportedModel, match=r"No output of the file is one of .*“c” \(1, 3, 8, 8\)"):
        load_model(spec_of(path))
    with pytest.raises(InvalidInput, match=r"“q” cannot be an output of the file's network\. Choose from “c”"):
        load_model(spec_of(path, outputs=("q",)))


def test_class_names_and_preparation_are_those_in_the_file(tmp_path: Path) -> None:
    told = {"input_shape": [3, 8, 8], "mean": [0.1] * 3, "std": [0.2] * 3, "crop_pct": 0.9}
    told |= {"interpolation": "bicubic", "channel_order": "bgr"}
    metadata = {"senseapp.classes": '["a", "b", "c"]', "senseapp.preparation": json.dumps(told)}
    loaded = load_model(spec_of(classifier(tmp_path / "a.onnx", metadata=metadata)))
    assert loaded.class_names == ("a", "b", "c")
    assert loaded.preprocessing.channel_order == "bgr"
    assert loaded.preprocessing.crop_pct == 0.9
    assert loaded.notes == ()


PADDLEX = """Global:
  model_name: a text detector
Hpi:
  shapes: &id001
    x: [1, 3, 32, 32]
  others: *id001
PreProcess:
  transform_ops:
  - DecodeImage:
      img_mode: BGR
  - DetResizeForTest: null
  - NormalizeImage:
      mean: [0.485, 0.456, 0.406]
      std: [0.229, 0.224, 0.225]
      scale: 1./255.
PostProcess:
  name: DBPostProcess
"""
PADDLE_DETECTION = """mode: paddle
Preprocess:
- keep_ratio: false
  target_size: [640, 640]
  type: Resize
- norm_type: none
  type: NormalizeImage
label_list:
- a
"""


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (PADDLEX, ((0.485, 0.456, 0.406), "bgr", "stretch", "file")),
        (PADDLE_DETECTION, ((0.0, 0.0, 0.0), "rgb", "stretch", "file")),
        (PADDLEX.replace("[0.229", "[0.0"), ((0.485, 0.456, 0.406), "rgb", "crop", "assumed")),
        ("PreProcess:\n- [[", ((0.485, 0.456, 0.406), "rgb", "crop", "assumed")),
    ],
)
def test_settings_of_paddlex_beside_a_file_say_how_images_are_prepared(
    tmp_path: Path, told: str, expected: tuple[Any, ...]
) -> None:
    classifier(tmp_path / "net.onnx")
    (tmp_path / "inference.yml").write_text(told)
    loaded = load_model(spec_of(tmp_path))
    how = loaded.preprocessing
    assert (how.mean, how.channel_order, how.fit, loaded.preparation_evidence) == expected


@pytest.mark.parametrize(
    "metadata",
    [
        {"senseapp.classes": '["a", "b"]', "senseapp.preparation": "[" * 100_000},
        {"senseapp.classes": "{", "names": "__import__('os').getcwd()"},
        {"names": "{0: 'a', 1: 'b', 2: 3}", "senseapp.preparation": '{"input_shape": [3, 8, 9]}'},
    ],
)
def test_what_is_no_list_of_names_or_preparation_is_left_out(tmp_path: Path, metadata: dict[str, str]) -> None:
    loaded = load_model(spec_of(classifier(tmp_path / "a.onnx", metadata=metadata)))
    assert loaded.class_names == ()
    assert loaded.prepared_as == "mean and spread of ImageNet"


@pytest.mark.parametrize(
    ("first", "constant", "words"),
    [
        ("Div", 255.0, "values from 0 to 255"),
        ("Sub", 0.5, "values from 0 to 1"),
        ("Mul", 1 / 255, "values from 0 to 255"),
    ],
)
def test_normalisation_inside_the_file_tells_the_range_of_values(
    tmp_path: Path, first: str, constant: float, words: str
) -> None:
    nodes = [node(first, "x k", "n"), *HEAD]
    nodes[1] = node("Conv", "n w", "c", pads=[1, 1, 1, 1])
    path = written(
        tmp_path / "a.onnx", nodes, {"w": CONV, "k": np.full((1, 3, 1, 1), constant, np.float32)}, outputs=["f"]
    )
    loaded = load_model(spec_of(path))
    assert loaded.prepared_as == words
    assert loaded.preprocessing.std == ((1 / 255,) * 3 if words.endswith("255") else (1.0,) * 3)


def test_bytes_with_channels_last_come_as_images(tmp_path: Path) -> None:
    nodes = [node("Cast", "x", "f", to=TensorProto.FLOAT), node("Transpose", "f", "t", perm=[0, 3, 1, 2]),
             node("GlobalAveragePool", "t", "p"), node("Flatten", "p", "q"), node("MatMul", "q m", "y")]  # fmt: skip
    path = written(
        tmp_path / "a.onnx",
        nodes,
        {"m": np.eye(3, dtype=np.float32)},
        shape=(1, 8, 6, 3),
        element_type=TensorProto.UINT8,
    )
    loaded = load_model(spec_of(path))
    assert loaded.preprocessing.input_shape == (3, 8, 6)
    images = torch.randint(0, 256, (2, 3, 8, 6))
    normalised = (images / 255 - 0.0) / loaded.preprocessing.std[0]
    assert torch.allclose(loaded.module(normalised), images.float().mean((2, 3)), atol=1e-4)


@pytest.mark.parametrize(
    ("task", "img_size", "side"),
    [
        *(("classification", None, 224), ("detection", None, 640), ("segmentation", 96, 96)),
        seldom(("segmentation", None, 512)),
    ],
)
def test_a_file_of_any_size_is_proposed_the_usual_one_of_its_task(
    tmp_path: Path, task: str, img_size: int | None, side: int
) -> None:
    dense = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 1))
    path = write_export(tmp_path / "free.onnx", dense, free_size=True)
    assert examine_onnx(spec_of(path, task=task, img_size=img_size)).image_size == (side, side)


def test_a_free_size_is_chosen_and_a_fixed_one_is_kept(tmp_path: Path) -> None:
    path = write_export(tmp_path / "free.onnx", small_network(), free_size=True)
    report = examine_onnx(spec_of(path))
    assert (report.is_size_free, report.image_size) == (True, (224, 224))
    path.write_bytes(described(path.read_bytes(), {PREPARATION: '{"input_shape": [3, 48, 48]}'}))
    assert examine_onnx(spec_of(path)).image_size == (48, 48)
    assert load_model(spec_of(path, img_size=40)).preprocessing.input_shape == (3, 40, 40)
    fixed = write_export(tmp_path / "fixed.onnx", small_network())
    assert not examine_onnx(spec_of(fixed)).is_size_free
    with pytest.raises(InvalidSpec, match="fixed to images of 16 × 16 pixels, got img_size 40"):
        load_model(spec_of(fixed, img_size=40))


@pytest.mark.parametrize(
    "settings",
    [{"pretrained": True}, {"network": "ema"}, {"num_classes": 3}, {"in_chans": 3}],
    ids=lambda each: next(iter(each)),
)
def test_what_the_file_decides_cannot_be_set(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match="brings its own weights and sizes"):
        load_model(spec_of(classifier(tmp_path / "a.onnx"), **settings))


def test_outputs_belong_to_onnx_files() -> None:
    with pytest.raises(InvalidSpec, match="Outputs are chosen in an ONNX file; timm/resnet18 has its own"):
        ModelSpec(library="timm", name="resnet18", outputs=("a",))
    with pytest.raises(InvalidSpec, match="a file: give one"):
        load_model(ModelSpec(library="onnx", task="classification"))


def test_a_program_of_torch_is_refused_with_the_lines_that_export_it(tmp_path: Path) -> None:
    module = nn.Linear(2, 2)
    torch.jit.save(torch.jit.trace(module, torch.ones(1, 2)), str(tmp_path / "a.pt"))
    torch.export.save(torch.export.export(module, (torch.ones(1, 2),)), tmp_path / "a.pt2")
    with pytest.raises(InvalidCheckpoint, match=r"TorchScript.*torch\.jit\.load\('a\.pt'\).*torch\.onnx\.export"):
        load_model(spec_of(tmp_path / "a.pt"))
    with pytest.raises(InvalidCheckpoint, match=r"torch\.export.*\.pt2.*torch\.export\.load\('a\.pt2'\)"):
        load_model(spec_of(tmp_path / "a.pt2"))
    with pytest.raises(InvalidCheckpoint, match=r"torch\.export\.load"):
        load_model(replace(spec_of(tmp_path / "a.pt2"), library="auto"))


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no graph")
    (tmp_path / "empty.onnx").touch()
    for name, sentence in (("text", "not an ONNX model"), ("empty", "is empty"), ("missing", "no ONNX file named")):
        with pytest.raises(InvalidCheckpoint, match=sentence):
            load_model(spec_of(tmp_path / f"{name}.onnx"))
    write_export(tmp_path / "net.onnx", small_network())
    with pytest.raises(InvalidCheckpoint, match=r"not only weights\. Choose “Your network \(\.onnx\)”"):
        load_model(ModelSpec(library="auto", checkpoint=str(tmp_path / "net.onnx")))


def test_inputs_that_are_no_images_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.onnx", [node("MatMul", "x m", "y")], {"m": weights(6, 4)}, shape=(1, 6))
    with pytest.raises(UnsupportedModel, match=r"“x” has the shape \(1, 6\); images are \(N, C, H, W\)"):
        load_model(spec_of(path))


def test_a_detector_for_images_that_are_no_square_is_read_as_it_was_recognised(tmp_path: Path) -> None:
    """As PicoDet: classes and distances for each stride; half of the scores is taken away in a copy of the file."""
    nodes, stored, outputs = [], {}, {"classes": [], "sides": []}
    for stride in (8, 16, 32, 64):
        for kind, width in (("classes", 3), ("sides", 32)):
            name = f"{kind}.{stride}"
            stored[f"{name}.weight"] = weights(width, 3, stride, stride, seed=stride) / stride
            nodes.append(node("Conv", f"x {name}.weight", f"{name}.maps", strides=[stride] * 2, auto_pad="SAME_UPPER"))
            shares = kind == "classes"
            nodes += [node("Sigmoid", f"{name}.maps", f"{name}.shares")] if shares else []
            stored[f"{name}.shape"] = np.array([0, width, -1])
            nodes += [
                node("Reshape", f"{name}.{'shares' if shares else 'maps'} {name}.shape", f"{name}.flat"),
                node("Transpose", f"{name}.flat", name, perm=[0, 2, 1]),
            ]
            outputs[kind].append(name)
    names = (*outputs["classes"], *outputs["sides"])
    path = written(tmp_path / "detector.onnx", nodes, stored, shape=(1, 3, 96, 64), outputs=names)
    model = load_model(spec_of(path, task="detection"))
    assert model.num_classes == 3
    assert any("maps of strides 8, 16, 32, 64" in note for note in model.notes)
    images = torch.rand(2, 3, 96, 64)
    rows = DETECTION.output(model.module(images))
    assert rows.shape[:2] == (2, 12 * 8 + 6 * 4 + 3 * 2 + 2 * 1)
    raw = [torch.from_numpy(each) for each in by_onnxruntime(path.read_bytes(), images[:1])]
    steps = raw[4].reshape(-1, 4, 8).softmax(dim=2) @ torch.arange(8.0)  # of stride 8: left, top, right, bottom
    middle = 8 * (torch.stack(torch.meshgrid(torch.arange(12.0), torch.arange(8.0), indexing="ij")[::-1], dim=2) + 0.5)
    corners = torch.cat([middle.reshape(-1, 2) - 8 * steps[:, :2], middle.reshape(-1, 2) + 8 * steps[:, 2:]], dim=1)
    torch.testing.assert_close(rows[0, :96, BOX], corners, atol=1e-3, rtol=1e-4)
    assert model.onnx is not None
    found = DETECTION.output(UploadedRuntime(model.onnx).open(path.read_bytes()).run(images[:1]))
    torch.testing.assert_close(found, rows[:1], atol=1e-3, rtol=1e-4)
