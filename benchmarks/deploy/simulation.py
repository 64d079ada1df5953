"""Whether an int8 file does in onnxruntime what its simulation in float says: twelve architectures, all in int8."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx
import timm
from timm.models.convnext import ConvNeXt
from timm.models.mlp_mixer import MlpMixer
from torch import Tensor, nn

from benchmarks.networks import NETWORKS, Network, trained
from benchmarks.real.network import load_network
from benchmarks.real.photographs import MADE_FROM, tensors
from benchmarks.real.rows import Row
from scripts.train_demo import Recipe
from senseapp.data.load import load_demo_images
from senseapp.models.demo import load_demo_model
from senseapp.schedules.int8 import Int8Writer, Rounding
from senseapp.schedules.rounding.calibration import ranges, rounded_products
from senseapp.schedules.rounding.choice import rounded_tensors
from senseapp.schedules.rounding.products import products
from senseapp.schedules.runtime import RuntimeModel
from senseapp.schedules.write import onnx_model

_FITTED, _SCORED = 64, 256
INTRO = (
    "tf_efficientnet_lite0 has ImageNet weights and photographs; the demo's network and the others are trained on its "
    "digits. Figures compare the file in onnxruntime with the same file computed in float on what its integers stand "
    f"for, on up to {_SCORED} images that nothing was fitted to."
)
_REAL, _DEMO = "tf_efficientnet_lite0", "demo"


def _named(name: str) -> nn.Module:
    network: nn.Module = timm.create_model(name, in_chans=1, num_classes=10)
    return network


def _convnext() -> nn.Module:
    """ConvNeXt-Atto with a stem for small pictures."""
    return ConvNeXt(in_chans=1, num_classes=10, depths=(2, 2, 4, 2), dims=(24, 48, 96, 192), patch_size=2)


def _mixer() -> nn.Module:
    return MlpMixer(img_size=32, patch_size=8, in_chans=1, num_classes=10, embed_dim=96, num_blocks=4)


_RECIPE = Recipe(epochs=25, learning_rate=0.003)
_TRAINED = {
    **{name: NETWORKS[name] for name in ("vgg", "resnet", "mobilenet", "vit")},
    "convnext": Network("ConvNeXt", _convnext, _RECIPE),
    "mixer": Network("MLP-Mixer", _mixer, _RECIPE),
    **{
        name: Network(name, partial(_named, name), _RECIPE)
        for name in ("regnetx_002", "mobilenetv2_050", "lcnet_050", "efficientnet_b0")
    },
}


def rows() -> Iterator[Row]:
    """Yield one row for each architecture, and one for the worst."""
    found = []
    for name in (_REAL, _DEMO, *_TRAINED):
        network, fitted, scored = _case(name)
        agreement, divergence = _compared(network, fitted, scored)
        found.append((agreement, divergence))
        yield Row(
            what=name,
            wanted="≥ 99.5 %, KL ≤ .002",
            found=f"{100 * agreement:.1f} %, KL {divergence:.5f}",
            holds=agreement >= 0.995 and divergence <= 0.002,
        )
    agreements, divergences = zip(*found, strict=True)
    yield Row(
        what=f"Worst of {len(found)}",
        wanted="≥ 99.5 %, KL ≤ .002",
        found=f"{100 * min(agreements):.1f} %, KL {max(divergences):.5f}",
        holds=min(agreements) >= 0.995 and max(divergences) <= 0.002,
    )


def _case(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the network called ``name``, images to fit to and images to score."""
    if name == _REAL:
        return load_network(), tensors(_FITTED, MADE_FROM), tensors(_SCORED)
    network = load_demo_model().module if name == _DEMO else trained(name, known=_TRAINED[name])
    return network, load_demo_images("train").images[:_FITTED], load_demo_images().images[:_SCORED]


def _compared(network: nn.Module, fitted: Tensor, scored: Tensor) -> tuple[float, float]:
    """Return top-1 agreement and mean KL divergence between the simulation and the runtime."""
    exported, batches = onnx_model(network, scored[:1]), fitted.split(16)
    with Int8Writer(exported, batches) as writer:
        found = ranges(exported, batches, rounded_tensors(writer.write()), ["mse"])["mse"]
        nodes = products(onnx.load_from_string(exported))
        fitted_products = rounded_products(exported, batches, nodes, found, progress=lambda _step: None)
        writer.rounding = Rounding(ranges=found, products=fitted_products)
        content = writer.write()
    meant, computed = (
        RuntimeModel(content, simulated=simulated).outputs(scored.split(16)).double().log_softmax(1)
        for simulated in (True, False)
    )
    agreement = float((meant.argmax(1) == computed.argmax(1)).double().mean())
    return agreement, float((meant.exp() * (meant - computed)).sum(1).mean())
