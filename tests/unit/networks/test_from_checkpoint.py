"""Loading somebody's weights: recognised or named, sized from the shapes, never silently changed."""

import pytest
import torch
from torch import nn

from senseapp.core.errors import InvalidCheckpoint, InvalidSpec
from senseapp.measure.session import Session
from senseapp.networks.checkpoints.architectures import architecture_named
from senseapp.networks.checkpoints.checkpoint import Checkpoint
from senseapp.networks.checkpoints.misfits import match_state_dict
from senseapp.networks.checkpoints.stored_networks import find_networks
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from tests.cases import first_of
from tests.pictures import class_files, write_zip


def build(library, name, **settings):
    return load_model(ModelSpec(library=library, name=name, **settings)).module


def save(module, path, change=None):
    weights = dict(module.state_dict())
    torch.save(change(weights) if change else weights, path)
    return str(path)


@pytest.mark.parametrize(
    ("library", "name", "settings"),
    [
        ("timm", "test_resnet", {"num_classes": 7}),
        ("timm", "test_vit", {"num_classes": 3, "in_chans": 1, "img_size": 96}),
        ("torchvision", "squeezenet1_1", {"num_classes": 12}),
        ("torchvision", "shufflenet_v2_x0_5", {"num_classes": 4, "in_chans": 1}),
    ],
)
@pytest.mark.parametrize("named", first_of([False, True]))
def test_classes_channels_and_size_are_read_off_the_weights(tmp_path, library, name, settings, named):
    module = build(library, name, **settings)
    for parameter in module.parameters():
        parameter.add_(0.01)
    path = save(module, tmp_path / "mine.pth")
    spec = (
        ModelSpec(library=library, name=name, checkpoint=path) if named else ModelSpec(library="auto", checkpoint=path)
    )
    loaded = load_model(spec)
    assert loaded.title == f"{library}/{name}"
    assert loaded.num_classes == settings["num_classes"]
    assert loaded.preprocessing.input_shape[0] == settings.get("in_chans", 3)
    if "img_size" in settings:
        assert loaded.preprocessing.input_shape[1] == settings["img_size"]
    assert loaded.pretrained
    assert not any("Random" in note for note in loaded.notes)
    for key, tensor in module.state_dict().items():
        assert torch.equal(loaded.module.state_dict()[key], tensor), key


def test_recognition_is_said_with_its_twins(tmp_path):
    path = save(build("torchvision", "resnet18", num_classes=5), tmp_path / "a.pth")
    notes = load_model(ModelSpec(library="auto", checkpoint=path)).notes
    (note,) = (note for note in notes if note.startswith("Every name and shape fits timm/resnet18. "))
    assert "torchvision/resnet18" in note


def test_wrapped_half_precision_weights_become_float32(tmp_path):
    module = build("timm", "test_resnet", num_classes=4)
    halved = {f"module.{name}": tensor.half() for name, tensor in module.state_dict().items()}
    torch.save({"state_dict": halved, "epoch": 2}, tmp_path / "a.pth.tar")
    loaded = load_model(ModelSpec(library="auto", checkpoint=str(tmp_path / "a.pth.tar")))
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {torch.float32}
    assert any("float16" in note for note in loaded.notes)
    assert torch.equal(loaded.module.state_dict()["fc.weight"], module.state_dict()["fc.weight"].half().float())


def test_contradicting_classes_are_refused(tmp_path):
    path = save(build("timm", "test_resnet", num_classes=7), tmp_path / "a.pth")
    with pytest.raises(InvalidCheckpoint, match=r"made for 7 classes, got num_classes 10"):
        load_model(ModelSpec(library="timm", name="test_resnet", checkpoint=path, num_classes=10))


def test_the_wrong_architecture_is_refused_with_counts_and_cause(tmp_path):
    path = save(build("torchvision", "squeezenet1_1"), tmp_path / "a.pth")
    with pytest.raises(
        InvalidCheckpoint, match=r"does not fit timm/test_resnet: .*missing.*unexpected.*another architecture"
    ):
        load_model(ModelSpec(library="timm", name="test_resnet", checkpoint=path))


def headless(weights):
    return {name: tensor for name, tensor in weights.items() if not name.startswith("fc.")}


def with_head_named(found):
    def rename(weights):
        return {name.replace("fc.", f"{found}.", 1): tensor for name, tensor in weights.items()}

    return rename


def specs_of(path, name="test_resnet", **settings):
    """The same checkpoint, to be recognised and with its architecture named."""
    return [
        ModelSpec(library="auto", checkpoint=path, **settings),
        ModelSpec(library="timm", name=name, checkpoint=path, **settings),
    ]


def test_weights_without_classifier_are_refused(tmp_path):
    path = save(build("timm", "test_resnet"), tmp_path / "a.pth", headless)
    for spec in specs_of(path):
        with pytest.raises(InvalidCheckpoint, match=r"those of timm/test_resnet without its classifier"):
            load_model(spec)


