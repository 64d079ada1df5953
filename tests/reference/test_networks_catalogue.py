"""The index that ships with the project, held against the installed libraries."""

import json
import random

import pytest
import timm
import torch
import torchvision

from scripts.build_catalogue import all_architectures, survey_architecture
from senseapp.networks.checkpoints.architectures import load_index
from senseapp.networks.checkpoints.checkpoint import Checkpoint
from senseapp.networks.checkpoints.stored_networks import find_networks
from senseapp.networks.profile import profile_model
from senseapp.networks.sources.catalogue import CATALOGUE_FILE, find_entry, load_catalogue
from senseapp.networks.sources.libraries import build_on_meta
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec
from tests.cases import first_of

REBUILD = "run python -m scripts.build_catalogue"
_LARGE = 400_000_000  # parameters; even without memory, such a network takes seconds to describe


def sample(count, seed):
    names = [(entry.library, entry.name) for entry in load_catalogue() if entry.num_params < _LARGE]
    return random.Random(seed).sample(names, count)


def test_the_index_describes_the_installed_versions():
    installed = {"timm": timm.__version__, "torchvision": torchvision.__version__.split("+")[0]}
    assert json.loads(CATALOGUE_FILE.read_text())["versions"] == installed, REBUILD


def test_every_installed_architecture_is_in_the_index():
    indexed = [(entry.library, entry.name) for entry in load_catalogue()]
    assert indexed == all_architectures(), REBUILD
    assert [(item.library, item.name) for item in load_index().architectures] == indexed, REBUILD


@pytest.mark.slow
@pytest.mark.parametrize("architecture", first_of(map(pytest.param, sample(10, seed=1))), ids="/".join)
def test_a_sample_recomputed_gives_the_same_figures(architecture):
    assert survey_architecture(*architecture)[0] == find_entry(*architecture)


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(range(4), 1))
def test_a_sample_is_recognised_with_any_number_of_classes(seed):
    for library, name in sample(10, seed=100 + seed):
        num_classes = random.Random(f"{library}/{name}").randint(2, 3000)
        num_classes += num_classes == find_entry(library, name).num_classes
        state = build_on_meta(library, name, num_classes=num_classes).state_dict()
        found = find_networks(Checkpoint(file_name="", tensors=state))[0].candidates
        best = {
            (each.library, each.name): each for each in found if each.score == found[0].score
        }  # twins share the rank
        assert (library, name) in best, f"{library}/{name} was taken for {found[0].title}"
        assert best[library, name].num_classes in (num_classes, None)
