"""Twelve checkpoints that do not say which architecture they belong to or how their pictures were prepared.

Each is given with fifty labelled pictures and nothing else, as a person would upload it. It counts as right if the
architecture and the preprocessing that it was trained with are both chosen, or others that give the very same answers
to every picture. Five hold the real network's weights, seven are small networks trained here.

The photographs' labels are the real network's own answers to *other views* of the same crops under its right
preprocessing (mirrored, and zoomed in), so that even the right preprocessing is not right on all of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import safetensors.torch
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms.functional import to_tensor

from benchmarks.real.network import load_network, published_checkpoint, write_checkpoint
from benchmarks.real.photographs import MADE_FROM, SCORED_ON, photographs, write_photographs
from benchmarks.real.small_checkpoints import HALF, IMAGENET, NONE, RAW, TrainedNetwork, trained, write_pictures
from benchmarks.results import Row
from senseapp.data.load import load_images
from senseapp.measure.preparation_search import choose_preparation
from senseapp.networks.sources.load import load_model
from senseapp.records.inputs import PreparationChoice
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.tasks import CLASSIFICATION

_NUM_PICTURES = 50
_SEED = 7


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One checkpoint.

    Attributes:
        title: what is hard about it.
        write: writes the file into a folder and returns its path.
        pictures: writes fifty labelled pictures into a folder.
        right: the architecture, the image size (None: its own) and the preparation that it was trained with.
    """

    title: str
    write: Callable[[Path], Path]
    pictures: Callable[[Path], Path]
    right: tuple[ModelSpec, DataSpec]


def rows() -> Iterator[Row]:
    """Yield one row for each checkpoint, and one for all."""
    outcomes = []
    for case in _cases():
        with tempfile.TemporaryDirectory() as folder:
            is_right, found = _outcome(case, Path(folder))
        outcomes.append(is_right)
        yield Row(what=f"checkpoint: {case.title}", wanted="chosen right", found=found, holds=is_right)
    count = f"{sum(outcomes)} of {len(outcomes)}"
    wanted = f"{len(outcomes)} of {len(outcomes)}"
    yield Row(what="checkpoints chosen right with 50 labelled images", wanted=wanted, found=count, holds=all(outcomes))


def _outcome(case: _Case, folder: Path) -> tuple[bool, str]:
    images = case.pictures(folder / "images")
    checkpoint = str(case.write(folder))
    spec = RunSpec(
        model=ModelSpec(library="auto", checkpoint=checkpoint),
        data=DataSpec(kind="folder", path=str(images), preparation="auto"),
    )
    choice = choose_preparation(spec)
    model, data = case.right
    right = RunSpec(
        model=ModelSpec(library=model.library, name=model.name, img_size=model.img_size, checkpoint=checkpoint),
        data=DataSpec(
            kind="folder",
            path=str(images),
            **{name: getattr(data, name) for name in ("mean", "std", "crop_pct")},
            channel_order=data.channel_order,
        ),
    )
    is_right = torch.equal(_answers(choice.spec), _answers(right))
    return is_right, _found(choice)


def _found(choice: PreparationChoice) -> str:
    if choice.chosen is None:
        return "nothing to choose by"
    return f"{choice.chosen.spec.model.title}: {choice.chosen.title}: {choice.chosen.result}"


def _answers(spec: RunSpec) -> Tensor:
    """Return the class scores of all pictures, (N, C)."""
    model = load_model(spec.model)
    images = load_images(
        spec.data,
        model.preprocessing,
        num_classes=model.num_classes,
        class_names=model.class_names,
        task=CLASSIFICATION,
    )
    with torch.inference_mode():
        return model.module(images.batch(0, len(images)))


def _cases() -> Iterator[_Case]:
    yield from _real_cases()
    yield from _small_cases()


def _real_cases() -> Iterator[_Case]:
    right = ModelSpec(library="timm", name="tf_efficientnet_lite0"), DataSpec()
    writers: dict[str, Callable[[Path], Path]] = {
        "tf_efficientnet_lite0.pth, the name says which look-alike": lambda folder: write_checkpoint(
            folder / "tf_efficientnet_lite0.pth"
        ),
        "the same as weights.pth, only the images say which": lambda folder: write_checkpoint(folder / "weights.pth"),
        "the same as weights.safetensors": lambda folder: write_checkpoint(folder / "weights.safetensors"),
        "renamed, as its package brings it": lambda folder: published_checkpoint(),
        "renamed otherwise, other order within layers, no counters": _write_renamed,
    }
    for title, write in writers.items():
        yield _Case(title=title, write=write, pictures=_labelled_photographs, right=right)


