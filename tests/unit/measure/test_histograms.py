"""Quantization histograms against numpy, on networks small enough to work out by hand; and ``senseapp.histogram``."""

import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import senseapp
from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidDataset, InvalidSpec, MeasurementFailed, NoLayersSelected, UnsupportedModel
from senseapp.data.images import TensorImages
from senseapp.measure.bins import SUB_BINS, GridBins, PlacedGrid
from senseapp.measure.histograms import image_set, quantization_histograms
from senseapp.networks.profile import profile_model
from senseapp.records.layer_findings import QuantizationHistogram
from senseapp.records.spec import HistogramSpec
from senseapp.tasks import CLASSIFICATION


class SmallNet(nn.Module):
    """conv, norm and in-place ReLU with a shortcut around the second conv, and a layer that never runs."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1)
        self.fc = nn.Linear(6, 4)
        self.spare = nn.Linear(4, 4)

    def forward(self, images):
        first = F.relu(self.bn1(self.conv1(images)), inplace=True)
        return self.fc((first + self.conv2(first)).mean(dim=(2, 3)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    net = SmallNet()
    with torch.no_grad():
        for values in (net.bn1.weight, net.bn1.running_var):
            values.uniform_(0.5, 2)
        for values in (net.bn1.bias, net.bn1.running_mean):
            values.normal_()
    return net.eval().requires_grad_(False)


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(1)
    return TensorImages(torch.randn(20, 3, 8, 8, generator=generator), torch.arange(20) % 4)


def look(model, images, layer="conv2", **settings):
    profile = profile_model(model, images.batch(0, 1), title="small", finite=False)
    spec = HistogramSpec(layer=layer, **settings)
    (found,) = quantization_histograms(model, images, [profile.layer(layer)], spec, task=CLASSIFICATION).values()
    if isinstance(found, MeasurementFailed):
        raise found
    return found


def look_at_all(model, images, *names, **settings):
    profile = profile_model(model, images.batch(0, 1), title="small", pretrained=True, notes=())
    layers = [profile.layer(name) for name in names]
    return quantization_histograms(
        model, images, layers, HistogramSpec(layer=names[0], **settings), task=CLASSIFICATION
    )


def objective_of(scores, labels, objective):
    match objective:
        case "output":
            return scores.max(dim=1).values.sum()
        case "mean":
            return scores.mean() * len(scores)
        case _:
            return F.cross_entropy(scores, labels, reduction="sum")


def inputs_and_gradients(model, images, objective):
    """What conv2 takes in and the gradient there, through conv2 only, in one pass without our hooks."""
    first = F.relu(model.bn1(model.conv1(images.images)))
    leaf = first.clone().requires_grad_()
    scores = model.fc((first + model.conv2(leaf)).mean(dim=(2, 3)))
    objective_of(scores, images.labels, objective).backward()
    return leaf.detach().numpy(), leaf.grad.numpy()


def numpy_bins(places, gradients, cells):
    """The definition, in numpy: bin of a place, sums over bins, share beyond the ends."""
    places, gradients = places.astype(np.float32).ravel(), gradients.astype(np.float64).ravel()
    fine = np.floor((places + np.float32(0.5)) * SUB_BINS).astype(np.int64)
    inside = np.clip(fine, 0, cells * SUB_BINS - 1)
    counts = np.histogram(inside, bins=np.arange(cells * SUB_BINS + 1))[0]
    sums = np.array([gradients[inside == index].sum() for index in range(cells * SUB_BINS)])
    sizes = np.array([np.abs(gradients[inside == index]).sum() for index in range(cells * SUB_BINS)])
    return counts, sums, sizes, float((inside != fine).sum())


def assert_bins(found, counts, sums, sizes, **tolerance):
    """Compare counts, unless None, and both sums of gradients."""
    if counts is not None:
        np.testing.assert_array_equal(found.counts, counts)
    tolerance = tolerance or {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(found.gradient_sums, sums, **tolerance)
    np.testing.assert_allclose(found.gradient_magnitudes, sizes, **tolerance)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_equal_numpy(model, images, bits, per_channel):
    found = look(model, images, bits=bits, per_channel=per_channel)
    weight = model.conv2.weight.detach().numpy()
    largest = 2 ** (bits - 1) - 1
    peaks = np.abs(weight).max(axis=(1, 2, 3), keepdims=True) if per_channel else np.abs(weight).max()
    places = weight / (peaks / np.float32(largest)).astype(np.float32) + np.float32(largest)
    reference = SmallNet().eval()
    reference.load_state_dict(model.state_dict())
    reference(images.images).max(dim=1).values.sum().backward()
    *expected, clamped = numpy_bins(places, reference.conv2.weight.grad.numpy(), 2 * largest + 1)
    assert_bins(found, *expected)
    assert found.clamped_share == clamped == 0
    assert found.zero_share == pytest.approx(np.mean(np.floor(places + 0.5) == largest))
    assert (found.low, found.high) == pytest.approx((weight.min(), weight.max()))
    assert math.isnan(found.scale) == per_channel


@pytest.mark.parametrize("objective", ["output", "loss", "mean"])
def test_activations_equal_numpy_over_several_batches(model, images, objective):
    found = look(model, images, tensor="activations", bits=4, objective=objective)
    values, gradients = inputs_and_gradients(model, images, objective)
    places = values / np.float32(found.scale) + np.float32(found.zero_cell)
    *expected, clamped = numpy_bins(places, gradients, 16)
    assert_bins(found, *expected)
    assert clamped > 0
    assert found.clamped_share == clamped / values.size
    assert found.zero_share == pytest.approx(np.mean(np.floor(places + 0.5) == 0))
    assert found.total == values.size
    assert (found.low, found.high, found.num_images) == (0.0, pytest.approx(values.max()), 20)


@pytest.mark.parametrize("layer", ["conv1", "conv2"])
def test_outputs_equal_numpy_though_what_follows_writes_into_them(model, images, layer):
    def relu(values):
        values = model.bn1(values)
        return values.clamp(min=0)

    first = model.conv1(images.images)
    leaf = (first if layer == "conv1" else model.conv2(relu(first))).detach().requires_grad_()
    later = relu(leaf) if layer == "conv1" else relu(first)
    objective_of(
        model.fc((later + (model.conv2(later) if layer == "conv1" else leaf)).mean(dim=(2, 3))), None, "mean"
    ).backward()
    found = look(model, images, layer, tensor="outputs", bits=4, objective="mean")
    places = leaf.detach().numpy() / np.float32(found.scale) + np.float32(found.zero_cell)
    counts, sums, sizes, clamped = numpy_bins(places, leaf.grad.numpy(), 16)
    assert np.abs(np.array(found.counts) - counts).sum() <= 4  # conv1 may round another way batch by batch
    assert_bins(found, None, sums, sizes, rtol=1e-3, atol=2e-3)
    assert found.clamped == clamped
    assert "before normalisation" in found.notes[1]
    assert found.low < 0 < found.high


@pytest.mark.parametrize("tensor", ["weights", "activations", "outputs"])
def test_several_layers_in_one_pass_are_what_each_is_by_itself(model, images, tensor):
    names = ("conv1", "conv2", "fc")
    found = look_at_all(model, images, *names, tensor=tensor, bits=3, objective="loss")
    assert tuple(found) == names
    for name, together in found.items():
        alone = look(model, images, name, tensor=tensor, bits=3, objective="loss")
        assert (together.spec, together.notes, together.low, together.high) == (
            alone.spec, alone.notes, alone.low, alone.high,
        )  # fmt: skip
        assert together.counts == alone.counts
        for what in ("gradient_sums", "gradient_magnitudes"):  # alone, norms behind a layer are folded
            np.testing.assert_allclose(getattr(together, what), getattr(alone, what), rtol=1e-3, atol=1e-3)
        assert sum(together.gradient_magnitudes) > 0


def test_activations_per_channel_have_a_grid_for_each(model, images):
    found = look(model, images, tensor="activations", bits=3, per_channel=True)
    values, gradients = inputs_and_gradients(model, images, "output")
    scales = (values[:16].max(axis=(0, 2, 3), keepdims=True) / np.float32(7)).astype(np.float32)
    *expected, clamped = numpy_bins(values / scales, gradients, 8)
    assert_bins(found, *expected)
    assert found.clamped == clamped


def test_nothing_is_back_propagated_if_nothing_is_asked_for(model, images):
    for tensor in ("weights", "activations"):
        plain = look(model, images, tensor=tensor, objective="none")
        assert plain.counts == look(model, images, tensor=tensor).counts
        assert not any(plain.gradient_magnitudes)


def test_centroids_describe_the_cells(model, images):
    bins = GridBins(PlacedGrid(cells=3, scale=torch.tensor(1.0), zero_point=torch.tensor(1.0)))
    bins.add(torch.tensor([-1.0, 0.0, 0.25, 0.75, 9.0]), torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0]))
    assert bins.clamped == 1
    assert bins.zeros == 2
    assert bins.place_sums.tolist() == [0.0, 1.0 + 1.25, 1.75 + 2.0]
    assert bins.gradient_sums.reshape(3, -1).sum(dim=1).tolist() == [1.0, 1.0, 1.0]
    assert bins.gradient_magnitudes.reshape(3, -1).sum(dim=1).tolist() == [1.0, 5.0, 9.0]
    found = look(model, images, bits=2)
    assert all(cell - 0.5 <= place <= cell + 0.5 for cell, place in enumerate(found.centroids) if place == place)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("gradients_last", [False, True])
def test_bins_do_not_depend_on_the_order_in_memory(per_channel, gradients_last):
    values, gradients = torch.randn(5, 7, 9, 8), torch.randn(5, 7, 9, 8)
    scale = torch.linspace(0.01, 0.2, 7)[:, None, None] if per_channel else torch.tensor(0.03)
    plain, other = (
        GridBins(PlacedGrid(cells=15, scale=scale, zero_point=torch.full_like(scale, 7.0))) for _ in range(2)
    )
    plain.add(values, gradients)
    last = torch.channels_last
    other.add(values.to(memory_format=last), gradients.to(memory_format=last) if gradients_last else gradients)
    assert torch.equal(plain.counts, other.counts)
    assert (plain.zeros, plain.clamped, plain.low, plain.high) == (other.zeros, other.clamped, other.low, other.high)
    for name in ("gradient_sums", "gradient_magnitudes", "place_sums"):
        torch.testing.assert_close(getattr(plain, name), getattr(other, name), rtol=1e-12, atol=1e-12)


def test_a_record_is_read_back_the_same(model, images):
    for settings in ({}, {"per_channel": True}):
        found = look(model, images, bits=3, **settings)
        assert dumps(loads(dumps(found), QuantizationHistogram)) == dumps(found)


def test_folding_leaves_the_network_shows_the_final_weights_and_says_what_it_cannot_fold(model, images):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    factor = model.bn1.weight / torch.sqrt(model.bn1.running_var + model.bn1.eps)
    expected = model.conv1.weight * factor.reshape(-1, 1, 1, 1)
    folded, left = (look(model, images, layer=layer, fold=True) for layer in ("conv1", "conv2"))
    assert folded.high == pytest.approx(float(expected.max()))
    assert not folded.notes
    assert "No normalization" in left.notes[0]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_was_looked_at_before_does_not_count(model, images):
    seen = [look(model, images, layer=layer) for layer in ("conv1", "conv2")]
    model.requires_grad_()  # as somebody's own network may come
    assert [look(model, images, layer=layer) for layer in ("conv2", "conv1", "conv2")] == [seen[1], seen[0], seen[1]]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_size_does_not_grow_with_the_images(model, images):
    few, many = images.subset(range(1)), images.subset(list(range(20)) * 3)
    for tensor in ("weights", "activations"):
        records = [look(model, each, tensor=tensor, bits=4) for each in (few, many)]
        assert len(records[0].counts) == len(records[1].counts) <= 16 * SUB_BINS
    assert records[1].total == 60 * records[0].total


def test_what_has_no_data_is_told_in_one_sentence(model, images):
    for tensor, words in (("weights", "not used"), ("activations", "did not run")):
        with pytest.raises(MeasurementFailed, match=words) as raised:
            look(model, images, layer="spare", tensor=tensor)
        assert "\n" not in str(raised.value)
    with pytest.raises(InvalidDataset, match="labels"):
        look(model, TensorImages(images.images), objective="loss")
    profile = profile_model(model, images.batch(0, 1), title="small", pretrained=True, notes=())
    with pytest.raises(InvalidDataset, match="at least one image"):
        quantization_histograms(
            model, images.subset([]), [profile.layer("conv2")], HistogramSpec(layer="conv2"), task=CLASSIFICATION
        )
    model.conv2.weight[0, 0, 0, 0] = math.nan
    with pytest.raises(MeasurementFailed, match="not finite"):
        look(model, images)


@pytest.mark.parametrize(
    "settings", [{"bits": 1}, {"bits": 9}, {"tensor": "biases"}, {"objective": "x"}, {"num_images": 0}]
)
def test_requests_out_of_range_are_refused(settings):
    with pytest.raises(InvalidSpec):
        HistogramSpec(layer="conv1", **settings)


@pytest.fixture
def plain_net():
    torch.manual_seed(0)
    parts = {
        "conv1": nn.Conv2d(3, 4, 3), "bn1": nn.BatchNorm2d(4), "relu": nn.ReLU(inplace=True),
        "conv2": nn.Conv2d(4, 5, 3), "pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "fc": nn.Linear(5, 3),
    }  # fmt: skip
    net = nn.Sequential()
    for name, part in parts.items():
        net.add_module(name, part)
    nn.init.constant_(net.bn1.running_var, 4)
    return net.train()


IMAGES = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(12) % 3


def test_it_returns_a_frame_and_a_chart(plain_net):
    before = {name: value.clone() for name, value in plain_net.state_dict().items()}
    frame, chart = senseapp.histogram(plain_net, IMAGES, layers="conv*", bits=4, tensor="weights")
    assert list(dict.fromkeys(frame["layer"])) == ["conv1", "conv2"]
    assert frame.groupby("layer")["count"].sum().to_dict() == {"conv1": 108, "conv2": 180}
    assert frame["sensitivity"].sum() > 0
    assert [part["title"]["text"] for part in chart.to_dict()["concat"]] == ["conv1", "conv2"]
    assert all(torch.equal(value, before[name]) for name, value in plain_net.state_dict().items())
    assert plain_net.training
    assert plain_net.bn1.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in plain_net.parameters())


def test_folding_leaves_the_callers_model_as_it_is(plain_net):
    plain, _ = senseapp.histogram(plain_net, IMAGES, "conv1", objective="none")
    folded, _ = senseapp.histogram(plain_net, IMAGES, "conv1", objective="none", fold=True)
    assert plain["end"].iloc[-1] == pytest.approx(2 * folded["end"].iloc[-1], rel=1e-4)
    assert float(plain_net.bn1.running_var[0]) == 4


def test_images_come_as_a_tensor_a_pair_or_a_loader():
    for images, labels in (
        (IMAGES, None),
        ((IMAGES, LABELS), LABELS),
        (DataLoader(TensorDataset(IMAGES, LABELS), batch_size=5), LABELS),
        ([IMAGES[:5], IMAGES[5:]], None),
    ):
        found = image_set(images, 8)
        assert torch.equal(found.batch(0, 8), IMAGES[:8])
        assert len(found) == 8
        assert (found.labels is None) if labels is None else torch.equal(found.labels, labels[:8])
    assert torch.equal(image_set(image_set(IMAGES, 8), 3).batch(0, 3), IMAGES[:3])


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ([], "at least one"),
        ((IMAGES, LABELS[:3]), "shape \\(3,\\) as labels"),
        (["a.png"], "got a str"),
        ((1, 2), "a int"),
    ],
)
def test_what_are_no_images_is_said_in_one_sentence(plain_net, images, words):
    with pytest.raises(InvalidDataset, match=words):
        senseapp.histogram(plain_net, images)


def test_settings_out_of_range_and_unknown_layers_are_refused(plain_net):
    with pytest.raises(NoLayersSelected, match="conv1"):
        senseapp.histogram(plain_net, IMAGES, "layer*")
    with pytest.raises(InvalidSpec, match="weights, activations, outputs"):
        senseapp.histogram(plain_net, IMAGES, tensor="inputs")
    with pytest.raises(InvalidDataset, match="labels"):
        senseapp.histogram(plain_net, IMAGES, objective="loss")


def test_a_layer_without_a_histogram_is_told_in_a_warning(plain_net):
    with torch.no_grad():
        plain_net.conv1.weight[0, 0, 0, 0] = float("inf")
    with pytest.warns(UserWarning, match="conv1 holds values that are not finite"):
        frame, _ = senseapp.histogram(plain_net, IMAGES, "conv*", objective="none")
    assert set(frame["layer"]) == {"conv2"}
    with warnings.catch_warnings(), pytest.raises(MeasurementFailed, match="not finite"):
        senseapp.histogram(plain_net, IMAGES, "conv1", objective="none")
    with pytest.raises(UnsupportedModel, match="conv1"):  # with it no layer has gradients
        senseapp.histogram(plain_net, IMAGES, "conv2")
