"""A loaded network with its image preprocessing; its weights: downloaded, initialised with a seed, or skipped."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from senseapp.core.errors import InvalidCheckpoint, InvalidSpec
from senseapp.tasks.class_numbers import Background
from senseapp.tasks.reading import Evidence, OutputReader

if TYPE_CHECKING:
    from senseapp.networks.onnx.open import OpenedOnnx


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the red, green and blue of ImageNet's training pictures, as torchvision and timm normalise with."""
FITS = ("crop", "letterbox", "corner", "stretch")
"""Ways to bring a picture to the size of the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """Conversion of a picture to one input of the model.

    Attributes:
        input_shape: one image, (C, H, W).
        mean, std: per channel, on the 0 to 1 scale.
        crop_pct: share of the resized shorter side that the centre crop keeps.
        interpolation: ``bilinear``, ``bicubic`` or ``nearest``.
        channel_order: ``rgb``, or ``bgr`` for a model trained on pictures read by OpenCV or Caffe.
        fit: ``crop`` keeps the middle of the picture, ``letterbox`` all of it with grey borders, ``corner`` all of it
            at the upper left, grey beside it, ``stretch`` all of it without regard to its proportions.
    """

    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float = 1.0
    interpolation: str = "bilinear"
    channel_order: str = "rgb"
    fit: str = "crop"
    USUAL_CROP: ClassVar[float] = 224 / 256  # of timm and torchvision: the middle 224 pixels of 256

    @property
    def fit_words(self) -> str:
        """The fit in words, with the share that a crop keeps."""
        return f"crop of {100 * self.crop_pct:.3g} %" if self.fit == "crop" else self.fit


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A network in ``eval()`` mode, float32, on the CPU, with its origin.

    Attributes:
        module: takes (N, C, H, W) and returns class scores (N, num_classes), or what its task reads.
        title: display name.
        preprocessing: the model's own preprocessing.
        prepared_as: what that is called where images compare it with others.
        preparation_evidence: how it is known.
        readers: what may read the outputs, the most probable first, which does; empty where there is one way.
        num_classes: width of the output.
        pretrained: whether the weights were trained; random ones are always labelled so.
        class_names: one per output, where known; else empty.
        fresh_head: whether the classifier is random because the checkpoint lacks one; labels then mean nothing.
        notes: sentences for the user (adapted head, weights that are not finite).
        onnx: the ONNX file that the network was built from, with the tensor of each parameter; None for others.
        task: one of :data:`senseapp.tasks.TASKS` that its output is known to be made for; empty where nothing says.
        background: of a detector, which of its classes says that there is no object.
    """

    module: nn.Module
    title: str
    preprocessing: Preprocessing
    prepared_as: str = "the architecture's own"
    preparation_evidence: Evidence = "library"
    readers: tuple[OutputReader, ...] = ()
    num_classes: int
    pretrained: bool
    class_names: tuple[str, ...] = ()
    fresh_head: bool = False
    notes: tuple[str, ...] = ()
    onnx: OpenedOnnx | None = None
    task: str = ""
    background: Background = "unknown"


_FILLING = frozenset(
    {
        *(Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.mul_, Tensor.add_, Tensor.clamp_),
        *(nn.init.normal_, nn.init.uniform_),
        *(nn.init.kaiming_normal_, nn.init.kaiming_uniform_, nn.init.xavier_normal_, nn.init.xavier_uniform_),
    }
)


@contextmanager
def seeded_weights() -> Iterator[None]:
    """Initialise weights from a fixed seed inside the block; the state of torch's own generator is restored.

    A network with random weights is then the same in every process.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


class skip_weight_init(TorchFunctionMode):  # noqa: N801  (used as a context manager)
    """Leave parameters uninitialised inside the block: drawing them is most of the time to build a large network."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Call ``func``, unless it initialises a parameter."""
        kwargs = kwargs or {}
        filled = args[0] if args else kwargs.get("tensor")
        return filled if func in _FILLING and isinstance(filled, nn.Parameter) else func(*args, **kwargs)


def is_reachable(url: str) -> bool:
    """Return whether the server of ``url`` responds; True behind a proxy, where only the request itself shows it.

    This comes first because the libraries' own calls retry for most of a minute before they fail.
    """
    address = urlsplit(url)
    if address.scheme in urllib.request.getproxies():
        return True
    try:
        # a server that is reachable accepts well within; a page waits
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=3.0):
            return True
    except OSError:
        return False


def unavailable(title: str) -> InvalidCheckpoint:
    """Return the error, with the alternatives that work offline."""
    return InvalidCheckpoint(
        f"The published weights of {title} could not be downloaded, and they are not in this machine's cache. "
        "Upload weights of it, measure with random weights, or try the demo, which needs no network."
    )


_MAX_IMAGE_SIDE = 2048  # pixels: the first feature map of ResNet-50 then has 64 × 1024² numbers, 268 MB for one image
IMAGE_CHANNELS = 3  # of networks whose library builds them for pictures


def check_side(side: int | None, *, title: str) -> None:
    """Raise InvalidSpec if images of ``side`` pixels would be too large to measure with."""
    if side is not None and side > _MAX_IMAGE_SIDE:
        raise InvalidSpec(f"Images for {title} may have up to {_MAX_IMAGE_SIDE} pixels a side, got {side}.")


def channel_statistics(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Return the mean (or std) of ``channels`` channels: ``values``, or their average for each."""
    return values if len(values) == channels else (sum(values) / len(values),) * channels
