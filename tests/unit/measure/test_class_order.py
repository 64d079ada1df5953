"""The images decide in which order a network's outputs are the classes; accuracy is counted here by a plain loop."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from senseapp.cli.main import main
from senseapp.data.load import load_images
from senseapp.measure import candidate_runs
from senseapp.measure.preparation_search import choose_class_order, choose_preparation
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.tasks import CLASSIFICATION
from tests.cases import first_of

SIDE = 16
OWN = Preprocessing(input_shape=(3, SIDE, SIDE), mean=(0.0,) * 3, std=(1.0,) * 3, crop_pct=1.0)
HALF = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
MODEL = ModelSpec(library="timm", name="resnet10t", checkpoint="net.pth")


def shades(count):
    return [(20 + 200 * index // count, 60, 250 - 200 * index // count) for index in range(count)]


class Shades(nn.Module):
    """Knows colours; output ``k`` is the colour of the folder ``order[k]``."""

    def __init__(self, colours, *, half=False, constant=False):
        super().__init__()
        known = torch.tensor(colours) / 255
        self.known, self.constant = (known - 0.5) / 0.5 if half else known, constant

    def forward(self, images):
        scores = -200 * (images.mean(dim=(2, 3))[:, None] - self.known).square().sum(dim=2)
        return torch.tensor([[0.0, 3.0]]).repeat(len(images), 1) + 0 * scores[:, :2] if self.constant else scores


class Answering(nn.Module):
    """Gives ``scores``, a batch at a time."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def forward(self, images):
        return next(self.scores)[: len(images)]


def model_of(names, order, **options):
    colours = dict(zip(names, shades(len(names)), strict=True))
    module = Shades([colours[name] for name in order], **options).eval()
    return LoadedModel(module=module, title="m", preprocessing=OWN, num_classes=len(order), pretrained=True)


