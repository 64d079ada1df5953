"""Small networks of many families, with random weights, for tests that must hold for any architecture.

Each is the library's own class with fewer blocks or narrower layers where its arguments allow, on small inputs;
all of them together build and run in a few seconds on two cores.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import timm
import torch
import torchvision
from timm.layers.mlp import GatedMlp
from timm.models.convmixer import ConvMixer
from timm.models.mlp_mixer import Affine, MixerBlock, MlpMixer, ResBlock, SpatialGatingBlock
from torch import nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt

NUM_CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A network that a test can build.

    Attributes:
        family: residual, dense, inverted residual, grouped, convnext, vit, swin, mlp mixer, hybrid or plain.
        factory: returns the library's network, freshly initialised.
        size: height and width of one input; inputs are (N, 3, size, size).
    """

    family: str
    factory: Callable[[], nn.Module]
    size: int

    def build(self, seed: int = 0) -> nn.Module:
        """Return the network in ``eval()`` mode; the same seed gives the same weights.

        Vectors (norm scales, biases, layer scales) are drawn at random: libraries start many at 0 or 1e-6, where
        whole branches would not show in the output. BatchNorm statistics are those of random images, so that outputs
        stay of ordinary size.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.factory().eval()
            for name, parameter in model.named_parameters():
                if parameter.squeeze().ndim <= 1:
                    center = 1.0 if name.endswith(("weight", "gamma")) else 0.0
                    nn.init.normal_(parameter, center, 0.2)
                elif not parameter.any():  # classifiers that start at zero would hide everything before them
                    nn.init.normal_(parameter, 0.0, 0.1)
            _fit_batch_norms(model, torch.randn(8, 3, self.size, self.size))
        return model


def _fit_batch_norms(model: nn.Module, images: torch.Tensor) -> None:
    """Set the running statistics of every BatchNorm to those of ``images`` (N, C, H, W)."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momentums = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with torch.no_grad():
        model(images)
    for norm, momentum in zip(norms, momentums, strict=True):
        norm.momentum = momentum
        norm.eval()


