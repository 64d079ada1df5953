"""The index that ships with the project, held against the installed libraries."""

from __future__ import annotations

import random

import pytest
import timm
import torch
import torchvision

from scripts.architecture_survey import build_on_meta, survey_architecture
from scripts.build_catalogue import all_architectures
from senseapp.layers import profile_model
from senseapp.models import load_model
from senseapp.models.catalogue import find_entry, library_versions, load_catalogue
from senseapp.models.recognise import recognise
from senseapp.models.recognition_index import load_fingerprints
from senseapp.spec import ModelSpec

REBUILD = "run python -m scripts.build_catalogue"
_LARGE = 400_000_000  # parameters; even without memory, such a network takes seconds to describe


def sample(count, seed):
    names = [(entry.library, entry.name) for entry in load_catalogue() if entry.num_params < _LARGE]
    return random.Random(seed).sample(names, count)


def test_the_index_describes_the_installed_versions():
    installed = {"timm": timm.__version__, "torchvision": torchvision.__version__.split("+")[0]}
    assert library_versions() == installed, REBUILD


def test_every_installed_architecture_is_in_the_index():
    indexed = [(entry.library, entry.name) for entry in load_catalogue()]
    assert indexed == all_architectures(), REBUILD
    assert [(item.library, item.name) for item in load_fingerprints()] == indexed, REBUILD


@pytest.mark.parametrize("architecture", sample(10, seed=1), ids="/".join)
def test_a_sample_recomputed_gives_the_same_figures(architecture):
    survey, entry = survey_architecture(*architecture), find_entry(*architecture)
    assert entry is not None
    for what in ("num_params", "macs", "input_shape", "num_layers", "num_classes", "pretrained"):
        assert getattr(survey, what) == getattr(entry, what), what


@pytest.mark.parametrize("name", ["timm/resnet18", "torchvision/mobilenet_v3_small", "timm/test_vit"])
def test_the_figures_agree_with_a_real_forward_pass(name):
    library, _, architecture = name.partition("/")
    entry = find_entry(library, architecture)
    profile = profile_model(
        load_model(ModelSpec(library=library, name=architecture)).module, torch.zeros((1, *entry.input_shape))
    )
    assert profile.num_params == entry.num_params
    assert profile.macs == entry.macs
    assert len(profile.layers) == entry.num_layers


@pytest.mark.parametrize("seed", range(4))
def test_a_sample_is_recognised_with_any_number_of_classes(seed):
    rng = random.Random(seed)
    for library, name in sample(10, seed=100 + seed):
        num_classes = rng.randrange(2, 3000)
        module = build_on_meta(library, name, num_classes=num_classes)
        candidates = recognise({key: tuple(value.shape) for key, value in module.state_dict().items()}, limit=50)
        first = [item for item in candidates if item.score == candidates[0].score]
        mine = [item for item in first if (item.library, item.name) == (library, name)]
        assert mine, f"{library}/{name} was taken for {first[0].title}"
        assert mine[0].num_classes in (num_classes, None)
