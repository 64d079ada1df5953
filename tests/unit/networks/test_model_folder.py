"""Folders and zips of ``config.json`` and weights: timm's own reading is the reference, hostile ones are refused."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.fitting import look_alikes
from senseapp.networks.checkpoints.model_folder import read_config
from senseapp.networks.loaded import LoadedModel
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec
from senseapp.server.model_cards import compare_checkpoint, identify_checkpoint, same_model
from senseapp.server.settings import check_paths

ARGUMENTS: dict[str, Any] = {"num_classes": 4, "img_size": 64, "global_pool": "avg", "act_layer": "relu"}
NAMES = ["ant", "bee", "cat", "dog"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vision transformer with three settings that its shapes do not tell, as timm saves it for the hub."""
    folder = tmp_path_factory.mktemp("timm") / "net"
    torch.manual_seed(0)
    module = timm.create_model("test_vit", **ARGUMENTS)
    prepared = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2]}
    save_for_hf(module, str(folder), model_args=ARGUMENTS, data_config=prepared, safe_serialization=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"label_names": NAMES}))
    return folder


def zipped(folder: Path, target: Path, *, inside: str = "", method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(target, "w", method) as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, inside + path.name)
    return target


def changed(saved: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    shutil.copytree(saved, folder)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def load(path: Path, library: str = "auto", name: str = "") -> LoadedModel:
    return load_model(ModelSpec(library=library, name=name, checkpoint=str(path)))


@pytest.mark.parametrize("form", ["folder", "zip of a folder", "stored zip", "by name"])
def test_a_folder_is_read_as_timm_reads_it(saved: Path, tmp_path: Path, form: str) -> None:
    path = saved
    if form not in ("folder", "by name"):
        path = zipped(
            saved,
            tmp_path / "net.zip",
            inside="repo-main/" if form == "zip of a folder" else "",
            method=zipfile.ZIP_STORED if form == "stored zip" else zipfile.ZIP_DEFLATED,
        )
    loaded = load(path, *(("timm", "test_vit") if form == "by name" else ()))
    reference = timm.create_model(f"local-dir:{saved}", pretrained=True).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(loaded.module(images), reference(images))
    prepared = timm.data.resolve_model_data_config(reference)
    assert (loaded.preprocessing.mean, loaded.preprocessing.std) == (tuple(prepared["mean"]), tuple(prepared["std"]))
    assert loaded.preprocessing.input_shape == (3, 64, 64)  # of its patches; timm's own words are the architecture's
    assert loaded.class_names == tuple(NAMES)
    assert loaded.prepared_as == "as config.json says"
    assert loaded.title == "timm/test_vit"


def test_the_page_proposes_what_the_config_names(saved: Path, tmp_path: Path) -> None:
    path = zipped(saved, tmp_path / "net.zip")
    report = identify_checkpoint(str(path))
    assert report.verdict == "config.json names timm/test_vit: every name and shape fits."
    assert report.proposal == ModelSpec(library="timm", name="test_vit", checkpoint=str(path))
    assert compare_checkpoint(report.proposal).fits
    assert look_alikes(report.spec)[0] == (report.proposal,)


def test_weights_of_another_architecture_are_recognised_and_that_is_said(saved: Path, tmp_path: Path) -> None:
    folder = changed(saved, tmp_path / "net", lambda config: config.update(architecture="test_resnet", model_args={}))
    save_file(timm.create_model("resnet10t", num_classes=4).state_dict(), folder / "model.safetensors")
    loaded = load(folder)
    assert loaded.title == "timm/resnet10t"
    assert any(note.startswith("config.json describes timm/test_resnet, and these weights") for note in loaded.notes)
    assert loaded.prepared_as != "as config.json says"


def test_a_zip_of_weights_alone_is_read_too(tmp_path: Path) -> None:
    torch.save(timm.create_model("resnet10t", num_classes=3).state_dict(), tmp_path / "last.pth")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "last.pth", "out/last.pth")
    assert load(tmp_path / "a.zip").title == "timm/resnet10t"


