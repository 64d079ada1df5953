"""Networks as float files, with images to fit int8 files to and images to score them on."""

from __future__ import annotations

from typing import cast

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.real.network import load_network
from benchmarks.real.photographs import MADE_FROM, tensors
from senseapp.data.load import load_demo_images
from senseapp.networks.network import Network
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.networks.sources.demo import load_demo_model
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.onnxruntime.rounding.products import products
from senseapp.runtimes.onnxruntime.rounding.qdq import Rounding, rounded_tensors
from senseapp.runtimes.onnxruntime.rounding.ranges import ranges
from senseapp.runtimes.onnxruntime.rounding.weights import rounded_products

_REAL, _DEMO = "tf_efficientnet_lite0", "demo"
_FITTED, _SCORED, _SIDE = 16, 96, 64
_LEARNT = 280  # images that classifiers are fitted to
_DAMPING, _LOGIT = 0.1, 10.0
_SIZED = ("vit", "swin")
_IDLE = 1e-4


def case(name: str) -> tuple[bytes, Tensor, Tensor]:
    """Return the network called ``name`` as a float file, images to fit an int8 file to, and images to score."""
    if name == _REAL:
        network, fitted, scored = load_network(), tensors(_FITTED, MADE_FROM), tensors(_SCORED)
    elif name == _DEMO:
        network = load_demo_model().module
        fitted, scored = load_demo_images("train").images[:_FITTED], load_demo_images().images[:_SCORED]
    else:
        network = random_network(name, side=_SIDE)
        fitted, scored = tensors(_FITTED, MADE_FROM, side=_SIDE), tensors(_SCORED, side=_SIDE)
    return onnx_model(network, fitted[:2]), fitted, scored


def random_network(name: str, *, side: int) -> nn.Module:
    """Return an architecture of timm with random weights and a fitted classifier, for pictures of ``side`` pixels.

    Residual branches take part: timm begins many with a last norm of zero or a scale of 1e-6. Training does away with
    that, and an int8 file of such a network would have nothing to round there.
    """
    torch.manual_seed(0)
    size = {"img_size": side} if name.startswith(_SIZED) else {}
    network: nn.Module = timm.create_model(name, num_classes=len(MADE_FROM), **size).eval()
    with torch.no_grad():
        for key, values in network.named_parameters():
            if values.ndim == 1 and not key.endswith("bias") and values.abs().max() < _IDLE:
                values.fill_(1.0)
    fit_classifier(network, tensors(_LEARNT, MADE_FROM, seed=1, side=side))
    return network


def fit_classifier(network: nn.Module, images: Tensor) -> None:
    """Let the last layer tell the pictures apart that ``images`` are crops of in turn: ridge regression."""
    with torch.no_grad():
        features = network.forward_head(network.forward_features(images), pre_logits=True).double()
        mean = features.mean(0)
        centred = features - mean
        wanted = functional.one_hot(torch.arange(len(images)) % len(MADE_FROM)).double()
        gram = centred.T @ centred
        damping = _DAMPING * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
        found = _LOGIT * torch.linalg.solve(gram + damping, centred.T @ (wanted - wanted.mean(0)))
        classifier = network.get_classifier()
        classifier.weight.copy_(found.T)
        classifier.bias.copy_(-mean @ found)


def fitted_file(exported: bytes, fitted: Tensor, *, runtime: Runtime = OPERATIONS) -> bytes:
    """Return a float file in int8 for ``runtime``, with ranges and weights that are fitted to images."""
    batches = fitted.split(16)
    writer = runtime.quantizer(exported, batches)
    assert isinstance(writer, Int8Writer)
    found = ranges(exported, batches, rounded_tensors(writer.network), "mse")
    nodes = products(OnnxGraph(exported))
    fitted_products = rounded_products(
        exported, batches, nodes, found, any_order=writer.any_order, progress=lambda _step: None
    )
    writer.rounding = Rounding(ranges=found, products=fitted_products)
    return writer.write()


def outputs(opened: Network, images: Tensor) -> Tensor:
    """Return the scores of images, 16 a call."""
    return torch.cat([cast(Tensor, opened.run(batch)) for batch in images.split(16)])