def _write_renamed(folder: Path) -> Path:
    """Write the weights as another framework might name them: variance before mean before beta before gamma."""
    renamed, layers = {}, {}
    for name, tensor in load_network().state_dict().items():
        layer, _, suffix = name.rpartition(".")
        if suffix != "num_batches_tracked":
            layers.setdefault(layer, {})[suffix] = tensor
    new_names = {"running_var": "moving_variance", "running_mean": "moving_mean", "bias": "beta", "weight": "gamma"}
    for number, tensors in enumerate(layers.values()):
        is_norm = "running_var" in tensors
        for suffix, new_name in new_names.items():
            if suffix in tensors:
                renamed[f"net/op_{number}/{new_name if is_norm else suffix}"] = tensors[suffix]
    torch.save({"epoch": 3, "state_dict": renamed}, folder / "converted.ckpt")
    return folder / "converted.ckpt"


@cache
def _photograph_labels() -> tuple[int, ...]:
    network, labels = load_network(), []
    for crop in photographs(_NUM_PICTURES, MADE_FROM + SCORED_ON, seed=_SEED):
        views = [ImageOps.mirror(crop), ImageOps.fit(crop.crop((24, 24, 232, 232)), crop.size)]
        with torch.inference_mode():
            scores = network(torch.stack([_seen(view) for view in views]))
        labels.append(int(scores.softmax(dim=1).mean(dim=0).argmax()))
    return tuple(labels)


def _seen(view: Image.Image) -> Tensor:
    return (to_tensor(view)[:, 16:240, 16:240] - 0.5) / 0.5


def _labelled_photographs(folder: Path) -> Path:
    return write_photographs(folder, _NUM_PICTURES, MADE_FROM + SCORED_ON, seed=_SEED, labels=_photograph_labels())


_SMALL = {
    "native 32 px, grey, 0.5": TrainedNetwork(architecture="resnet18", side=32, mean=(0.5,), std=(0.5,), channels=1),
    "native 32 px, ImageNet": TrainedNetwork(architecture="resnet10t", side=32, mean=IMAGENET[0], std=IMAGENET[1]),
    "native 48 px, values from 0 to 1": TrainedNetwork(
        architecture="resnet10t", side=48, mean=NONE[0], std=NONE[1], seed=1
    ),
    "native 64 px, 0.5, mobile": TrainedNetwork(
        architecture="mobilenetv3_small_050", side=64, mean=HALF[0], std=HALF[1], epochs=25
    ),
    "native 32 px, BGR, 0.5": TrainedNetwork(
        architecture="resnet10t", side=32, mean=HALF[0], std=HALF[1], bgr=True, colour_is_class=True, seed=2
    ),
    "native 32 px, values from 0 to 255": TrainedNetwork(
        architecture="resnet10t", side=32, mean=RAW[0], std=RAW[1], seed=3
    ),
    "native 64 px, padding of TensorFlow, 0.5": TrainedNetwork(
        architecture="tf_mobilenetv3_small_075", side=64, mean=HALF[0], std=HALF[1], epochs=25
    ),
}


def _small_cases() -> Iterator[_Case]:
    for number, (title, recipe) in enumerate(_SMALL.items()):
        data = DataSpec(
            mean=recipe.mean[: recipe.channels],
            std=recipe.std[: recipe.channels],
            crop_pct=1.0,
            channel_order="bgr" if recipe.bgr else "rgb",
        )
        yield _Case(
            title=title,
            write=partial(_write_small, recipe, "net.safetensors" if number % 2 else "net.pth"),
            pictures=partial(write_pictures, recipe=recipe, count=_NUM_PICTURES),
            right=(ModelSpec(library="timm", name=recipe.architecture, img_size=recipe.side), data),
        )


def _write_small(recipe: TrainedNetwork, name: str, folder: Path) -> Path:
    state = trained(recipe).state_dict()
    if name.endswith(".safetensors"):
        safetensors.torch.save_file(state, folder / name)
    else:
        torch.save(state, folder / name)
    return folder / name