def example_input(architecture: Architecture, batch_size: int = 2, seed: int = 0) -> torch.Tensor:
    """Return random images (N, 3, size, size)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch_size, 3, architecture.size, architecture.size, generator=generator)


def _timm(family: str, name: str, size: int = 32, **kwargs: Any) -> Architecture:
    factory = partial(timm.create_model, name, num_classes=NUM_CLASSES, **kwargs)
    return Architecture(family=family, factory=factory, size=size)


def _torchvision(family: str, name: str, size: int = 32, **kwargs: Any) -> Architecture:
    factory = partial(getattr(torchvision.models, name), weights=None, num_classes=NUM_CLASSES, **kwargs)
    return Architecture(family=family, factory=factory, size=size)


def _mixer(block: type[nn.Module], **kwargs: Any) -> Architecture:
    sizes: dict[str, Any] = {"img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 48}
    factory = partial(MlpMixer, num_classes=NUM_CLASSES, block_layer=block, **sizes, **kwargs)
    return Architecture(family="mlp mixer", factory=factory, size=32)


def _narrow_alexnet() -> nn.Module:
    """AlexNet, which flattens (C, H, W) before a linear layer, with 64 units in place of 4,096."""
    with torch.device("meta"):
        model = torchvision.models.AlexNet(num_classes=NUM_CLASSES)
    for place, (inputs, outputs) in {1: (256 * 6 * 6, 64), 4: (64, 64), 6: (64, NUM_CLASSES)}.items():
        model.classifier[place] = nn.Linear(inputs, outputs)
    model.features.to_empty(device="cpu")
    for module in model.features:
        if isinstance(module, nn.Conv2d):
            module.reset_parameters()
    return model


_SHORT: dict[str, Any] = {"layers": (1, 1, 1, 1)}
_SMALL_SWIN: dict[str, Any] = {"img_size": 64, "window_size": 4, "depths": (1, 1, 2, 1), "embed_dim": 48}
_SMALL_VIT: dict[str, Any] = {"img_size": 32, "depth": 2}

ARCHITECTURES: dict[str, Architecture] = {
    # residual
    "resnet10t": _timm("residual", "resnet10t"),
    "resnet18": _timm("residual", "resnet18"),
    "resnet26d": _timm("residual", "resnet26d"),
    "resnetv2_50": _timm("residual", "resnetv2_50", **_SHORT),
    "seresnet18": _timm("residual", "legacy_seresnet18"),
    "skresnet18": _timm("residual", "skresnet18"),
    "ecaresnet26t": _timm("residual", "ecaresnet26t"),
    "hrnet_w18_small": _timm("residual", "hrnet_w18_small", 64),
    "nf_resnet": _timm("residual", "test_nfnet", 64),
    "tv_resnet18": _torchvision("residual", "resnet18"),
    # dense and other concatenations
    "densenet121": _timm("dense", "densenet121", block_config=(3, 3, 3, 3)),
    "dla46_c": _timm("dense", "dla46_c", 64),
    "cspresnet50": _timm("dense", "cspresnet50", 64),
    "selecsls42": _timm("dense", "selecsls42", 64),
    "tv_googlenet": _torchvision("dense", "googlenet", 64, init_weights=False, aux_logits=False),
    "tv_inception_v3": _torchvision("dense", "inception_v3", 96, init_weights=False, aux_logits=True),
    "tv_squeezenet1_1": _torchvision("dense", "squeezenet1_1", 64),
    # plain
    "darknet17": _timm("plain", "darknet17"),
    "tv_alexnet": Architecture(family="plain", factory=_narrow_alexnet, size=64),
    "repvgg_a0": _timm("plain", "repvgg_a0"),
    "mobileone_s0": _timm("plain", "mobileone_s0", 64),
    # inverted residual
    "mobilenetv2_050": _timm("inverted residual", "mobilenetv2_050"),
    "mobilenetv3_small_050": _timm("inverted residual", "mobilenetv3_small_050"),
    "mobilenetv4_small": _timm("inverted residual", "mobilenetv4_conv_small_035", 64),
    "efficientnet_b0": _timm("inverted residual", "efficientnet_b0", 64),
    "efficientnet_gn": _timm("inverted residual", "test_efficientnet_gn", 64),
    "efficientnet_ln": _timm("inverted residual", "test_efficientnet_ln", 64),
    "mnasnet_small": _timm("inverted residual", "mnasnet_small"),
    "mixnet_s": _timm("inverted residual", "mixnet_s"),
    "ghostnet_050": _timm("inverted residual", "ghostnet_050", 64),
    "rexnet_100": _timm("inverted residual", "rexnet_100"),
    "tv_mobilenet_v3_small": _torchvision("inverted residual", "mobilenet_v3_small"),
    # grouped convolutions
    "resnext50_32x4d": _timm("grouped", "resnext50_32x4d", **_SHORT),
    "regnetx_002": _timm("grouped", "regnetx_002"),
    "regnety_002": _timm("grouped", "regnety_002"),
    "res2net50_26w_4s": _timm("grouped", "res2net50_26w_4s", **_SHORT),
    "resnest14d": _timm("grouped", "resnest14d", 64),
    "byobnet": _timm("grouped", "test_byobnet", 64),
    "tv_shufflenet_v2": _torchvision("grouped", "shufflenet_v2_x0_5"),
    # ConvNeXt and kin
    "convnext_atto": _timm("convnext", "convnext_atto"),
    "convnextv2_atto": _timm("convnext", "convnextv2_atto"),
    "inception_next_atto": _timm("convnext", "inception_next_atto"),
    "tv_convnext": Architecture(
        family="convnext",
        factory=lambda: ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], num_classes=NUM_CLASSES),
        size=32,
    ),
    # ViT and kin
    "vit_tiny": _timm("vit", "vit_tiny_patch16_224", **_SMALL_VIT),
    "deit_tiny_distilled": _timm("vit", "deit_tiny_distilled_patch16_224", **_SMALL_VIT),
    "deit3_small": _timm("vit", "deit3_small_patch16_224", **_SMALL_VIT),
    "cait_xxs": _timm("vit", "cait_xxs24_224", **_SMALL_VIT),
    "xcit_nano": _timm("vit", "xcit_nano_12_p16_224", **_SMALL_VIT),
    "beit": _timm("vit", "beit_base_patch16_224", embed_dim=96, num_heads=3, **_SMALL_VIT),
    "eva02_tiny": _timm("vit", "eva02_tiny_patch14_224", 56, img_size=56, depth=2),
    "tv_vit": Architecture(  # attention is nn.MultiheadAttention
        family="vit",
        factory=lambda: torchvision.models.VisionTransformer(
            image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=NUM_CLASSES
        ),
        size=32,
    ),
    # Swin
    "swin_tiny": _timm("swin", "swin_tiny_patch4_window7_224", 64, **_SMALL_SWIN),
    "swinv2_tiny": _timm("swin", "swinv2_tiny_window8_256", 64, **_SMALL_SWIN),
    "tv_swin": Architecture(
        family="swin",
        factory=lambda: torchvision.models.SwinTransformer(
            patch_size=[4, 4],
            embed_dim=24,
            depths=[1, 2],
            num_heads=[2, 4],
            window_size=[4, 4],
            num_classes=NUM_CLASSES,
        ),
        size=32,
    ),
    # MLP-Mixer and kin
    "mixer": _mixer(MixerBlock),
    "resmlp": _mixer(ResBlock, mlp_ratio=4, norm_layer=Affine),
    "gmlp": _mixer(SpatialGatingBlock, mlp_ratio=6, mlp_layer=GatedMlp),
    "convmixer": Architecture(
        family="mlp mixer",
        factory=lambda: ConvMixer(dim=32, depth=2, kernel_size=5, patch_size=4, num_classes=NUM_CLASSES),
        size=32,
    ),
    # hybrids of convolution and attention
    "mobilevit_xxs": _timm("hybrid", "mobilevit_xxs", 64),
    "levit_128s": _timm("hybrid", "levit_128s", 64, img_size=64),
    "poolformer_s12": _timm("hybrid", "poolformer_s12"),
    "edgenext_xx_small": _timm("hybrid", "edgenext_xx_small", 64),
    "convit_tiny": _timm("hybrid", "convit_tiny", img_size=32, depth=3),
    "pit_ti": _timm("hybrid", "pit_ti_224", 64, img_size=64),
    "coat_lite_tiny": _timm("hybrid", "coat_lite_tiny", 64, img_size=64),
    "pvt_v2_b0": _timm("hybrid", "pvt_v2_b0", 64),
    "visformer_tiny": _timm("hybrid", "visformer_tiny", 64, img_size=64),
    "maxvit_pico": _timm("hybrid", "maxvit_rmlp_pico_rw_256", 64, img_size=64, depths=(1, 1, 1, 1)),
}
"""Name to network, at least one per family."""

QUICK_ARCHITECTURES: tuple[str, ...] = (
    *("resnet18", "densenet121", "tv_googlenet", "mobilenetv3_small_050", "efficientnet_b0", "efficientnet_gn"),
    *("ghostnet_050", "resnext50_32x4d", "regnety_002", "convnext_atto", "vit_tiny", "tv_vit", "swin_tiny", "mixer"),
    *("mobilevit_xxs",),
)
"""One or two per family, for tests that cost more than a forward pass."""

DISTINCT_ARCHITECTURES: tuple[str, ...] = (
    "resnet18",  # sums of branches
    "densenet121",  # concatenations that grow
    "tv_alexnet",  # (C, H, W) flattened before a linear layer
    "repvgg_a0",  # a BatchNorm as a branch
    "mobilenetv3_small_050",  # depthwise, squeeze and excite
    "ghostnet_050",  # outputs beside what is made from them
    "tv_shufflenet",  # channels change places
    "convnext_atto",  # channels last
    "vit_tiny",  # tokens, fused attention
    "tv_vit",  # nn.MultiheadAttention
    "eva02_tiny",  # gated MLP, rotary positions
    "swin_tiny",  # windows become part of the batch
    "mixer",  # layers over positions
)
"""One for each way in which most networks differ in replay or coupled channels; the others are marked ``wide``."""

FEW_ARCHITECTURES: tuple[str, ...] = ("resnet18", "mobilenetv3_small_050", "vit_tiny", "swin_tiny")
"""Those that the quick tests keep; the others are marked ``architectures``."""


def each_of(
    names: Iterable[str], argument: str = "name", *, kept: Collection[str] = DISTINCT_ARCHITECTURES, **how: Any
) -> pytest.MarkDecorator:
    """Run a test on each of these architectures.

    Args:
        kept: those that ``make test`` runs; the others are marked ``wide``, and ``make test-all`` runs them.
    """

    def marks(name: str) -> list[pytest.MarkDecorator]:
        found = [] if name in FEW_ARCHITECTURES else [pytest.mark.architectures]
        return found if name in kept else [*found, pytest.mark.wide]

    return pytest.mark.parametrize(argument, [pytest.param(name, id=name, marks=marks(name)) for name in names], **how)