def test_the_folder_of_another_library_is_refused_with_the_lines_that_export_it(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    config = {"architectures": ["ViTForImageClassification"], "id2label": {"0": "ant", "1": "bee"}}
    (tmp_path / "net" / "config.json").write_text(json.dumps(config))
    save_file({"vit.embeddings.cls_token": torch.ones(1, 1, 8)}, tmp_path / "net" / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"another library \(ViTForImageClassification\).*torch\.onnx\.export"):
        load(tmp_path / "net")
    save_file(timm.create_model("resnet10t", num_classes=2).state_dict(), tmp_path / "net" / "model.safetensors")
    loaded = load(tmp_path / "net")
    assert (loaded.title, loaded.class_names) == ("timm/resnet10t", ("ant", "bee"))
    assert any("written for ViTForImageClassification" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda config: config.update(architecture="no_such_net"), "no architecture named “no_such_net”"),
        (lambda config: config["model_args"].update(checkpoint_path="/etc/passwd"), "“checkpoint_path” is no argument"),
        (lambda config: config["model_args"].update(pretrained=True), "“pretrained” is no argument"),
        (lambda config: config["model_args"].update(features_only=True), "“features_only” is no argument"),
        (lambda config: config["model_args"].update(depth=10**9), "depth must be .* got 1000000000"),
        (lambda config: config["model_args"].update(depth={"a": 1}), "depth must be .* got .'a': 1"),
        (lambda config: config["model_args"].update(nonsense=3), "cannot be built as config.json"),
        (lambda config: config["pretrained_cfg"].update(std=[0, 0, 0]), "std must be a finite number from 1e-06"),
        (lambda config: config["pretrained_cfg"].update(mean="0.5"), "mean must be a list, got"),
        (lambda config: config["pretrained_cfg"].update(mean=[float("nan")]), "NaN is no number"),
        (lambda config: config["pretrained_cfg"].update(input_size=[3, 10**400, 8]), "input_size must be a whole"),
        (lambda config: config["pretrained_cfg"].update(input_size=[3, 8.5, 8]), "input_size must be a whole"),
        (lambda config: config["pretrained_cfg"].update(input_size=[3, 8]), "input_size is a list of 3 numbers"),
        (lambda config: config["pretrained_cfg"].update(crop_pct=True), "crop_pct must be a finite number"),
        (lambda config: config["model_args"].update(depth=10**400), "depth must be a finite number"),
        (lambda config: config.update(num_classes=True), "num_classes must be a whole number .* got True"),
        (
            lambda config: config["pretrained_cfg"].update(crop_pct=-1),
            "crop_pct must be a finite number from 0.01 to 1",
        ),
        (lambda config: config.update(num_classes="many"), "num_classes must be a whole number .* got 'many'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_no_network_is_built_with_are_refused(
    saved: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    with pytest.raises(InvalidCheckpoint, match=sentence):
        load(changed(saved, tmp_path / "net", change))


def test_sources_of_weights_in_the_config_are_not_followed(saved: Path, tmp_path: Path) -> None:
    """An address, a path and a repository beside the weights name other weights; only those in the folder are read."""
    elsewhere = {"url": "http://localhost:9/x", "file": "/etc/passwd", "hf_hub_id": "a/b", "custom_load": True}
    folder = changed(saved, tmp_path / "net", lambda config: config["pretrained_cfg"].update(elsewhere))
    head = load(folder).module.get_parameter("head.weight")
    assert torch.equal(head, load(saved).module.get_parameter("head.weight"))


@pytest.mark.parametrize(
    "content", [b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"architecture": "a"}' + b" " * 5_000_000]
)
def test_a_config_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"^config\.json in net cannot be used"):
        read_config(content, of="net")


def test_archives_without_one_network_are_refused(saved: Path, tmp_path: Path) -> None:
    for number, (files, sentence) in enumerate(
        [
            ({"config.json": b"{}"}, "no file of weights"),
            ({"a.pth": b"", "b.pth": b""}, "several files of weights"),
            ({"model-00001-of-00002.safetensors": b""}, "in several parts"),
            ({"model.safetensors": b"\0" * 30_000_000}, "more than 4 times its size"),
            ({f"{each}.txt": b"" for each in range(1001)}, "more than 1,000 files"),
            ({"config.json": (saved / "config.json").read_bytes(), "../model.safetensors": b"x"}, "no file of weights"),
        ]
    ):
        path = tmp_path / f"{number}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        with pytest.raises(InvalidCheckpoint, match=sentence):
            load(path)
    (tmp_path / "cut.zip").write_bytes(zipped(saved, tmp_path / "a.zip").read_bytes()[:-200])
    with pytest.raises(InvalidCheckpoint, match="cut short or is damaged"):
        load(tmp_path / "cut.zip")


def test_nothing_is_left_of_an_unpacked_archive(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    load(zipped(saved, tmp_path / "net.zip"))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_folders_of_equal_files_are_one_model(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "copy")
    first, second = (ModelSpec(library="auto", checkpoint=str(each)) for each in (saved, tmp_path / "copy"))
    assert same_model(first, second)
    save_file({"a": torch.ones(1)}, tmp_path / "copy" / "model.safetensors")
    assert not same_model(first, second)


def test_a_folder_whose_weights_are_a_link_to_elsewhere_is_refused_by_the_app(saved: Path, tmp_path: Path) -> None:
    from senseapp.records.spec import RunSpec

    allowed = tmp_path / "allowed"
    shutil.copytree(saved, allowed / "net")
    spec = RunSpec(model=ModelSpec(library="auto", checkpoint=str(allowed / "net")))
    check_paths(spec, (allowed,))
    (allowed / "net" / "model.safetensors").unlink()
    (allowed / "net" / "model.safetensors").symlink_to(saved / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match="only from uploads"):
        check_paths(spec, (allowed,))
