"""Whether int8 pays: predicted from shapes and from a first file, and never offered as quicker where it is not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from senseapp.compressions import QuantizationConfig
from senseapp.core.errors import InvalidSpec
from senseapp.descriptions.runtimes import RUNTIMES
from senseapp.networks.operations import glue_of
from senseapp.prove import int8_files
from senseapp.prove import probe as prove_probe
from senseapp.prove.decision import decision, dominates
from senseapp.prove.deliver import runtime_candidates
from senseapp.prove.deploy import original_source
from senseapp.prove.file_times import FileTimes
from senseapp.prove.probe import predict_int8, try_int8
from senseapp.records.deployment import DeploySettings, Median, OperatorTime, operator_shares
from senseapp.records.probe import GlueCost, GlueKind, GlueVolume, Int8Prediction, LayerShape, ProbedCosts, ShapeCost
from senseapp.runtimes.onnxruntime import timing
from senseapp.runtimes.onnxruntime.probing import probe
from senseapp.runtimes.onnxruntime.profile import PROFILER
from senseapp.tasks import CLASSIFICATION
from tests.deployments import a_candidate
from tests.small_evaluator import evaluator_of
from tests.small_models import images_for, small_network
from tests.toy_runtime import OPERATIONS, TOY, ToyRuntime

BORDER = 1e-9


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove_probe, "is_busy", lambda: False)


class Gated(nn.Module):
    """Of images (2, 8, 8): a convolution, its product with a gate, a sum, attention over the pixels, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.depthwise, self.head = (
            nn.Conv2d(2, 4, 3, padding=1),
            nn.Conv2d(4, 4, 1, groups=4),
            nn.Linear(4, 3),
        )

    def forward(self, images: Tensor) -> Tensor:
        found = nn.functional.silu(self.conv(images))
        found = self.depthwise(found) + found
        tokens = found.flatten(2).transpose(1, 2)[:, None]  # (N, 1, 64, 4)
        tokens = nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return self.head(nn.functional.gelu(tokens[:, 0]).mean(1))


@dataclass
class ProbedRuntime(ToyRuntime):
    """Takes a nanosecond for each weight of a layer in float, a third of that in int8; remembers what it timed."""

    timed: list[LayerShape] = field(default_factory=list)
    glue: list[GlueKind] = field(default_factory=list)
    unknown: int = -1

    def probe(self, layers: Sequence[LayerShape], glue: Sequence[GlueKind], *, threads: int = 1) -> ProbedCosts:
        self.timed += layers
        self.glue += glue
        costs = (
            ShapeCost(shape=each, float_seconds=1e-9 * weights, int8_seconds=1e-9 * weights / 3)
            for each in layers
            if (weights := torch.Size(each.weight).numel()) != self.unknown
        )
        kinds = (GlueCost(kind=kind, float_seconds=1e-10, int8_seconds=5e-10) for kind in glue)
        return ProbedCosts(layers=tuple(costs), glue=tuple(kinds), border_seconds=BORDER)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return Gated().eval()


@pytest.fixture(scope="module")
def profile(network: nn.Module):
    images = torch.zeros(1, 2, 8, 8)
    from senseapp.networks.profile import profile_model

    return profile_model(network, images, task=CLASSIFICATION, title="gated")


def test_operations_between_layers_are_counted_for_one_image(network: nn.Module) -> None:
    found = {each.kind: each.values for each in glue_of(network, torch.zeros(2, 2, 8, 8))}
    pixels = 64
    assert found == {
        "silu": 4 * pixels,
        "add": 4 * pixels,
        "softmax": pixels * pixels,
        "matmul": 2 * pixels * pixels * 4,
        "gelu": 4 * pixels,
        "pool": 4 * pixels,
    }


