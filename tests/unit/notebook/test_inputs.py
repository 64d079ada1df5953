"""What people hand to the notebook API works, or is refused in a sentence; a structure that cannot go has a reason."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d
from timm.layers.norm_act import freeze_batch_norm_2d
from torch import Tensor, nn

from senseapp import SensitivityAnalyzer, analyze_sensitivity
from senseapp.core.errors import InvalidDataset, UnsupportedModel
from senseapp.notebook import SensitivityResult
from tests.small_models import images_for, small_network

DATA = images_for(6)
CASES = [("sparsity", 50), ("pruning", 40), ("quantization", 4)]


def _loss(model: nn.Module) -> float:
    return float(F.cross_entropy(model(DATA.images), DATA.labels))


def _analyzed(model: Any, sample: Any, *args: Any, eval_fn: Callable[[Any], float] = _loss) -> SensitivityResult:
    return analyze_sensitivity(model, sample, eval_fn, *args, higher_is_better=False, verbose=False)


def _deltas(result: SensitivityResult) -> dict[str, float]:
    return {layer.name: layer.delta for layer in result.layers}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:`torch.jit:FutureWarning")
@pytest.mark.parametrize("compile_", [torch.jit.script, lambda model: torch.jit.trace(model, DATA.images[:1])])
def test_a_torchscript_module_is_refused_with_what_to_give(compile_: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"TorchScript module.*Give the nn\.Module"):
        SensitivityAnalyzer(compile_(nn.Sequential(nn.Conv2d(3, 4, 3))), DATA.images, _loss)


@pytest.mark.parametrize(
    ("model", "words"), [(lambda x: x, "got function"), (None, "got NoneType"), (nn.ReLU(), "no parameters")]
)
def test_what_is_no_network_is_refused(model: Any, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        SensitivityAnalyzer(model, DATA.images, _loss)


SAMPLES: dict[str, Any] = {
    "list of images": list(DATA.images[:2]),
    "list of one batch": [DATA.images[:2]],
    "tuple of one batch": (DATA.images[:2],),
    "dict with one tensor": {"x": DATA.images[:2]},
}


@pytest.mark.parametrize("case", CASES, ids=[compression for compression, _ in CASES])
def test_one_batch_may_come_in_several_forms(case: tuple[str, float]) -> None:
    expected = _deltas(_analyzed(small_network(), DATA.images[:2], *case))
    for kind, sample in SAMPLES.items():
        found = _deltas(_analyzed(small_network(), sample, *case))
        assert found == pytest.approx(expected, abs=1e-6, nan_ok=True), kind


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ([torch.zeros(3, 8, 8), torch.zeros(3, 9, 8)], "several shapes"),
        ("pictures", "holds no tensor, got str"),
        ([], "holds no tensor, got list"),
        (None, "holds no tensor, got NoneType"),
        (DATA.images.numpy(), "holds no tensor, got ndarray"),
        ({}, "holds no tensor, got dict"),
    ],
)
def test_what_is_no_batch_is_refused(sample: Any, words: str) -> None:
    with pytest.raises(InvalidDataset, match=words):
        _analyzed(small_network(), sample)


def test_a_dict_that_the_network_does_not_take_is_refused_in_a_sentence() -> None:
    with pytest.raises(UnsupportedModel, match=r"cannot take an image of shape \(3, 8, 8\)"):
        _analyzed(small_network(), {"pixel_values": DATA.images, "mask": DATA.images})


class _Frozen(nn.Module):
    """The norm holds a number of each channel that nobody is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), freeze_batch_norm_2d(BatchNormAct2d(8).eval())
        self.second, self.head = nn.Conv2d(8, 6, 3), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.second(self.norm(self.first(x)).relu()).mean((2, 3)))
        return scores


def test_a_structure_that_cannot_be_pruned_does_not_end_the_analysis() -> None:
    torch.manual_seed(0)
    result = _analyzed(_Frozen().eval(), DATA.images[:2], "pruning", 40)
    rows = {layer.name: layer for layer in result.layers}
    assert not rows["first"].prunable
    assert "does not run without some of its channels" in rows["first"].reason
    assert math.isfinite(rows["second"].delta)


def test_a_network_that_fails_only_when_it_is_compressed_is_a_reason_and_eval_fn_s_own_mistake_is_raised() -> None:
    class Guarded(nn.Module):
        """Fails where the first layer's channels are fewer than when it was made, on the images measured only."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Conv2d(3, 8, 1), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            features = self.first(x)
            if len(x) > 2 and self.first.out_channels < 8:
                raise KeyError("eight channels")
            scores: Tensor = self.head(features.mean((2, 3)))
            return scores

    result = _analyzed(Guarded().eval(), DATA.images[:2], "pruning", 40)
    assert result.layers[0].reason == "The compressed model failed: KeyError: 'eight channels'."

    def own(model: nn.Module) -> float:
        if model.first.out_channels < 8:
            raise KeyError("my own mistake")
        return _loss(model)

    with pytest.raises(KeyError, match="my own mistake"):
        _analyzed(Guarded().eval(), DATA.images[:2], "pruning", 40, eval_fn=own)