def test_a_random_classifier_is_added_where_a_number_of_classes_is_given(tmp_path):
    module = build("timm", "test_resnet")
    path = save(module, tmp_path / "a.pth", headless)
    for spec in specs_of(path, num_classes=6):
        loaded, again = load_model(spec), load_model(spec)
        assert loaded.fresh_head
        assert loaded.class_names == ()
        assert any("a random one stands in: accuracy means nothing" in note for note in loaded.notes)
        weights = loaded.module.state_dict()
        assert weights["fc.weight"].shape[0] == loaded.num_classes == 6
        assert 0.01 < float(weights["fc.weight"].std()) < 1  # neither zeros nor memory as it was
        assert torch.equal(weights["fc.weight"], again.module.state_dict()["fc.weight"])
        assert torch.equal(weights["conv1.0.weight"], module.state_dict()["conv1.0.weight"])


def test_labels_are_not_used_with_a_random_classifier(tmp_path):
    path = save(build("timm", "test_resnet"), tmp_path / "a.pth", headless)
    archive = write_zip(tmp_path / "a.zip", class_files(("0", "1", "2"), each=2))
    model = ModelSpec(library="auto", checkpoint=path, num_classes=3)
    session = Session.open(RunSpec(model=model, data=DataSpec(kind="archive", path=str(archive))))
    assert session.images.labels is None
    assert session.metric == "kl"
    session.close()


@pytest.mark.parametrize("found", ["fc.1", "head.last"])
def test_a_classifier_of_another_name_is_the_classifier_and_is_said(tmp_path, found):
    module = build("timm", "test_resnet", num_classes=7)
    for spec in specs_of(save(module, tmp_path / "a.pth", with_head_named(found))):
        loaded = load_model(spec)
        assert not loaded.fresh_head
        assert loaded.num_classes == 7
        assert any(f"The classifier, called {found} in the file, was taken as fc" in note for note in loaded.notes)
        assert torch.equal(loaded.module.state_dict()["fc.weight"], module.state_dict()["fc.weight"])


def test_a_classifier_of_two_layers_is_refused_with_its_cause(tmp_path):
    def deeper(weights):
        first = {"fc.0.weight": torch.zeros(16, weights["fc.weight"].shape[1]), "fc.0.bias": torch.zeros(16)}
        return headless(weights) | first | {"fc.2.weight": torch.zeros(4, 16), "fc.2.bias": torch.zeros(4)}

    auto, named = specs_of(save(build("timm", "test_resnet"), tmp_path / "a.pth", deeper))
    with pytest.raises(InvalidCheckpoint, match=r"the closest are timm/test_resnet \(\d+% alike\)"):
        load_model(auto)
    with pytest.raises(InvalidCheckpoint, match="another classifier in place of fc"):
        load_model(named)


@pytest.mark.parametrize(
    ("library", "name"), [("torchvision", "resnet18"), ("timm", "test_vit"), ("timm", "test_convnext")]
)
def test_other_families_are_recognised_without_or_with_a_renamed_classifier(library, name):
    state = build(library, name, num_classes=9).state_dict()
    own = architecture_named(library, name).free.classes[0].rpartition(".")[0]
    without = {key: tensor for key, tensor in state.items() if not key.startswith(f"{own}.")}
    renamed = without | {f"new.{key.rpartition('.')[2]}": state[key] for key in state if key not in without}
    for weights, has_head in ((without, False), (renamed, True)):
        (network,) = find_networks(Checkpoint(file_name="a.pth", tensors=weights))
        best = [item for item in network.candidates if item.score == network.candidates[0].score]
        assert (library, name) in [(item.library, item.name) for item in best]
        assert (network.fits, best[0].without_head) == (has_head, not has_head)
        assert best[0].num_classes == (9 if has_head else None)


def test_published_weights_and_a_checkpoint_exclude_each_other(tmp_path):
    with pytest.raises(InvalidSpec, match="not both"):
        load_model(ModelSpec(library="timm", name="resnet18", pretrained=True, checkpoint=str(tmp_path / "a.pth")))


def test_heads_that_serve_training_only_are_left_out(tmp_path):
    def with_auxiliary(weights):
        return weights | {"aux1.fc2.weight": torch.zeros(1000, 2), "aux2.fc2.weight": torch.zeros(1000, 2)}

    path = save(build("torchvision", "googlenet", num_classes=3), tmp_path / "a.pth", with_auxiliary)
    notes = load_model(ModelSpec(library="torchvision", name="googlenet", checkpoint=path)).notes
    assert any("Left out" in note and "aux1.fc2.weight, aux2.fc2.weight" in note for note in notes)


class Small(nn.Module):
    def __init__(self, channels=3, width=8, classes=5):
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, classes)


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        (Small(classes=9), "9 classes"),
        (Small(channels=1), "number of channels"),
        (Small(width=16), "variant of this architecture"),
        (nn.Sequential(nn.Linear(2, 2)), "another architecture"),
    ],
)
def test_the_likely_cause_is_said(other, cause):
    report = match_state_dict(Small(), other.state_dict())
    assert not report.fits
    assert cause in report.cause


def test_a_replaced_head_and_surplus_weights_have_their_own_cause():
    weights = Small().state_dict()
    replaced = {name.replace("head.", "classifier.1."): tensor for name, tensor in weights.items()}
    assert "another classifier in place of head" in match_state_dict(Small(), replaced).cause
    assert "more than this architecture" in match_state_dict(Small(), weights | {"extra.weight": torch.ones(1)}).cause