def test_a_prediction_is_the_sum_of_its_parts(network: nn.Module, profile, tmp_path: Path) -> None:
    glue = glue_of(network, torch.zeros(1, 2, 8, 8))
    found = predict_int8(profile, glue, ProbedRuntime(), kept=tmp_path / "probes")
    weights = sum(layer.num_params for layer in profile.layers)
    values = sum(each.values for each in glue)
    real = 1e-9 * weights + 1e-10 * values
    whole = 1e-9 * weights / 3 + 5e-10 * values + BORDER * (2 * 64 + 3)
    assert found.float_seconds == pytest.approx(real)
    assert found.ratio == pytest.approx(whole / real)
    assert found.low < found.ratio < found.high
    assert found.costly[0].name == "matmul"
    assert found.machine == ProbedRuntime().machine()
    assert found.bytes_per_second > 1e7


def test_what_was_timed_is_not_timed_again(profile, tmp_path: Path) -> None:
    first, second, third = ProbedRuntime(), ProbedRuntime(), ProbedRuntime()
    one = predict_int8(profile, (), first, kept=tmp_path / "probes")
    again = predict_int8(profile, (GlueVolume(kind="add", values=8),), second, kept=tmp_path / "probes")
    assert len(first.timed) == 3
    assert second.timed == []
    assert second.glue == ["add"]
    assert again.float_seconds == pytest.approx(one.float_seconds + 8e-10)
    (kept,) = (tmp_path / "probes").glob("*.json")
    kept.write_text('{"type": "broken')
    assert predict_int8(profile, (), third, kept=tmp_path / "probes").ratio == pytest.approx(one.ratio)
    assert len(third.timed) == 3


def test_a_busy_machine_is_less_sure_and_keeps_nothing(
    profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sure = predict_int8(profile, (), ProbedRuntime(), kept=tmp_path / "quiet")
    monkeypatch.setattr(prove_probe, "is_busy", lambda: True)
    unsure = predict_int8(profile, (), ProbedRuntime(), kept=tmp_path / "busy")
    assert unsure.ratio == sure.ratio
    assert unsure.low < sure.low
    assert list((tmp_path / "busy").iterdir()) == []


def test_without_a_home_nothing_is_kept(profile, tmp_path: Path) -> None:
    predict_int8(profile, (), ProbedRuntime(), kept=tmp_path / "missing" / "probes")
    assert list(tmp_path.iterdir()) == []


def test_a_network_of_other_layers_is_not_predicted(profile, tmp_path: Path) -> None:
    runtime = ProbedRuntime(unknown=profile.layers[0].num_params)
    with pytest.raises(InvalidSpec, match="no layer whose int8 can be timed alone"):
        predict_int8(profile, (), runtime, kept=tmp_path / "probes")
    with pytest.raises(InvalidSpec, match="not known before a file is made"):
        predict_int8(profile, (), OPERATIONS, kept=tmp_path / "others")


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [(0.4, 0.9, "Int8 pays here: about 0.60"), (1.1, 1.3, "Int8 does not pay here"), (0.9, 1.2, "is not clear")],
)
def test_the_sentence_says_no_more_than_the_interval(low: float, high: float, says: str) -> None:
    found = Int8Prediction(
        ratio=0.6, low=low, high=high, float_seconds=1, int8_seconds=1, costly=(), machine="m", products="VNNI",
        bytes_per_second=1e10,
    )  # fmt: skip
    assert says in found.sentence
    assert "multiplies 8 bits by VNNI" in found.machine_sentence
    assert "has no instructions" in replace(found, products="").machine_sentence


# ---- onnxruntime


SHAPES = [
    LayerShape(input_shape=(8, 12, 12), output_shape=(16, 6, 6), weight=(16, 8, 3, 3)),
    LayerShape(input_shape=(16, 6, 6), output_shape=(16, 6, 6), weight=(16, 1, 3, 3)),
    LayerShape(input_shape=(10, 16), output_shape=(10, 32), weight=(32, 16)),
    LayerShape(input_shape=(32,), output_shape=(5,), weight=(5, 32)),
]


def test_times_are_taken_on_numbers_of_usual_size() -> None:
    """Some processors compute shares below 1e-38 ten times as slowly."""
    from senseapp.runtimes.onnxruntime.bench import usual_input

    scores = torch.from_numpy(usual_input((3, 197, 197), np.float32))
    assert float(scores.softmax(-1).min()) > 1e-38
    assert usual_input((50,), np.uint8).max() > 100


