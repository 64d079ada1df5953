"""The preprocessing that a network was trained with is found, on a network that takes no other."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidCheckpoint, InvalidSpec
from senseapp.measure import candidate_runs, preparation_search
from senseapp.measure.preparation_search import choose_preparation
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from tests.cases import first_of
from tests.onnx_graphs import file_of, node

CLASSES, OWN_SIDE, NATIVE = 10, 64, 24
SHADES = [(20 + 22 * index, 60, 250 - 22 * index) for index in range(CLASSES)]
OWN = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
HALF = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
NONE = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


class Shades(nn.Module):
    """Knows ten colours as its preprocessing makes them, and nothing of pictures of another size."""

    def __init__(self, side, mean, std, bgr=False):
        super().__init__()
        colours = torch.tensor(SHADES) / 255
        colours = colours.flip(1) if bgr else colours
        self.side, self.known = side, (colours - torch.tensor(mean)) / torch.tensor(std)

    def forward(self, images):
        if images.shape[-1] != self.side:
            return torch.zeros(len(images), CLASSES)
        return -200 * (images.mean(dim=(2, 3))[:, None] - self.known).square().sum(dim=2)


class Hues(Shades):
    """Knows colours in any brightness; the brighter, the surer."""

    def forward(self, images):
        return 40 * images.mean(dim=(2, 3)) @ nn.functional.normalize(self.known).T * (images.shape[-1] == self.side)


@pytest.fixture
def trained(monkeypatch):
    """Have every checkpoint be a network that was trained in the way given."""

    def use(
        *, architectures=("resnet10t",), knows=None, side=NATIVE, fresh_head=False, bgr=False, kind=Shades, **values
    ):
        def load(model):
            module = kind(side, bgr=bgr, **(values or OWN))
            if knows is not None and model.name != knows:
                module = Shades(side=-1, **OWN)
            shape = (3, model.img_size or OWN_SIDE, model.img_size or OWN_SIDE)
            own = Preprocessing(input_shape=shape, crop_pct=0.875, **OWN)
            return LoadedModel(
                module=module.eval(), title=model.title, preprocessing=own, num_classes=CLASSES, pretrained=True,
                fresh_head=fresh_head,
            )  # fmt: skip

        models = tuple(ModelSpec(library="timm", name=name, checkpoint="net.pth") for name in architectures)
        monkeypatch.setattr(candidate_runs, "load_model", load)
        monkeypatch.setattr(preparation_search, "look_alikes", lambda spec: (models, ()))

    return use


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, generator = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for index in range(50):
        shade = np.array(SHADES[index % CLASSES])
        pixels = (shade + generator.normal(0, 30, (NATIVE, NATIVE, 3))).clip(0, 255).astype(np.uint8)
        home = folder / str(index % CLASSES)
        home.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(home / f"{index}.png")
    return folder


def asked(folder, **data):
    data = DataSpec(kind="folder", path=str(folder), preparation="auto", **data)
    return RunSpec(model=ModelSpec(library="auto", checkpoint="net.pth"), data=data)


@pytest.mark.parametrize(
    ("values", "bgr"),
    first_of(
        [
            *((HALF, False), (NONE, True), (OWN, True)),
            *(({"mean": mean, "std": (1 / 255,) * 3}, False) for mean in (NONE["mean"], OWN["mean"])),
        ]
    ),
)
def test_size_normalisation_and_channel_order_are_found_together(trained, pictures, values, bgr):
    trained(bgr=bgr, **values)
    choice = choose_preparation(asked(pictures))
    found = choice.spec
    assert found.model.img_size == NATIVE
    assert found.data.channel_order == ("bgr" if bgr else "")
    assert (found.data.mean or OWN["mean"], found.data.std or OWN["std"]) == (values["mean"], values["std"])
    assert choice.chosen.correct >= 45
    assert not choice.guess


def test_of_ways_that_answer_alike_the_most_usual_is_taken(trained, pictures):
    trained(kind=Hues, **NONE)
    choice = choose_preparation(asked(pictures))
    assert choice.chosen.title.startswith("24 × 24 px, values from 0 to 1")
    surer = next(each for each in choice.trials if each.title == "24 × 24 px, values from 0 to 255")
    assert (surer.correct, surer.score < choice.chosen.score) == (choice.chosen.correct, True)


def test_what_was_tried_is_said_with_its_accuracy(trained, pictures):
    trained(**HALF)
    choice = choose_preparation(asked(pictures))
    assert choice.verdict.startswith("Preprocessing chosen by 50 labelled images: 24 × 24 px, values from −1 to 1: ")
    assert "of 50 right (" in choice.verdict
    assert "; the architecture's own: 5 of 50 right." in choice.verdict
    assert choice.trials[0] == choice.chosen
    listed = replace(choice, trials=choice.trials[::-1]).notes[1]
    best = f"{choice.chosen.title}: {choice.chosen.result}"
    assert listed.startswith(f"Preprocessing tried on these images, the best first: {best} · ")
    assert choice.verdict.endswith(f" {int(listed.split()[-2]) + 5} ways were tried.")
    assert choice.spec.data.chosen_by == choice.notes
    assert dict(choice.spec.data.evidence) == {"preparation": "labels", "classes": "labels"}
    assert dict(choice.picked(choice.trials[1]).data.evidence)["preparation"] == "person"
    assert loads(dumps(choice.spec), RunSpec) == choice.spec
    assert choice.spec.data.preparation == "given"


def test_of_look_alikes_the_one_that_answers_right_is_chosen(trained, pictures):
    trained(architectures=("resnet10t", "resnet14t"), knows="resnet14t", side=OWN_SIDE)
    choice = choose_preparation(asked(pictures))
    assert choice.spec.model == ModelSpec(library="timm", name="resnet14t", checkpoint="net.pth")
    assert choice.chosen.title == "timm/resnet14t, its own preprocessing"
    assert choice.spec.data.mean == ()


def test_a_good_preprocessing_is_left_at_once(trained, pictures):
    trained(side=OWN_SIDE)
    choice = choose_preparation(asked(pictures))
    assert "that is good enough to try no other" in choice.verdict
    assert "preparation" not in dict(choice.spec.data.evidence)  # nothing was compared
    assert len(choice.trials) == 1
    assert choice.spec.model.img_size is None
    assert (choice.spec.data.mean, choice.spec.data.crop_pct) == ((), None)


def test_labels_that_say_nothing_choose_nothing(trained, pictures, tmp_path):
    generator = np.random.default_rng(3)
    for number, path in enumerate(sorted(pictures.rglob("*.png"))):
        home = tmp_path / str(generator.integers(CLASSES))
        home.mkdir(exist_ok=True)
        (home / f"{number}.png").write_bytes(path.read_bytes())
    trained(side=OWN_SIDE, **HALF)
    choice = choose_preparation(asked(tmp_path))
    assert choice.chosen.title == "the architecture's own"
    assert "clearly better" in choice.verdict
    assert "preparation" not in dict(choice.spec.data.evidence)  # so it is known as before


def test_what_is_given_is_kept(trained, pictures):
    trained(**HALF)
    spec = asked(pictures, mean=NONE["mean"], std=NONE["std"], crop_pct=0.9)
    found = choose_preparation(spec).spec
    assert (found.data.mean, found.data.std, found.data.crop_pct) == (NONE["mean"], NONE["std"], 0.9)
    assert "preparation" not in dict(found.data.evidence)  # a person gave it
    sized = RunSpec(
        model=ModelSpec(library="timm", name="resnet10t", checkpoint="net.pth", img_size=48), data=spec.data
    )
    assert choose_preparation(sized).spec.model.img_size == 48


def test_without_labels_it_is_a_guess_that_says_so(trained, pictures):
    trained(**HALF)
    choice = choose_preparation(asked(pictures, labels="none"))
    assert choice.guess
    assert any("no labels, so the preprocessing is a guess" in note for note in choice.notes)
    assert choice.spec.model.img_size == NATIVE
    assert choice.spec.data.evidence == (("preparation", "images"),)
    assert all(trial.correct is None for trial in choice.trials)


def test_random_inputs_and_a_random_classifier_choose_nothing(trained, pictures):
    trained(fresh_head=True)
    assert choose_preparation(asked(pictures)).notes == ()
    noise = RunSpec(
        model=ModelSpec(library="auto", checkpoint="net.pth"), data=DataSpec(kind="random", preparation="auto")
    )
    settled = choose_preparation(noise).spec
    assert (settled.model, settled.data.preparation) == (noise.model, "given")


def test_an_architecture_that_the_numbers_refute_is_passed_over(trained, pictures, monkeypatch):
    trained(architectures=("resnet10t", "resnet14t"), side=OWN_SIDE)
    load = candidate_runs.load_model

    def refuse_first(model):
        if model.name == "resnet10t":
            raise InvalidCheckpoint("it would be a variance and holds negative numbers")
        return load(model)

    monkeypatch.setattr(candidate_runs, "load_model", refuse_first)
    assert choose_preparation(asked(pictures)).spec.model.name == "resnet14t"
    trained()
    monkeypatch.setattr(
        candidate_runs, "load_model", lambda model: refuse_first(ModelSpec(library="timm", name="resnet10t"))
    )
    with pytest.raises(InvalidCheckpoint, match="would be a variance"):
        choose_preparation(asked(pictures))


@pytest.mark.parametrize("wrong", [{"channel_order": "grb"}, {"preparation": "maybe"}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(InvalidSpec):
        DataSpec(**wrong)


@pytest.mark.parametrize("side", first_of([64, "size"]), ids=["fixed size", "free size"])
def test_an_onnx_file_is_prepared_as_its_network_was_trained(pictures, tmp_path, side):
    """The file itself is read, once for every size; it says nothing of its preparation."""
    colours = (np.array(SHADES) / 255 - 0.5) / 0.5
    weight, bias = (400 * colours).astype(np.float32), (-200 * (colours**2).sum(1)).astype(np.float32)
    nodes = [node("GlobalAveragePool", "x", "p"), node("Flatten", "p", "f"), node("Gemm", "f w b", "y", transB=1)]
    path = tmp_path / "shades.onnx"
    path.write_bytes(file_of(nodes, {"w": weight, "b": bias}, shape=("n", 3, side, side)))
    spec = replace(asked(pictures), model=ModelSpec(library="onnx", checkpoint=str(path), task="classification"))
    choice = choose_preparation(spec)
    assert choice.chosen.title == "values from −1 to 1"
    assert choice.chosen.correct == choice.chosen.num_images
    tried = {trial.title: trial.correct for trial in choice.trials}
    assert "mean and spread of ImageNet" in tried
    assert tried["crop of 87.5 %, values from −1 to 1"] == choice.chosen.correct  # the whole picture is as good
    assert choice.spec.model == spec.model
    assert choice.spec.data.std == (0.5,) * 3


def test_ways_that_would_take_too_long_are_counted(trained, pictures, monkeypatch):
    """Those that differ by the crop alone from the values that suit the labels are tried all the same."""
    trained(side=OWN_SIDE, **HALF)
    monkeypatch.setattr(candidate_runs, "macs_of", lambda *_: candidate_runs._MACS)
    said = r"Not tried, as it would take too long: \d+ more ways to prepare the images\."
    choice = choose_preparation(asked(pictures))
    assert re.fullmatch(said, choice.notes[-1])
    assert {"values from −1 to 1", "crop of 100 %, values from −1 to 1"} <= {each.title for each in choice.trials}
