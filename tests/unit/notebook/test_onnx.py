"""Notebooks analyse a network from an ONNX file as the module that it was exported from."""

from pathlib import Path

import pytest
import torch

import senseapp
from senseapp.core.errors import InvalidCheckpoint
from senseapp.reconstruct.write import onnx_model
from tests.onnx_files import exported, fixed_to
from tests.small_models import small_network


def test_layers_of_a_file_lose_what_those_of_the_module_lose(tmp_path: Path) -> None:
    module = small_network(seed=0).eval()
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    file = tmp_path / "network.onnx"
    file.write_bytes(onnx_model(module, images[:1]))
    opened = senseapp.open_onnx(file)  # type: ignore[attr-defined]
    labels = module(images).argmax(1)

    def accuracy_of(model: torch.nn.Module) -> float:
        with torch.no_grad():
            return float((model(images).argmax(1) == labels).float().mean())

    settings = {"compression": "sparsity", "level": 80, "higher_is_better": True, "metric_name": "accuracy"}
    found = [
        senseapp.analyze_sensitivity(model, images, accuracy_of, verbose=False, **settings)  # type: ignore[attr-defined]
        for model in (module, opened.network)
    ]
    losses = [sorted((layer.params, round(layer.delta, 6)) for layer in result.layers) for result in found]
    assert losses[0] == losses[1]
    assert found[1].layers


def test_a_file_fixed_to_several_images_is_analysed_on_any_number(tmp_path: Path) -> None:
    module = small_network(seed=0).eval()
    images = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    file = tmp_path / "network.onnx"
    file.write_bytes(fixed_to(exported(module), batch=2, width=len(module(images[:1])[0])))
    opened = senseapp.open_onnx(file)  # type: ignore[attr-defined]
    assert opened.batch == 2
    places = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])  # the file adds to each image its place in the batch
    torch.testing.assert_close(opened.network(images), module(images) + places[:, None])

    def spread(model: torch.nn.Module) -> float:
        with torch.no_grad():
            return float(model(images).std())

    result = senseapp.analyze_sensitivity(opened.network, images, spread, verbose=False)  # type: ignore[attr-defined]
    assert result.layers
    assert all(layer.compressed_metric == layer.compressed_metric for layer in result.layers)


def test_a_path_without_a_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"There is no ONNX file named nothing\.onnx\. Check its path"):
        senseapp.open_onnx(tmp_path / "nothing.onnx")  # type: ignore[attr-defined]