def pictures(folder, names, counts):
    generator = np.random.default_rng(0)
    for name, shade in zip(names, shades(len(names)), strict=True):
        (folder / name).mkdir(parents=True)
        for number in range(counts[names.index(name)] if isinstance(counts, list) else counts):
            pixels = (np.array(shade) + generator.normal(0, 20, (SIDE, SIDE, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return RunSpec(model=MODEL, data=DataSpec(kind="folder", path=str(folder)))


def images_of(spec, model):
    return load_images(spec.data, model.preprocessing, num_classes=model.num_classes, task=CLASSIFICATION)


def share_right(spec, model):
    images = images_of(spec, model)
    return np.mean(
        [int(model.module(images.batch(i, i + 1)).argmax()) == int(images.labels[i]) for i in range(len(images))]
    )


NUMBERS = [str(number) for number in range(12)]
CASES = {
    "by number": (NUMBERS, NUMBERS),
    "as text": (NUMBERS, sorted(NUMBERS)),
    "from one, as text": ([str(n) for n in range(1, 13)], sorted(str(n) for n in range(1, 13))),
    "natural": ([f"kind {n}" for n in range(12)], [f"kind {n}" for n in range(12)]),
    "capitals aside": (["Bee", "ant", "Cow", "dog"], ["ant", "Bee", "Cow", "dog"]),
    "the other way round": (["bad", "good"], ["good", "bad"]),
}


@pytest.mark.parametrize("name", first_of(CASES, 3))
def test_the_order_under_which_the_model_is_right_is_chosen(tmp_path, name):
    names, order = CASES[name]
    spec, model = pictures(tmp_path, names, 64 // len(names)), model_of(names, order)
    choice = choose_class_order(spec, model, images_of(spec, model))
    assert share_right(choice.spec, model) == 1
    assert dict(choice.spec.data.class_map) == {folder: order.index(folder) for folder in names}
    if name == "by number":
        assert "good enough to try no other" in choice.verdict
        return
    assert share_right(spec, model) < 0.5
    assert choice.verdict.startswith("Class order chosen by")
    assert all(trial.correct < 64 for trial in choice.trials if trial != choice.chosen)
    assert choice.spec.data.chosen_by == choice.notes


SWAPPED = ["a", "b", "e", "c", "d"]


@pytest.mark.parametrize("order", [["c", "a", "e", "b", "d"], SWAPPED])
def test_classes_are_taken_as_the_network_finds_them_where_no_name_tells(tmp_path, order):
    spec, model = pictures(tmp_path, sorted(order), 8), model_of(sorted(order), order)
    choice = choose_class_order(spec, model, images_of(spec, model))
    assert dict(choice.spec.data.class_map) == {name: order.index(name) for name in order}
    assert share_right(choice.spec, model) == 1
    assert "classes as the network finds them: 20 of 20 right" in choice.verdict
    assert any("matched on 20 images and judged on the other 20" in note for note in choice.notes)
    assert dict(choice.spec.data.evidence)["classes"] == "labels"


def test_labels_that_come_in_turns_are_halved_too(tmp_path):
    """Every second picture of a table may be of the same classes."""
    order = ["c", "a", "d", "b"]
    spec, model = pictures(tmp_path / "set", sorted(order), 12), model_of(sorted(order), order)
    lines = [f"{name}/{number}.png,{name}" for number in range(12) for name in sorted(order)]
    flat = tmp_path / "flat"
    flat.mkdir()
    for at, line in enumerate(lines):
        (tmp_path / "set" / line.split(",")[0]).rename(flat / f"{at:02}.png")
    (flat / "labels.csv").write_text(
        "file,label\n" + "\n".join(f"{at:02}.png,{line[-1]}" for at, line in enumerate(lines))
    )
    spec = replace(spec, data=DataSpec(kind="folder", path=str(flat), labels="labels.csv"))
    choice = choose_class_order(spec, model, images_of(spec, model))
    assert dict(choice.spec.data.class_map) == {name: order.index(name) for name in order}


def test_names_of_classes_are_never_matched_otherwise(tmp_path):
    model = replace(model_of(sorted(SWAPPED), SWAPPED), class_names=tuple(sorted(SWAPPED)))
    spec = pictures(tmp_path, sorted(SWAPPED), 8)
    images = load_images(spec.data, OWN, num_classes=5, task=CLASSIFICATION, class_names=model.class_names)
    assert choose_class_order(spec, model, images).spec == spec


@pytest.mark.wide
def test_a_network_that_guesses_is_given_no_order(tmp_path):
    """A match of scores that know nothing on one half of the images is hardly ever better on the other."""
    spec = pictures(tmp_path, ["a", "b", "c"], 20)
    model = model_of(["a", "b", "c"], ["a", "b", "c"])
    images, wrong = images_of(spec, model), 0
    for seed in range(20):
        torch.manual_seed(seed)
        guessing = replace(model, module=Answering(iter(torch.randn(64, 3).split(16))))
        wrong += choose_class_order(spec, guessing, images).spec != spec
    assert wrong <= 1


def test_one_order_or_a_confirmed_one_is_left_as_it_is(tmp_path):
    spec, model = pictures(tmp_path, ["a", "b", "c"], 4), model_of(["a", "b", "c"], ["c", "b", "a"])
    assert choose_class_order(spec, model, images_of(spec, model)).spec == spec  # too few images to judge a match
    two = pictures(tmp_path / "two", ["a", "b"], 20)
    given = replace(two, data=replace(two.data, class_map=(("a", 0), ("b", 1))))
    turned = model_of(["a", "b"], ["b", "a"])
    assert choose_class_order(given, turned, images_of(given, turned)).spec == given
    assert choose_class_order(two, turned, images_of(two, turned)).spec.data.class_map == (("b", 0), ("a", 1))


def test_answers_that_are_always_the_same_choose_no_order(tmp_path):
    spec = pictures(tmp_path, ["a", "b"], [50, 10])
    model = model_of(["a", "b"], ["a", "b"], constant=True)
    choice = choose_class_order(spec, model, images_of(spec, model))
    assert "no other of 2 ways is clearly better" in choice.verdict
    assert choice.spec.data.class_map == (("a", 0), ("b", 1))
    assert choice.spec.data.evidence == (("classes", "assumed"),)


def test_preprocessing_and_order_are_found_together(tmp_path, monkeypatch):
    spec, model = pictures(tmp_path, NUMBERS, 5), model_of(NUMBERS, sorted(NUMBERS), half=True)
    monkeypatch.setattr(candidate_runs, "load_model", lambda _: model)
    choice = choose_preparation(replace(spec, data=replace(spec.data, preparation="auto")))
    assert choice.subject == "Preprocessing and class order"
    assert (choice.spec.data.mean, choice.spec.data.std) == (HALF["mean"], HALF["std"])
    assert dict(choice.spec.data.class_map) == {name: sorted(NUMBERS).index(name) for name in NUMBERS}
    assert "classes by number as text (1, 10, 2)" in choice.chosen.title


def test_the_command_line_takes_a_class_map_or_says_what_is_wrong_with_it(tmp_path, capsys):
    pictures(tmp_path / "set", ["0", "1"], 3)
    arguments = ["analyze", "--model", "demo", "--data", str(tmp_path / "set"), "--compression", "sparsity"]
    arguments += ["--levels", "50", "--mode", "quick", "--layers", "head", "--out", str(tmp_path / "run")]
    bad = tmp_path / "bad.csv"
    for text, reason in (("0,0\n1,1\n", "cannot be told"), ("label,class\n0,99\n", "from 0 to 9, got 0 → 99")):
        bad.write_text(text)
        assert main([*arguments, "--class-map", str(bad)]) == 2
        assert reason in capsys.readouterr().err
    assert main([*arguments, "--class-map", str(tmp_path / "gone.csv")]) == 2
    assert "gone.csv cannot be read" in capsys.readouterr().err
    assert main([*arguments, "--labels", "none", "--class-map", str(bad)]) == 2
    assert "there are none to read" in capsys.readouterr().err
