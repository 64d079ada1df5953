"""torchvision's image sets: downloaded by its own code from a server of the test, read, and refused offline."""

import functools
import http.server
import os
import threading
import time

import pytest
import torch
from torchvision import datasets

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidDataset, InvalidSpec
from senseapp.data import image_sets as fetching
from senseapp.data.downloads import (
    download_progress,
    image_set_folder,
    is_downloaded,
    new_partial_folder,
    weights_here,
    weights_so_far,
)
from senseapp.data.image_sets import TORCHVISION_SETS
from senseapp.data.load import load_images
from senseapp.data.pictures import survey_images
from senseapp.descriptions.sources import IMAGE_SETS
from senseapp.networks.loaded import Preprocessing
from senseapp.networks.sources.catalogue import find_entry
from senseapp.records.spec import DataSpec, RunSpec
from senseapp.tasks import CLASSIFICATION
from tests.image_set_files import EACH, Publisher

COLOUR = Preprocessing(input_shape=(3, 32, 32), mean=(0.0,) * 3, std=(1.0,) * 3)
NUM_CLASSES = {name: facts.num_classes for name, facts in IMAGE_SETS.items()} | {"eurosat": 4}  # as published here


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A web server for the files of image sets, and a home of the test's own."""
    monkeypatch.setenv("SENSEAPP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetching, "_POLL_SECONDS", 0.02)
    folder = tmp_path / "web"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield Publisher(folder, f"http://127.0.0.1:{server.server_port}", monkeypatch)
        server.shutdown()


def load(name, *, num_classes, labels="", class_names=(), **options):
    spec = DataSpec(kind="torchvision", name=name, labels=labels)
    return load_images(spec, COLOUR, num_classes=num_classes, class_names=class_names, **options, task=CLASSIFICATION)


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_each_set_is_downloaded_once_and_read(web, name):
    web.publish(name)
    num_classes = NUM_CLASSES[name]
    told = []
    images = load(name, num_classes=num_classes, num_samples=EACH * num_classes, progress=told.append)
    assert images.batch(0, len(images)).shape == (EACH * num_classes, 3, 32, 32)
    assert torch.bincount(images.labels).tolist() == [EACH] * num_classes
    facts = IMAGE_SETS[name]
    come = [f"Downloading {facts.title}: {megabytes} of {facts.megabytes} MB" for megabytes in range(2)]
    assert told[0] in come  # the file served has not two million bytes
    for served in web.folder.iterdir():
        served.unlink()
    again = load(name, num_classes=num_classes)  # nothing is asked of the server
    assert torch.equal(again.batch(0, 4), images.batch(0, 4))
    left = [path.name for path in image_set_folder(name).parent.rglob("*") if path.suffix in (".tgz", ".gz", ".zip")]
    assert left == []


@pytest.mark.skipif(os.name != "posix", reason="files have no such rights")
def test_what_a_command_downloads_into_the_home_is_its_owners_alone(web, tmp_path):
    """Whatever the modes of its files are, nobody else can enter the folder that they lie in."""
    usual, home = os.umask(0o022), tmp_path / "home"
    try:
        web.publish("mnist")
        load("mnist", num_classes=10)
    finally:
        os.umask(usual)
    written = [path for path in home.rglob("*") if path.is_file()]
    assert len(written) >= 2
    for path in written:
        assert any(not each.stat().st_mode & 0o077 for each in path.parents if each.is_relative_to(home)), path


def test_pictures_come_through_without_loss(web):
    web.publish("cifar10")
    images = load("cifar10", num_classes=10)
    original = datasets.CIFAR10(image_set_folder("cifar10"), train=False)
    for index in (0, 7, 19):
        expected = torch.from_numpy(original.data[index]).permute(2, 0, 1).float() / 255
        assert torch.equal(images.batch(index, index + 1)[0], expected)
        assert images.labels[index] == original.targets[index]
    assert images.class_names[3] == "thing 3"
    assert images.names[13] == "thing 3/00013"


def test_classes_keep_the_order_of_their_set_and_not_the_alphabets(web):
    web.publish("fashion_mnist")
    images = load("fashion_mnist", num_classes=10)
    assert images.labels.tolist() == [index % 10 for index in range(20)]
    assert images.class_names[:2] == ("T-shirt/top", "Trouser")
    assert any("in its order" in note for note in images.notes)
    survey = survey_images(DataSpec(kind="torchvision", name="fashion_mnist"), num_classes=10, task=CLASSIFICATION)
    assert survey.proposal.words == "in the set's own order"
    assert survey.label_counts[0] == ("T-shirt/top", EACH)
    assert survey.layout == "image set"


def test_the_digit_zero_of_house_numbers_is_class_zero(web):
    web.publish("svhn")
    assert load("svhn", num_classes=10).labels.tolist() == [(index + 1) % 10 for index in range(20)]


def test_imagenette_is_matched_to_a_model_of_imagenet_by_name(web):
    from senseapp.networks.sources.libraries import imagenet_class_names

    web.publish("imagenette")
    images = load("imagenette", num_classes=1000, class_names=imagenet_class_names())
    assert sorted(set(images.labels.tolist())) == [0, 217, 482, 491, 497, 566, 569, 571, 574, 701]


def test_a_model_of_other_classes_needs_a_mapping_or_no_labels(web):
    web.publish("cifar10")
    with pytest.raises(InvalidDataset, match="10 of 10 classes in the images match none of the model's 7"):
        load("cifar10", num_classes=7)
    assert load("cifar10", num_classes=7, labels="none").labels is None
    chosen = DataSpec(kind="torchvision", name="cifar10", class_map=(("thing 4", 6), ("thing 9", 0)))
    assert set(load_images(chosen, COLOUR, num_classes=7, task=CLASSIFICATION).labels.tolist()) == {0, 6}


def test_offline_is_one_sentence_that_offers_what_works(web, monkeypatch):
    monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:9/cifar.tar.gz")  # a port that nothing listens on
    with pytest.raises(InvalidDataset) as refusal:
        load("cifar10", num_classes=10)
    assert str(refusal.value) == (
        "CIFAR-10 could not be downloaded (its server cannot be reached), and it is not on this machine. Bring a "
        "folder or archive of images, take the demo, or measure on random inputs: these need no network."
    )


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_download_that_fails_leaves_nothing_and_can_be_tried_again(web, damage):
    web.publish("cifar10")
    archive = web.folder / "cifar-10-python.tar.gz"
    content = archive.read_bytes()
    if damage == "missing":
        archive.unlink()
    else:
        archive.write_bytes(content[:-100])
    with pytest.raises(InvalidDataset, match="CIFAR-10 could not be downloaded"):
        load("cifar10", num_classes=10)
    assert list(image_set_folder("cifar10").parent.iterdir()) == []
    archive.write_bytes(content)
    assert len(load("cifar10", num_classes=10)) == 20


def test_a_damaged_copy_is_said_removed_and_replaced(web):
    web.publish("mnist")
    load("mnist", num_classes=10)
    for file in image_set_folder("mnist").rglob("t10k-images*"):
        file.write_bytes(b"short")
    with pytest.raises(InvalidDataset, match="The copy of MNIST on this machine was damaged"):
        load("mnist", num_classes=10)
    assert not is_downloaded("mnist")
    assert len(load("mnist", num_classes=10)) == 20


def test_a_changed_cifar_file_is_never_unpickled(web):
    web.publish("cifar10")
    load("cifar10", num_classes=10)
    batch = next(image_set_folder("cifar10").rglob("test_batch"))
    batch.write_bytes(b"cos\nmkdir\n(V" + str(web.folder / "code-was-run").encode() + b"\ntR.")
    with pytest.raises(InvalidDataset, match="damaged"):
        load("cifar10", num_classes=10)
    assert not (web.folder / "code-was-run").exists()


class GaveUp(Exception):
    pass


def test_whoever_waits_can_give_up_and_two_who_wait_get_the_same_set(web, monkeypatch):
    gate = threading.Event()

    class Slow(datasets.CIFAR10):
        def __init__(self, folder, *, download, **options):
            if download:
                (folder / "half.bin").write_bytes(bytes(3_000_000))
                assert gate.wait(30)
                (folder / "half.bin").unlink()
            super().__init__(folder, download=download, **options)

    web.publish("cifar10")
    monkeypatch.setitem(TORCHVISION_SETS, "cifar10", functools.partial(Slow, train=False))

    def give_up(sentence):
        if sentence == "Downloading CIFAR-10: 3 of 170 MB":
            raise GaveUp

    with pytest.raises(GaveUp):
        load("cifar10", num_classes=10, progress=give_up)
    found = []
    waiting = [threading.Thread(target=lambda: found.append(load("cifar10", num_classes=10))) for _ in range(2)]
    for each in waiting:
        each.start()
    gate.set()
    for each in waiting:
        each.join(30)
    assert [len(images) for images in found] == [20, 20]


def test_a_download_that_stalls_is_given_up(web, monkeypatch):
    gate = threading.Event()

    class Stuck(datasets.MNIST):
        def __init__(self, *_, **__):
            gate.wait(30)

    monkeypatch.setitem(TORCHVISION_SETS, "mnist", Stuck)
    monkeypatch.setattr(fetching, "_STALLED_SECONDS", 0.1)
    with pytest.raises(InvalidDataset, match="nothing came for 0 seconds"):
        load("mnist", num_classes=10)
    gate.set()


def test_what_a_killed_download_left_is_removed_by_the_next(web, monkeypatch):
    left = new_partial_folder("mnist")
    (left / "part").write_bytes(bytes(5_000_000))
    assert download_progress("mnist") == "Downloading MNIST: 5 of 12 MB"
    (left / "unpacked").write_bytes(bytes(8_000_000))
    assert download_progress("mnist") == "Unpacking MNIST"
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 7 * 3600)
    fresh = new_partial_folder("mnist")
    assert not left.exists()
    assert fresh.is_dir()