@pytest.mark.slow
def test_onnxruntime_times_layers_and_what_is_between_them() -> None:
    strange = LayerShape(input_shape=(7, 4, 4), output_shape=(8, 4, 4), weight=(8, 3, 3, 3))
    kinds: list[GlueKind] = ["add", "mul", "silu", "hardswish", "gelu", "softmax", "layer_norm", "pool", "matmul"]
    found = probe([*SHAPES, strange], kinds, profiler=PROFILER)
    assert [each.shape for each in found.layers] == SHAPES
    assert all(each.float_seconds > 0 and each.int8_seconds > 0 for each in found.layers)
    assert [each.kind for each in found.glue] == kinds
    softmax = next(each for each in found.glue if each.kind == "softmax")
    assert softmax.int8_seconds > softmax.float_seconds > 0  # which is computed in float, between roundings
    assert found.border_seconds > 0


def test_operators_are_called_alike_in_float_and_in_int8() -> None:
    from senseapp.runtimes.onnxruntime.bench import product_bench
    from senseapp.runtimes.onnxruntime.probing import _product

    products = [product for shape in SHAPES if (product := _product(shape)) is not None]
    real, whole = (timing.operators(product_bench(products, int8=int8), profiler=PROFILER) for int8 in (False, True))
    shares = {each.kind: each for each in operator_shares(real, whole)}
    assert shares["Conv"].original_calls == shares["Conv"].calls == 2
    assert shares["QuantizeLinear"].is_border
    assert shares["QuantizeLinear"].original_calls == 0 < shares["QuantizeLinear"].calls


def test_operators_of_two_files_stand_side_by_side() -> None:
    before = [OperatorTime(kind="Conv", calls=3, seconds=3.0), OperatorTime(kind="Gelu", calls=1, seconds=0.5)]
    after = [OperatorTime(kind="QuantizeLinear", calls=2, seconds=4.0, is_border=True), replace(before[0], seconds=1.0)]
    found = operator_shares(before, after)
    assert [(each.kind, each.original_seconds, each.seconds) for each in found] == [
        ("QuantizeLinear", 0.0, 4.0),
        ("Conv", 3.0, 1.0),
        ("Gelu", 0.5, 0.0),
    ]
    assert [each.is_border for each in found] == [True, False, False]


# ---- never slower than float


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    RUNTIMES.register(TOY)
    yield
    RUNTIMES.pop(TOY.name, None)


def backwards(_: ToyRuntime, networks, images: Tensor, *, turns: int = 41) -> list[list[float]]:
    """Fewer bytes take longer: int8 does not pay."""
    return [[1 / network.num_bytes] * turns for network in networks]


