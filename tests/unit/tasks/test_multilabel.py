"""Multi-label heads: every number is compared with NumPy's own, or scikit-learn's."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.special import expit, logit
from sklearn.metrics import label_ranking_average_precision_score
from torch import Tensor, nn

from senseapp.core.errors import InvalidDataset, UnsupportedModel
from senseapp.data.images import TensorImages
from senseapp.measure.sweep import Sweep
from senseapp.metrics import METRICS
from senseapp.metrics.multilabel import average_precision, bernoulli_divergence, binary_cross_entropy
from senseapp.prove.judge import Judge, JudgingImages
from senseapp.reconstruct.write import onnx_copy
from senseapp.records.spec import SensitivitySpec
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from senseapp.tasks import MULTILABEL
from senseapp.tasks.labels import LabelTruth, WrittenLabels
from tests.cases import first_of
from tests.plain_loop import sparse_logits
from tests.small_models import NUM_CLASSES, small_network

Array = npt.NDArray[np.float64]
COUNT = 48
NAN = math.nan


def network_of(num_labels: int = NUM_CLASSES) -> nn.Module:
    network = small_network()
    torch.manual_seed(4)
    network.head = nn.Linear(8, num_labels)
    with torch.no_grad():
        network.head.weight.mul_(3)
        network.head.bias -= network(pictures()).mean(0)
    return network.eval()


def pictures() -> Tensor:
    return torch.randn(COUNT, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def truths(num_labels: int = NUM_CLASSES, *, unknown: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    found = torch.randint(2, (COUNT, num_labels), generator=generator).float()
    hidden = torch.rand(found.shape, generator=generator) < unknown
    hidden[:, 0] = False
    return found.masked_fill(hidden, NAN)


def plain(logits: Tensor) -> Array:
    return logits.detach().double().numpy()


def cross_entropy(logits: Array, truth: Array) -> Array:
    """Of each image: the mean over its known labels, from the logarithms of the two probabilities."""
    losses = -(truth * np.log(expit(logits)) + (1 - truth) * np.log(expit(-logits)))
    return np.asarray(np.nanmean(losses, axis=1))


def divergence(before: Array, after: Array) -> float:
    p, q = expit(before), expit(after)
    return float(np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))))


def ranking_precision(logits: Array, truth: Array) -> float:
    """scikit-learn's figure, image by image, so that unknown labels can be left out."""
    found = []
    for scores, own in zip(logits, truth, strict=True):
        known = ~np.isnan(own)
        found.append(label_ranking_average_precision_score(own[known][None], scores[known][None]))
    return float(np.mean(found))


@pytest.mark.parametrize("unknown", first_of([0.3, 0.0]))
def test_each_layer_is_measured_as_by_hand(unknown: float) -> None:
    network, truth = network_of(), truths(unknown=unknown)
    sweep = Sweep.open(
        network, TensorImages(pictures(), truth), SensitivitySpec(levels=(0.5,), device="cpu"), task=MULTILABEL
    )
    before, known = plain(network(pictures())), truth.double().numpy()
    assert sweep.baseline.values()["lrap"] == pytest.approx(ranking_precision(before, known), rel=1e-6)
    for item in sweep.measure():
        after = plain(sparse_logits(network, item.layer, "weight", pictures()))
        values = {change.metric: change.value for change in item.changes}
        assert values["lrap"] == pytest.approx(ranking_precision(after, known), rel=1e-6)
        assert values["bce"] == pytest.approx(cross_entropy(after, known).mean(), rel=1e-4)
        assert values["bernoulli_kl"] == pytest.approx(divergence(before, after), rel=1e-3, abs=1e-9)
        assert values["label_agreement"] == pytest.approx(np.mean((before > 0) == (after > 0)))
        assert set(values) == {"lrap", "bce", "bernoulli_kl", "label_agreement", "sqnr"}


def test_without_labels_the_divergence_of_bernoullis_ranks_layers() -> None:
    spec = SensitivitySpec(levels=(0.5,), device="cpu")
    sweep = Sweep.open(network_of(), TensorImages(pictures()), spec, task=MULTILABEL)
    assert sweep.metric == "bernoulli_kl"
    assert set(sweep.baseline.metrics) == {"bernoulli_kl", "label_agreement", "sqnr"}


