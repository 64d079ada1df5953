"""The notebook API: every argument of the reference, replay where inputs repeat, and a model that stays as it is."""

import json
import math
from collections.abc import Callable

import altair as alt
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from senseapp import SensitivityAnalyzer, analyze_sensitivity
from senseapp.core.errors import InfeasibleBudget, InvalidSpec, NoLayersSelected, UnsupportedModel
from senseapp.notebook import SensitivityResult
from tests.small_models import fingerprint, images_for, small_network
from tests.trap_models import PIXELS, OverwrittenInput

DATA = images_for(12)
IMAGES, LABELS = DATA.images, DATA.labels
CASES = [("sparsity", 50), ("pruning", 30), ("quantization", 4)]


def _loss_of(scores: Tensor, labels: Tensor = LABELS) -> float:
    return float(F.cross_entropy(scores.float(), labels).detach())


def _loss(model: nn.Module) -> float:
    return _loss_of(model(IMAGES))


def _loss_in_batches(model: nn.Module, size: int = 5) -> float:
    return sum(_loss_of(model(x), y) for x, y in zip(IMAGES.split(size), LABELS.split(size), strict=True))


def _analyze(
    model: nn.Module, eval_fn: Callable[[nn.Module], float] = _loss, *args: object, **given: object
) -> SensitivityResult:
    settings = {"higher_is_better": False, "metric_name": "loss", "verbose": False, **given}
    return analyze_sensitivity(model, IMAGES[:2], eval_fn, *args, **settings)  # type: ignore[arg-type]


def _plainly(eval_fn: Callable[[nn.Module], float]) -> Callable[[nn.Module], float]:
    """Return ``eval_fn`` with gradients on, under which every pass is a whole one."""

    def evaluate(model: nn.Module) -> float:
        with torch.enable_grad():
            return eval_fn(model)

    return evaluate


def _deltas(result: SensitivityResult) -> dict[str, float]:
    return {layer.name: layer.delta for layer in result.layers}


