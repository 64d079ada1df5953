"""The picker's index: reading, searching and naming need no torch and no waiting."""

import subprocess
import sys

import pytest
import torchvision

from senseapp.core.errors import UnknownModel
from senseapp.networks.sources.catalogue import (
    POPULAR,
    family_refusal,
    find_entry,
    load_catalogue,
    parse_model,
    search,
    suggest,
)
from senseapp.records.spec import ModelSpec


def titles(text, **options):
    return [entry.title for entry in search(text, **options)]


def test_searching_loads_neither_torch_nor_the_libraries():
    program = (
        "import sys; from senseapp.networks.sources.catalogue import parse_model, search;"
        "assert search('vit_tiny'); parse_model('timm/resnet18');"
        "sys.exit(' '.join({'torch', 'timm', 'torchvision'} & set(sys.modules)) or None)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_the_exact_name_comes_first_then_names_that_start_with_it():
    assert titles("resnet50")[:2] == ["timm/resnet50", "torchvision/resnet50"]
    assert all("/resnet50" in title for title in titles("resnet50", limit=5))
    assert titles("vit_tiny_patch16_224")[0] == "timm/vit_tiny_patch16_224"


@pytest.mark.parametrize("text", ["ResNet-18", "RESNET18", " resnet_18 "])
def test_separators_capitals_and_the_order_of_words_do_not_matter(text):
    assert set(titles(text, limit=2)) == {"timm/resnet18", "torchvision/resnet18"}
    assert "timm/vit_tiny_patch16_224" in titles("tiny 224 vit")


def test_the_library_can_be_chosen():
    assert {entry.library for entry in search("resnet", library="torchvision")} == {"torchvision"}
    assert all(title.startswith("torchvision/") for title in titles("torchvision/resnet"))
    assert titles("torchvision/resnet", limit=1) == ["torchvision/resnet18"]
    assert search("no such network") == []


def test_published_figures_are_in_the_index():
    entry = find_entry("torchvision", "resnet18")
    assert entry is not None
    assert entry.num_params == 11_689_512
    assert entry.macs == 1_814_073_344
    assert entry.input_shape == (3, 224, 224)
    assert entry.num_layers == 21
    assert entry.num_classes == 1000
    assert entry.pretrained
    assert find_entry("timm", "resnet18.a1_in1k") == find_entry("timm", "resnet18")
    assert find_entry("timm", "resnet19") is None


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("demo", ModelSpec()),
        (" demo ", ModelSpec()),
        ("auto", ModelSpec(library="auto")),
        ("timm/resnet50", ModelSpec(library="timm", name="resnet50")),
        ("timm/resnet50.a1_in1k", ModelSpec(library="timm", name="resnet50.a1_in1k")),
        ("torchvision/resnet50", ModelSpec(library="torchvision", name="resnet50")),
        ("vit_tiny_patch16_224", ModelSpec(library="timm", name="vit_tiny_patch16_224")),
        ("squeezenet1_1", ModelSpec(library="torchvision", name="squeezenet1_1")),
    ],
)
def test_a_model_is_named_in_text(text, spec):
    assert parse_model(text) == spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("resnet18", "Both libraries have 'resnet18'. Write timm/resnet18 or torchvision/resnet18"),
        ("resnet19", "Neither timm nor torchvision"),
        ("timm/nope", "timm has no architecture named 'nope'"),
        ("torchvision/raft_large", "'raft_large' of torchvision is an optical-flow network"),
        ("r3d_18", "'r3d_18' of torchvision is a video network"),
        ("torchvision/quantized_resnet18", "choose the same network without “quantized_”"),
        ("keras/resnet50", "demo, auto, onnx, timm/NAME or torchvision/NAME"),
        ("", "Neither"),
    ],
)
def test_names_that_mean_nothing_or_two_things_are_refused(text, said):
    with pytest.raises(UnknownModel, match=said):
        parse_model(text)


def test_without_a_text_popular_networks_come_first_and_filters_hold():
    every = suggest("", lambda entry: True, limit=5000)
    assert [entry.title for entry in every[: len(POPULAR)]] == list(POPULAR)
    assert len(every) == len(set(every)) == len(load_catalogue())
    assert all(entry.pretrained and entry.num_classes for entry in every[: len(POPULAR)])
    small = suggest("resnet", lambda entry: entry.num_params < 12_000_000, limit=5000)
    assert {entry.title for entry in small} == {
        entry.title for entry in search("resnet", limit=5000) if entry.num_params < 12_000_000
    }


def test_every_family_of_torchvision_is_in_the_catalogue_or_refused_with_its_reason() -> None:
    listed = {entry.name for entry in load_catalogue() if entry.library == "torchvision"}
    left = [name for name in torchvision.models.list_models() if name not in listed and not family_refusal(name)]
    assert left == []
    assert not [name for name in listed if family_refusal(name)]