@pytest.mark.parametrize("labelled", [True, False])
def test_directions_tell_divergence_and_loss_of_small_changes_on_average(labelled: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 12, generator=generator).repeat(20_000, 1)
    moves = 0.02 * torch.randn(3, 12, generator=generator).repeat(20_000, 1)
    truth = torch.randint(2, (3, 12), generator=generator).float()
    truth[0, 3] = NAN
    truth = truth.repeat(20_000, 1)
    signs = torch.randint(0, 2, logits.shape, generator=generator) * 2 - 1
    chosen = MULTILABEL.directions(logits, truth if labelled else None, signs, 2)
    assert len(chosen.vectors) == 2
    products = torch.stack([(vector * moves).sum(1) for vector in chosen.vectors], dim=1)
    changes = {name: values.view(-1, 3).mean(0) for name, values in chosen.changes(products).items()}
    expected = bernoulli_divergence(logits[:3].double(), (logits + moves)[:3].double()).mean(1)
    assert changes["bernoulli_kl"].numpy() == pytest.approx(expected.numpy(), rel=0.03)
    if labelled:
        after, before = (binary_cross_entropy(each[:3].double(), truth[:3]) for each in (logits + moves, logits))
        assert changes["bce"].numpy() == pytest.approx((after - before).numpy(), abs=2e-5)


@pytest.mark.parametrize("num_labels", [3, 10, 25])
def test_layers_together_are_predicted_from_the_logits(num_labels: int) -> None:
    metric, generator = METRICS["bernoulli_kl"], torch.Generator().manual_seed(6)
    before, change = (torch.randn(16, num_labels, generator=generator) for _ in range(2))
    recorded = metric.recorded(before, before).double().numpy()
    moved = metric.recorded(before, before + change).double().numpy()
    found = metric.together(recorded, moved - recorded, num_labels)
    shown = np.argsort(np.abs(plain(before)), axis=1)[:, :10]  # the labels that the model is least sure of
    kept = [np.take_along_axis(plain(each), shown, axis=1) for each in (before, before + change)]
    smoothed = [logit(0.997 * expit(each) + 0.0015) for each in kept]
    p, q = (expit(each) for each in smoothed)
    expected = (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).sum(1) / num_labels
    assert found == pytest.approx(expected, rel=1e-3)


def test_ranking_precision_is_scikit_learns_with_ties_too() -> None:
    scores = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0], [3.0, -1.0, 0.5], [0.0, 1.0, 2.0], [5.0, 4.0, 3.0]])
    truth = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1]], dtype=np.float64)
    expected = [label_ranking_average_precision_score(t[None], s[None]) for t, s in zip(truth, scores, strict=True)]
    found = average_precision(torch.from_numpy(scores), torch.from_numpy(truth))
    assert found.numpy() == pytest.approx(expected)


def test_a_logit_that_is_no_number_is_damage_and_an_infinite_one_may_be_right() -> None:
    before = torch.zeros(1, 2).double()
    broken = torch.tensor([[NAN, 1.0]]).double()
    truth = torch.tensor([[1.0, 0.0]])
    assert METRICS["bce"].change(METRICS["bce"].moments(before, broken, truth)).delta == math.inf
    assert METRICS["bernoulli_kl"].change(METRICS["bernoulli_kl"].moments(before, broken, None)).delta == math.inf
    assert METRICS["label_agreement"].moments(before, broken, None)[2] == 1
    assert METRICS["lrap"].moments(before, broken, truth)[2] == 0.5
    certain = torch.tensor([[math.inf, -math.inf]]).double()
    assert binary_cross_entropy(certain, truth).tolist() == [0.0]
    assert binary_cross_entropy(-certain, truth).tolist() == [math.inf]
    assert bernoulli_divergence(certain, certain).tolist() == [[0.0, 0.0]]