def _stem_runs(eval_fn: Callable[[nn.Module], float], *args: object, **given: object) -> int:
    """Return how often the first layer runs in an analysis of all six layers."""
    model, runs = small_network(), 0
    forward = model.stem.forward

    def counted(*inputs: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        return forward(*inputs)

    model.stem.forward = counted
    _analyze(model, eval_fn, *args, **given)
    return runs


@pytest.fixture(scope="module")
def sparse() -> SensitivityResult:
    return _analyze(small_network())


@pytest.fixture(scope="module")
def pruned() -> SensitivityResult:
    return _analyze(small_network(), _loss, "pruning", 30)


@pytest.mark.parametrize(("compression", "level"), CASES)
def test_replayed_numbers_are_those_of_whole_passes(compression: str, level: float) -> None:
    model = small_network()
    replayed = _analyze(model, _loss, compression, level)
    plain = _analyze(model, _plainly(_loss), compression, level)
    assert _deltas(replayed) == pytest.approx(_deltas(plain), abs=1e-6, nan_ok=True)
    assert max(abs(delta) for delta in _deltas(replayed).values() if not math.isnan(delta)) > 1e-3
    assert replayed.baseline_metric == pytest.approx(_loss(model), abs=1e-6)


@pytest.mark.parametrize("activations", [False, True])
def test_an_early_layer_is_not_computed_again_for_later_ones(activations: bool) -> None:
    setting = ("quantization", 4)
    replayed = _stem_runs(_loss, *setting, quant_activations=activations)
    # Once to move on from it, instead of once for each of the five later layers; and twice to check, on all images and
    # on other ones in between.
    assert _stem_runs(_plainly(_loss), *setting, quant_activations=activations) - replayed == 4 - 2


def _loss_of_shuffled() -> Callable[[nn.Module], float]:
    generator = torch.Generator().manual_seed(3)

    def loss(model: nn.Module) -> float:
        order = torch.randperm(len(IMAGES), generator=generator)[:6]
        return _loss_of(model(IMAGES[order]), LABELS[order])

    return loss


def _loss_of_one_buffer(model: nn.Module) -> float:
    buffer, total = torch.empty(6, 3, 8, 8), 0.0
    for x, y in zip(IMAGES.split(6), LABELS.split(6), strict=True):
        buffer.copy_(x)
        total += _loss_of(model(buffer[:]), y)
    return total


def _loss_in_inference_mode(model: nn.Module) -> float:
    with torch.inference_mode():
        return _loss_of(model(torch.stack(list(IMAGES))))


def _loss_in_half_precision(model: nn.Module) -> float:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        return _loss_of(model(IMAGES))


@pytest.mark.parametrize(
    ("make", "whole"),
    [
        (lambda: _loss_in_batches, _loss_in_batches),
        (_loss_of_shuffled, _loss_of_shuffled()),
        (lambda: _loss_of_one_buffer, _loss_of_one_buffer),
        (lambda: _loss_in_inference_mode, _loss),
        (lambda: _loss_in_half_precision, _loss_in_half_precision),
    ],
    ids=["batches", "shuffled", "one buffer", "inference mode", "half precision"],
)
def test_however_images_come_numbers_are_those_of_whole_passes(
    make: Callable[[], Callable[[nn.Module], float]], whole: Callable[[nn.Module], float]
) -> None:
    replayed, plain = (_deltas(_analyze(small_network(), each)) for each in (make(), _plainly(whole)))
    assert replayed == pytest.approx(plain, abs=1e-6)


def test_hooks_that_look_inside_see_every_call() -> None:
    def energies(model: nn.Module) -> float:
        seen: list[float] = []
        handle = model.blocks[0].conv1.register_forward_hook(lambda _m, _i, out: seen.append(float(out.abs().mean())))
        try:
            model(IMAGES[:6]), model(IMAGES[6:])
        finally:
            handle.remove()
        return sum(seen)

    found = _deltas(_analyze(small_network(), energies))
    assert found["stem"] != 0
    assert found["head"] == 0  # which comes after what is looked at


def test_a_model_that_writes_into_its_input_is_measured_on_the_images() -> None:
    torch.manual_seed(0)
    model, images = OverwrittenInput().eval(), torch.randn(6, 3, PIXELS, PIXELS)
    before = images.clone()
    labels = torch.arange(6) % 4

    def loss(network: nn.Module) -> float:
        return _loss_of(network(images.clone()), labels)

    replayed = analyze_sensitivity(model, images, loss, higher_is_better=False, verbose=False)
    plain = analyze_sensitivity(model, images, _plainly(loss), higher_is_better=False, verbose=False)
    assert _deltas(replayed) == pytest.approx(_deltas(plain), abs=1e-6)
    assert torch.equal(images, before)


@pytest.mark.parametrize(("compression", "level"), CASES)
@pytest.mark.parametrize("fails_at", [None, 3])
def test_the_model_comes_back_identical(compression: str, level: float, fails_at: int | None) -> None:
    model = small_network().train()
    model.stem.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    model.stem.register_forward_pre_hook(lambda *_: None)
    before, calls = fingerprint(model), iter(range(100))

    def loss(network: nn.Module) -> float:
        if next(calls) == fails_at:
            raise KeyError("my own mistake")
        return _loss(network)

    if fails_at is None:
        _analyze(model, loss, compression, level, quant_activations=True)
    else:
        with pytest.raises(KeyError, match="my own mistake"):
            _analyze(model, loss, compression, level, quant_activations=True)
    assert fingerprint(model) == before


def test_pruning_groups_share_one_row_content_and_what_cannot_be_pruned_says_so(pruned: SensitivityResult) -> None:
    rows = {layer.name: layer for layer in pruned.layers}
    members = ("stem", "blocks.0.conv2", "blocks.1.conv2")
    assert {rows[name].group_id for name in members} == {"stem"}
    assert {rows[name].group_members for name in members} == {members}
    assert len({rows[name].delta for name in members}) == 1
    assert rows["blocks.0.conv1"].group_id == ""
    assert not rows["head"].prunable
    assert rows["head"].reason
    assert math.isnan(rows["head"].delta)
    assert "head" not in {layer.name for layer in pruned.top(10)}
    targets = pruned.to_layer_targets(target_pct=40)
    assert len({targets[name] for name in members}) == 1
    assert "head" not in targets
    too_few = _analyze(small_network(), _loss, "pruning", 5)  # less than one of eight channels
    assert not any(layer.prunable for layer in too_few.layers)
    assert all(layer.reason for layer in too_few.layers)


def test_layers_are_chosen_by_name_pattern_and_type() -> None:
    model = small_network()
    assert list(_deltas(_analyze(model, layers=["*conv1"]))) == ["blocks.0.conv1", "blocks.1.conv1"]
    assert list(_deltas(_analyze(model, layer_types=["Linear"]))) == ["head"]
    with pytest.raises(NoLayersSelected):
        _analyze(model, layers=["nothing"])


def test_settings_change_what_is_measured() -> None:
    model = small_network()

    def deltas(*args: object, **given: object) -> list[float]:
        return list(_deltas(_analyze(model, _loss, *args, **given)).values())

    sparse = deltas("sparsity", 50)
    variants = [
        sparse,
        deltas("sparsity", 75),
        deltas("sparsity", 50, criteria="random"),
        deltas("sparsity", 50, criteria="wanda"),
        deltas("sparsity", 50, granularity="filter"),
        deltas("quantization", 4),
        deltas("quantization", 4, quant_per_channel=False),
        deltas("quantization", 4, quant_activations=True),
    ]
    assert all(first != second for i, first in enumerate(variants) for second in variants[:i])
    assert deltas("sparsity", 50, criteria="large_final") == sparse
    assert deltas("sparsity", 50, criteria="squared_final") == pytest.approx(sparse)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"compression": "distillation"}, "sparsity, pruning, quantization"),
        ({"granularity": "corner"}, "granularity must be one of"),
        ({"criteria": "taste"}, "criterion must be one of"),
        ({"compression": "pruning", "level": 0}, "%"),
        ({"compression": "pruning", "level": 100}, "%"),
        ({"compression": "pruning", "criteria": torch.neg}, "function of weights"),
        ({"criteria": 3}, "fasterai's object"),
        ({"level": 101}, "%"),
        ({"level": float("nan")}, "%"),
        ({"compression": "quantization", "level": 1}, "bits"),
        ({"compression": "quantization", "level": 4.5}, "bits"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        _analyze(small_network(), **given)


def test_higher_is_better_turns_the_sign() -> None:
    def accuracy(model: nn.Module) -> float:
        return float((model(IMAGES).argmax(1) == LABELS).double().mean())

    result = _analyze(small_network(), accuracy, "sparsity", 90, higher_is_better=True)
    for layer in result.layers:
        assert layer.delta == pytest.approx(layer.baseline_metric - layer.compressed_metric)
    worse = _analyze(small_network(), lambda model: -accuracy(model), "sparsity", 90)
    assert _deltas(worse) == pytest.approx(_deltas(result))


def test_a_sweep_gives_what_single_runs_give() -> None:
    analyzer = SensitivityAnalyzer(small_network(), IMAGES[:2], _loss, higher_is_better=False, metric_name="loss")
    results = analyzer.sweep("sparsity", [25, 75], verbose=False)
    assert [result.compression_level for result in results] == [25, 75]
    for result in results:
        alone = analyzer.analyze("sparsity", result.compression_level, verbose=False)
        assert _deltas(alone) == _deltas(result)
    assert len(analyzer.sweep(verbose=False)) == 3


def test_the_result_as_table_dictionary_and_words(
    sparse: SensitivityResult, capsys: pytest.CaptureFixture[str]
) -> None:
    result = sparse
    table = result.to_dataframe()
    assert list(table["name"]) == [layer.name for layer in result.layers]
    assert set(table.columns) >= {"params", "delta", "group_id", "group_members", "prunable", "ci_low", "ci_high"}
    assert result.as_dict()["layers"][0]["name"] == "stem"
    assert result.as_dict()["metric_name"] == "loss"
    assert result.as_dict()["layers"][0]["ci_low"] is None
    json.dumps(result.as_dict(), allow_nan=False)
    result.summary(top=2)
    printed = capsys.readouterr().out
    assert f"Baseline loss: {result.baseline_metric:.4f}" in printed
    assert result.top(1)[0].name in printed
    top, bottom = result.top(2), result.top(2, most_sensitive=False)
    assert top[0].delta >= top[1].delta >= bottom[1].delta >= bottom[0].delta


def test_plot_is_a_valid_chart_of_the_measured_layers(pruned: SensitivityResult) -> None:
    chart = pruned.plot()
    assert isinstance(chart, alt.Chart)
    drawn = chart.to_dict()  # validated against the Vega-Lite schema
    (rows,) = drawn["datasets"].values()
    assert [row["layer"] for row in rows] == [layer.name for layer in pruned.layers if layer.name != "head"]
    sized = pruned.plot(figsize=(14, 5)).to_dict()
    assert (sized["width"], sized["height"]) == (14 * 72, 5 * 72)
    assert sized["encoding"]["x"]["field"] == "layer"


def test_layer_targets_meet_the_mean_and_say_what_is_out_of_reach(sparse: SensitivityResult) -> None:
    model, result = small_network(), sparse
    targets = result.to_layer_targets(model, target_pct=50, min_pct=10, max_pct=80, gamma=1.5)
    params = {layer.name: layer.params for layer in result.layers}
    mean = sum(targets[name] * params[name] for name in targets) / sum(params.values())
    assert mean == pytest.approx(50, abs=0.05)
    assert all(10 <= percent <= 80 for percent in targets.values())
    assert min(targets, key=targets.__getitem__) == result.top(1)[0].name
    assert result.to_schedule(model, 50, 10, 80, 1.5) == targets
    with pytest.raises(InfeasibleBudget, match="80"):
        result.to_layer_targets(target_pct=90, max_pct=80)


class Criteria:
    """An object such as fasterai's: it scores with ``f``, against the weights at the start with ``output_fn``."""

    def __init__(self, f: Callable[[Tensor], Tensor], output_fn: Callable[..., Tensor] | None = None, **others: object):
        self.f, self.output_fn = f, output_fn
        self.__dict__.update(others)


def test_criteria_are_names_objects_or_functions_of_a_weight() -> None:
    model = small_network()

    def deltas(criteria: object) -> dict[str, float]:
        return _deltas(_analyze(model, criteria=criteria))

    by_name = deltas("large_final")
    assert deltas(Criteria(torch.abs)) == deltas(lambda weight: 3 * weight.abs()) == by_name
    assert deltas(Criteria(torch.abs, torch.min)) == by_name  # the weights at the start are those of now
    assert deltas(Criteria(torch.randn_like)) == deltas("random") == deltas("random")
    assert deltas(Criteria(torch.abs, needs_data=True)) == deltas("wanda")
    smallest = deltas(lambda weight: -weight.abs())
    with torch.no_grad():
        kept = model.stem.weight.clone()
        model.stem.weight *= kept.abs() <= kept.abs().flatten().sort().values[kept.numel() // 2 - 1]
        assert smallest["stem"] == pytest.approx(_loss(model) - _loss(small_network()), abs=1e-6)


def test_no_zeros_are_no_loss_and_nothing_but_zeros_is_a_layer_at_zero() -> None:
    model = small_network()
    none, every = (_analyze(model, level=level) for level in (0, 100))
    assert set(_deltas(none).values()) == {0.0}
    with torch.no_grad():
        model.stem.weight.zero_()
    assert _deltas(every)["stem"] == pytest.approx(_loss(model) - every.baseline_metric, abs=1e-6)


@pytest.mark.parametrize(
    ("compression", "level", "activations", "spelled"),
    [
        ("sparsity", 50, True, "sparsity"),
        ("quantization", 8, False, "quantization-8bit"),
        ("quantization", 16, True, "quantization-16bit+act"),
    ],
)
def test_the_compression_is_spelled_as_in_the_reference_and_gives_targets(
    compression: str, level: float, activations: bool, spelled: str
) -> None:
    result = _analyze(small_network(), _loss, compression, level, quant_activations=activations)
    assert result.compression_type == spelled
    assert result.level_text.startswith(f"{compression} at {level}")
    assert isinstance(result.layers, list)
    targets = result.to_layer_targets(small_network(), target_pct=40)
    params = {layer.name: layer.params for layer in result.layers}
    mean = sum(targets[name] * params[name] for name in params) / sum(params.values())
    assert mean == pytest.approx(40, abs=0.05)


def test_the_analyzer_shows_what_it_was_given() -> None:
    model = small_network()
    analyzer = SensitivityAnalyzer(model, IMAGES[:2], _loss, criteria="wanda", device="cpu", calibration_data=IMAGES)
    assert analyzer.model is model
    assert analyzer.criteria == "wanda"
    assert isinstance(model.stem, analyzer.COMPRESSIBLE_LAYERS)
    assert {"sparsity", "pruning", "quantization"} == analyzer.VALID_COMPRESSIONS
    wide = analyzer.analyze("sparsity", 50, verbose=False)
    narrow = SensitivityAnalyzer(model, IMAGES[:2], _loss, criteria="wanda").analyze("sparsity", 50, verbose=False)
    assert _deltas(wide) != _deltas(narrow)  # calibration_data counts, not the sample


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.extra, self.head = nn.Conv2d(3, 8, 3), nn.Linear(4, 8), nn.Linear(8, 5)

    def forward(self, image: Tensor, numbers: Tensor) -> dict[str, Tensor]:
        return {"scores": self.head(self.conv(image).mean((2, 3)) + self.extra(numbers))}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("compression", "level"), [("sparsity", 50), ("quantization", 4)])
def test_models_of_several_inputs_and_any_output_are_measured(compression: str, level: float, named: bool) -> None:
    model, image, numbers = TwoInputs().eval(), torch.randn(4, 3, 8, 8), torch.randn(4, 4)
    sample = {"image": image, "numbers": numbers} if named else (image, numbers)

    def total(network: nn.Module) -> float:
        return float(network(image, numbers)["scores"].sum())

    analyzer = SensitivityAnalyzer(model, sample, total, criteria="wanda")
    result = analyzer.analyze(compression, level, quant_activations=True, verbose=False)
    assert list(_deltas(result)) == ["conv", "extra", "head"]
    assert all(abs(delta) > 1e-4 for delta in _deltas(result).values())
    with pytest.raises(UnsupportedModel, match="one tensor"):
        SensitivityAnalyzer(model, sample, total).analyze("pruning", 50, verbose=False)


class ReadsAView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8 * 14 * 14, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.conv(images).view(len(images), -1))