@pytest.mark.slow
def test_a_first_file_says_what_int8_takes(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = evaluator_of(small_network(), QuantizationConfig())
    network = evaluator.original_file(OPERATIONS)
    found = try_int8(OPERATIONS, network, [images_for(4).batch(0, 4)])
    assert found.from_file
    assert found.ratio == found.low == found.high < 1
    monkeypatch.setattr(ToyRuntime, "times", backwards)
    slower = try_int8(OPERATIONS, network, [images_for(4).batch(0, 4)])
    assert slower.ratio == pytest.approx(1 / found.ratio)
    assert "does not pay" in slower.sentence


@pytest.mark.slow
def test_a_busy_moment_does_not_say_what_int8_takes(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float takes twice as long for a while, int8 no longer, as seen beside other machines on one processor."""
    evaluator = evaluator_of(small_network(), QuantizationConfig())
    moments = iter([(0.006, 0.02), (0.006, 0.02), (0.006, 0.01), (0.006, 0.02), (0.006, 0.01), (0.006, 0.01)])
    monkeypatch.setattr(ToyRuntime, "times", lambda *_, turns, **__: [[each] * turns for each in next(moments)])
    found = try_int8(OPERATIONS, evaluator.original_file(OPERATIONS), [images_for(4).batch(0, 4)])
    assert (found.ratio, found.float_seconds, found.int8_seconds) == (0.6, 0.01, 0.006)
    assert found.low == 0.3


@pytest.mark.slow
def test_int8_that_is_slower_is_no_file_that_is_as_quick_as_possible(
    toy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DeploySettings(kind="quickest", most_changed=0.9, runtime=TOY.name)
    evaluator = evaluator_of(small_network(), QuantizationConfig())
    source = original_source(evaluator, OPERATIONS)
    made = runtime_candidates(evaluator, source, settings, lambda form: f"deployed-{'0' * 16}.toy")
    assert [candidate.form for candidate, _ in made.files] == ["int8"]
    assert made.files[0][0].is_faster
    monkeypatch.setattr(ToyRuntime, "times", backwards)
    made = runtime_candidates(evaluator, source, settings, lambda form: f"deployed-{'0' * 16}.toy")
    assert made.files == ()
    assert made.notes == ("No file with int8 that is quicker than float changes as few answers as allowed.",)


@pytest.mark.slow
def test_a_search_makes_further_files_with_figures_of_their_own(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_files, "_UNSEEN", 0.0)  # any damage is worth a part in float
    settings = DeploySettings(kind="mixed", most_time=1.3, runtime=TOY.name)
    evaluator = evaluator_of(small_network(), QuantizationConfig())
    source = original_source(evaluator, OPERATIONS)

    def name_of(what: str) -> str:
        return f"deployed-{what.encode().hex()[:16]:0<16}.toy"

    (alone,) = runtime_candidates(evaluator, source, settings, name_of, others=False).files
    made = runtime_candidates(evaluator, source, settings, name_of).files
    first, *others = (candidate for candidate, _ in made)
    assert first.file == alone[0].file
    assert others
    assert (
        len({candidate.file for candidate, _ in made}) == len({deployed.content for _, deployed in made}) == len(made)
    )
    for candidate, deployed in made:
        assert candidate.figures.file_bytes == OPERATIONS.size(deployed.content)
        assert candidate.deployment is not None
        assert candidate.deployment.figures["file"] == candidate.figures
        assert candidate.figures.time_ratio.low <= 1
    assert not any(dominates(candidate, other) for other in others for candidate, _ in made)


@pytest.mark.slow
def test_a_file_that_takes_longer_when_the_search_has_ended_is_said_to(
    toy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_files, "_UNSEEN", 0.0)
    settings = DeploySettings(kind="mixed", most_time=1.3, runtime=TOY.name)
    evaluator = evaluator_of(small_network(), QuantizationConfig())
    source = original_source(evaluator, OPERATIONS)

    def notes() -> str:
        made = runtime_candidates(evaluator, source, settings, lambda form: f"deployed-{'0' * 16}.toy", others=False)
        (candidate, _) = made.files[0]
        assert candidate.deployment is not None
        assert candidate.deployment.in_float
        return " ".join(candidate.deployment.notes)

    assert "took longer than was allowed" not in notes()
    monkeypatch.setattr(FileTimes, "anew", lambda *_: Median(value=1.3, low=1.3, high=1.31))
    monkeypatch.setattr(FileTimes, "is_within", lambda *_: True)
    assert "took longer than was allowed" in notes()


def test_none_of_a_hundred_slower_files_is_offered_as_quicker() -> None:
    chance = random.Random(0)
    for _ in range(100):
        files = []
        for form in ("int8", "mixed", "onnx"):
            ratio = chance.uniform(0.9, 2)
            low, high = ratio * chance.uniform(0.8, 1), max(1.0, ratio * chance.uniform(1, 1.2))
            made = a_candidate(form, lost=0.0)
            figures = replace(made.figures, time_ratio=Median(value=ratio, low=low, high=high))
            files.append(replace(made, figures=figures))
        answer = decision(files, "faster", 1.0)
        assert not any(each.is_faster for each in (*answer.alternatives, *filter(None, [answer.choice])))