def test_an_image_set_is_named_in_the_settings(web):
    spec = RunSpec(data=DataSpec(kind="torchvision", name="cifar10"))
    assert loads(dumps(spec), RunSpec) == spec
    assert spec.data.title == "torchvision/cifar10"
    with pytest.raises(InvalidSpec, match=r"cifar10, cifar100, mnist, .*got 'imagenet'"):
        DataSpec(kind="torchvision", name="imagenet")
    with pytest.raises(InvalidSpec, match="take no name"):
        DataSpec(kind="demo", name="cifar10")


def test_weights_on_this_machine_have_the_names_of_the_catalogue(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert weights_here() == frozenset()
    known = {find_entry("timm", "resnet18").weights, find_entry("torchvision", "resnet18").weights}
    assert known == {"timm/resnet18.a1_in1k", "resnet18-f37072fd.pth"}
    for name in (
        "torch/hub/checkpoints/resnet18-f37072fd.pth",
        "torch/hub/checkpoints/alexnet-owt-7be5be79.pth.1f.partial",
        "hub/models--timm--resnet18.a1_in1k/snapshots/49a7/model.safetensors",
        "hub/models--timm--resnet34.a1_in1k/snapshots/1a2b/config.json",
        "hub/models--timm--resnet50.a1_in1k/blobs/ab.incomplete",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
    assert weights_here() == known


def test_weights_on_their_way_are_counted_and_old_remains_are_not(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert weights_so_far() == 0
    for name, size in (
        ("torch/hub/checkpoints/resnet18-f37072fd.pth.1f.partial", 3_000),
        ("torch/hub/checkpoints/resnet18-f37072fd.pth", 50_000),
        ("hub/models--timm--resnet18.a1_in1k/blobs/ab.incomplete", 200),
        ("hub/models--other--thing/blobs/cd.incomplete", 10),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    assert weights_so_far() == 3_200
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 120)
    assert weights_so_far() == 0