@pytest.mark.parametrize("build", [small_network, ReadsAView])
def test_weights_keep_their_place_in_memory(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, images = build().eval(), torch.randn(4, 3, 16, 16)
    before = {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in model.named_parameters()}
    orders: set[bool] = set()

    def total(network: nn.Module) -> float:
        weights = (each for each in network.parameters() if each.dim() == 4 and each.shape[1] > 1 and each.shape[2] > 1)
        orders.update(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
        return float(network(images).sum())

    SensitivityAnalyzer(model, images[:1], total).analyze("quantization", 4, verbose=False)
    assert orders == {build is small_network}  # in the quick order where the model bears it
    assert {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in model.named_parameters()} == before


class _Stateful(nn.Module):
    """Counts its passes in a buffer and keeps the last features in an attribute; both change its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.head = nn.Linear(6, int(LABELS.max()) + 1)
        self.register_buffer("passes", torch.zeros(()))
        self.last: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        features = F.relu(self.stem(x)).mean((2, 3))
        scores = self.head(features + self.last) * (1 + self.passes)
        self.last = 0.5 * features.mean(0)
        return scores


def test_what_passes_write_to_the_model_changes_no_number_and_is_put_back() -> None:
    torch.manual_seed(0)
    model = _Stateful().eval()
    result = _analyze(model, _loss_in_batches)
    assert (float(model.passes), model.last) == (0.0, 0.0)
    expected = {}
    for name in ("stem", "head"):
        fresh = _Stateful().eval()
        fresh.load_state_dict(model.state_dict())
        weight = fresh.get_submodule(name).weight.data.view(-1)
        weight[weight.abs().argsort()[: weight.numel() // 2]] = 0
        expected[name] = _loss_in_batches(fresh)
    fresh = _Stateful().eval()
    fresh.load_state_dict(model.state_dict())
    baseline = _loss_in_batches(fresh)
    assert {layer.name: layer.compressed_metric for layer in result.layers} == pytest.approx(expected, rel=1e-6)
    assert result.baseline_metric == pytest.approx(baseline, rel=1e-6)
