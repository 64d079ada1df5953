"""ONNX files on the command line: a run like that of the network they were exported from, and what is refused."""

from pathlib import Path

import pytest
import timm
import torch

from senseapp.cli.main import main
from senseapp.core.codec import loads
from senseapp.records.measurement import RunResult, Status
from tests.cases import first_of
from tests.onnx_files import exported, fixed_to, write_export
from tests.small_models import NUM_CLASSES, small_network

SIDE = 32
RUN = ("--data", "random", "--samples", "24", "--device", "cpu")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The weights of a timm network, and its export."""
    folder = tmp_path_factory.mktemp("network")
    torch.manual_seed(0)
    module = timm.create_model("resnet10t", num_classes=7).eval()
    torch.save(module.state_dict(), folder / "net.pth")
    return folder / "net.pth", write_export(folder / "net.onnx", module, side=SIDE)


def analyzed(folder: Path, *arguments: str) -> RunResult:
    assert main(["analyze", *RUN, *arguments, "--out", str(folder)]) == 0
    return loads((folder / "result.json").read_text(), RunResult)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compression", "levels"), first_of([("pruning", "30,50"), ("sparsity", "50,80"), ("quantization", "8,3")])
)
def test_a_run_of_the_export_equals_that_of_the_network(files, tmp_path, compression, levels) -> None:
    weights, graph = map(str, files)
    how = ("--compression", compression, "--levels", levels)
    of_network = analyzed(
        tmp_path / "torch", "--model", "timm/resnet10t", "--checkpoint", weights, "--img-size", str(SIDE), *how
    )
    of_file = analyzed(tmp_path / "onnx", "--model", "onnx", "--checkpoint", graph, *how)
    assert [layer.name for layer in of_file.profile.layers] == [layer.name for layer in of_network.profile.layers]
    assert [layer.macs for layer in of_file.profile.layers] == [layer.macs for layer in of_network.profile.layers]
    assert of_file.method == "replay"
    wanted = {(item.layer, item.level): item for item in of_network.measurements}
    assert {(item.layer, item.level) for item in of_file.measurements} == wanted.keys()
    assert sum(item.status is Status.MEASURED for item in of_file.measurements) >= 20
    for item in of_file.measurements:
        other = wanted[item.layer, item.level]
        assert (item.status, item.members, item.removed_params) == (other.status, other.members, other.removed_params)
        if item.status is Status.MEASURED:
            found, known = item.change("kl"), other.change("kl")
            assert found is not None
            assert known is not None
            assert found.delta == pytest.approx(known.delta, rel=1e-4, abs=1e-7)


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.parametrize("batch", first_of([2, 1]))
def test_a_file_with_a_fixed_batch_is_measured_like_one_for_any_number(tmp_path: Path, batch: int) -> None:
    content = exported(small_network(seed=0), batch=batch)
    (tmp_path / "free.onnx").write_bytes(content)
    (tmp_path / "fixed.onnx").write_bytes(fixed_to(content, batch, NUM_CLASSES))
    how = ("--model", "onnx", "--compression", "sparsity", "--levels", "50,90", "--samples", "23")  # the last pass: one
    free, fixed = (
        analyzed(tmp_path / name, "--checkpoint", str(tmp_path / f"{name}.onnx"), *how) for name in ("free", "fixed")
    )
    assert fixed.passes.micro_batch <= batch < free.passes.micro_batch
    assert any("The file is fixed to" in note for note in fixed.notes)
    assert [layer.macs for layer in fixed.profile.layers] == [layer.macs for layer in free.profile.layers]
    for first, second in zip(fixed.measurements, free.measurements, strict=True):
        assert first.layer == second.layer
        assert first.change("kl").delta == pytest.approx(second.change("kl").delta, rel=1e-4)  # type: ignore[union-attr]
    if batch > 1:
        assert "There is no quick scan: the network is fixed to 2 images at a time." in fixed.notes
        return
    for first, second in zip(fixed.estimates, free.estimates, strict=True):
        assert first.change("kl").delta == pytest.approx(second.change("kl").delta, rel=1e-3)  # type: ignore[union-attr]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["analyze", *arguments, "--compression", "sparsity", "--levels", "50"]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    return line


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rest = ("--data", "random", "--samples", "4", "--out", str(tmp_path / "run"))
    graph = write_export(tmp_path / "net.onnx", small_network())
    assert "--model onnx measures an ONNX file, so it needs one. Add --checkpoint FILE." in refusal(
        capsys, "--model", "onnx", *rest
    )
    assert "--onnx-output is for an ONNX file, and the model is demo" in refusal(
        capsys, "--model", "demo", "--onnx-output", "a", *rest
    )
    asked = ("--model", "onnx", "--checkpoint", str(graph))
    assert "“nothing” cannot be an output" in refusal(capsys, *asked, "--onnx-output", "nothing", *rest)
    assert "fixed to images of 16 × 16" in refusal(capsys, *asked, "--img-size", "64", *rest)
    assert "The onnx networks are onnx, got onnx/net" in refusal(capsys, "--model", "onnx/net", *rest)