def test_a_file_that_runs_is_judged_by_bernoullis() -> None:
    network, changed = network_of(), network_of()
    with torch.no_grad():
        changed.blocks[0].conv1.weight.mul_(0.7)
    original, file = map(RuntimeModel, [onnx_copy(each, pictures()[:1]) for each in (network, changed)])
    judge = Judge(MULTILABEL, JudgingImages.of_batches([pictures()]), original, num_outputs=6)
    judged = judge.judged(file)
    before, after = (plain(each(pictures())) for each in (network, changed))
    assert judge.divergence == "bernoulli_kl"
    assert judged.damage == pytest.approx(divergence(before, after), rel=1e-3)
    assert judged.share_changed == pytest.approx(np.mean((before > 0) != (after > 0)))


def written(*several: LabelTruth, names: tuple[str, ...], outputs: int, known: tuple[str, ...] = ()) -> WrittenLabels:
    return WrittenLabels(
        layout="table", labels=(), names=names, num_outputs=outputs, output_names=known, several=several
    )


def test_columns_are_matched_by_the_models_names_and_others_are_unknown() -> None:
    rows = (LabelTruth(true=("dog", "cat")), LabelTruth(true=(), unknown=("dog",)), LabelTruth(true=(), unknown=()))
    found = MULTILABEL.targets(written(*rows, names=("dog", "cat"), outputs=3, known=("cat", "cow", "dog")))
    assert found.values is not None
    expected = [[1, NAN, 1], [0, NAN, NAN], [0, NAN, 0]]
    np.testing.assert_array_equal(found.values.numpy(), np.array(expected, dtype=np.float32))
    assert any("1 output without a label" in note for note in found.notes)
    assert any("unknown" in note for note in found.notes)


def test_as_many_columns_as_outputs_are_taken_in_their_order() -> None:
    rows = (LabelTruth(true=("zebra",)), LabelTruth(true=("ape", "zebra")))
    found = MULTILABEL.targets(written(*rows, names=("zebra", "ape"), outputs=2))
    assert found.values is not None
    assert found.values.tolist() == [[1, 0], [1, 1]]
    assert found.names == ("zebra", "ape")
    assert any("by their order" in note for note in found.notes)


def test_no_finding_is_no_label_and_a_label_that_the_model_has_not_is_refused() -> None:
    rows = (LabelTruth(true=("No Finding",)), LabelTruth(true=("mass",)))
    found = MULTILABEL.targets(written(*rows, names=("No Finding", "mass"), outputs=1))
    assert found.values is not None
    assert found.values.tolist() == [[0], [1]]
    with pytest.raises(InvalidDataset, match="1 of 2 classes in the images match none"):
        MULTILABEL.targets(written(*rows, names=("mass", "cyst"), outputs=4, known=("mass", "a", "b", "c")))


def test_pictures_of_which_nothing_is_known_are_left_out() -> None:
    rows = (LabelTruth(true=("a",)), LabelTruth(true=(), unknown=("a", "b")))
    found = MULTILABEL.targets(written(*rows, names=("a", "b"), outputs=2))
    assert list(found.kept) == [0]
    assert any("1 picture without a known label" in note for note in found.notes)


def test_words_for_people() -> None:
    names = ("cat", "dog, hound", "cow", "ape")
    assert MULTILABEL.output_text(torch.tensor([0.1, 3.0, -1.0, 0.0]), names) == "dog, cat"
    assert MULTILABEL.output_text(torch.tensor([1.0, 4.0, 3.0, 2.0]), names) == "dog, cow, ape and 1 more"
    assert MULTILABEL.target_text(torch.tensor([0.0, NAN, 0.0, 0.0]), names) == "no label"
    assert "guess (0.693)" in MULTILABEL.baseline_warning({"bce": 0.8}, 20, 4)
    assert not MULTILABEL.baseline_warning({"bce": 0.2}, 20, 4)
    assert "Each of the 4 outputs" in MULTILABEL.head_note(4)


@pytest.mark.parametrize("shape", [(4, 0), (3, 2), (4, 2, 2), ()])
def test_what_is_no_row_of_logits_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedModel, match=r"one logit per label, shape \(4, labels\)"):
        MULTILABEL.check_output(torch.zeros(shape), 4)
