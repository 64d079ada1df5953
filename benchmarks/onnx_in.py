"""How many exports of known architectures are read as networks? ``python -m benchmarks.onnx_in [--only NAME ...]``.

Every architecture is exported by torch's two exporters, with the batch fixed to one image and free: four files. A file
counts as equal where the network that is read from it gives onnxruntime's numbers within 1e-5 of the largest
output, or as closely as onnxruntime's own two ways to compute it, and the module's within 1e-4. Rows are kept in
``--rows``; a second run goes on with the architectures that are missing there.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn

from benchmarks.results import keep
from senseapp.core.errors import SenseError, first_line_of
from senseapp.networks.onnx.open import open_onnx

ROWS = Path(__file__).with_name("onnx_in.jsonl")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # codes of terminals in torch's messages
_SIDES = {
    96: "test_byobnet test_convnext test_efficientnet test_efficientnet_gn test_nfnet test_convnext2 test_mambaout "
    "test_resnet",
    160: "test_vit test_vit2 test_vit3 test_vit4",
    64: "resnet10t mobilenetv3_small_050 mobilenetv2_050 lcnet_035 tinynet_e regnetx_002 regnety_002 ghostnet_050 "
    "repvgg_a0 convnext_atto mobileone_s0 starnet_s1 dla34 poolformer_s12 nf_regnet_b0 efficientnet_lite0 "
    "tf_efficientnetv2_b0 rexnet_100 skresnet18 hrnet_w18_small convnextv2_atto mnasnet_small densenet121 vgg11 "
    "resnest14d res2net50_26w_4s seresnet50 cspresnet50",
    224: "vit_tiny_patch16_224 deit_tiny_patch16_224 levit_128s pit_ti_224 mixer_s32_224 xcit_nano_12_p16_224 "
    "coat_lite_tiny cait_xxs24_224 visformer_tiny convit_tiny gmlp_s16_224 tiny_vit_5m_224 "
    "swin_tiny_patch4_window7_224",
    240: "crossvit_tiny_240",
    256: "edgenext_xx_small mobilevit_xxs fastvit_t8 efficientvit_b0 efficientvit_m0 lambda_resnet26t halonet26t "
    "maxvit_rmlp_pico_rw_256 inception_v3",
}
TIMM = {name: side for side, names in _SIDES.items() for name in names.split()}
TORCHVISION = {
    **dict.fromkeys(("shufflenet_v2_x0_5", "squeezenet1_1", "googlenet", "alexnet"), 96),
    **dict.fromkeys(("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large", "fcn_resnet50"), 96),
}


class _OneOutput(nn.Module):
    """A segmentation network that returns its main output alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)["out"]


def network_of(name: str) -> tuple[nn.Module, int]:
    """Return an untrained network, no weight of which is all 0, and the side of its images."""
    model, side = _network_of(name)
    with torch.no_grad():
        for each in model.parameters():
            if each.ndim > 1 and not each.any():
                each.normal_(std=0.02)
    return model, side


def _network_of(name: str) -> tuple[nn.Module, int]:
    torch.manual_seed(0)
    if name in TIMM:
        model = timm.create_model(name, pretrained=False, num_classes=10).eval()
        fixed = model.pretrained_cfg.get("fixed_input_size")
        return model, model.pretrained_cfg["input_size"][-1] if fixed else TIMM[name]
    extra: dict[str, Any] = {"init_weights": True, "aux_logits": False} if name == "googlenet" else {}
    if name.startswith(("lraspp", "deeplab", "fcn")):
        extra = {"weights_backbone": None}
    model = torchvision.models.get_model(name, weights=None, **extra).eval()
    return (_OneOutput(model) if hasattr(model, "backbone") else model).eval(), TORCHVISION[name]


def exported(model: nn.Module, side: int, *, dynamo: bool, free: bool) -> bytes:
    """Return ``model`` as ONNX, by torch's newer exporter or its older one, for one image or any number."""
    written = io.BytesIO()
    images = torch.rand(2 if dynamo and free else 1, 3, side, side)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = ({0: torch.export.Dim("images", min=1, max=64)},) if free else None
            program = torch.onnx.export(model, (images,), dynamo=True, verbose=False, dynamic_shapes=shapes)
            assert program is not None
            program.save(written)
        else:
            axes = {"images": {0: "n"}} if free else None
            torch.onnx.export(
                model, (images,), written, dynamo=False, input_names=["images"], dynamic_axes=axes, opset_version=17
            )
    return written.getvalue()


def row(name: str, *, dynamo: bool, free: bool) -> dict[str, object]:
    """Return what became of one file."""
    found: dict[str, object] = {"name": name, "dynamo": dynamo, "free": free}
    model, side = network_of(name)
    try:
        content = exported(model, side, dynamo=dynamo, free=free)
    except Exception as error:
        return {**found, "result": "not exported", "why": _COLOUR.sub("", first_line_of(error))}
    before = time.perf_counter()
    try:
        opened = open_onnx(content)
    except SenseError as error:
        return {**found, "result": "refused", "why": str(error)}
    except Exception as error:
        return {**found, "result": "failed", "why": f"{type(error).__name__}: {first_line_of(error)}"}
    images = torch.rand(1 if opened.batch else 3, 3, side, side)
    with torch.no_grad():
        ours, known = opened.network(images), model(images)
    apart = float((ours - known).abs().max() / known.abs().max())
    layers = sum(isinstance(each, nn.Linear | nn.Conv1d | nn.Conv2d) for each in opened.network.modules())
    wanted = sum(isinstance(each, nn.Linear | nn.Conv1d | nn.Conv2d) for each in model.modules())
    return {
        **found,
        "result": "equal" if apart < 1e-4 else "differs",
        "batch": opened.batch,
        "from onnxruntime": opened.difference,
        "from the module": apart,
        "layers": layers,
        "layers of the module": wanted,
        "seconds": round(time.perf_counter() - before, 2),
        "why": " ".join(opened.notes),
    }


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def counts(rows: Sequence[dict[str, Any]], *, newer: bool, free: bool) -> dict[str, object]:
    """Return how many files of one exporter and kind of batch are read, and how far they are off."""
    asked = [each for each in rows if (each["dynamo"], each["free"]) == (newer, free)]
    exported = [each for each in asked if each["result"] != "not exported"]
    equal = [each for each in exported if each["result"] == "equal"]
    worst = (max((each[key] for each in equal), default=0.0) for key in ("from onnxruntime", "from the module"))
    return {
        "exporter": "newer" if newer else "older",
        "batch": "free" if free else "one image",
        "not exported by torch": len(asked) - len(exported),
        "files": len(exported),
        "equal": len(equal),
        "any number of images": sum(each["batch"] is None for each in equal),
        "refused or other": len(exported) - len(equal),
        "largest difference from onnxruntime, from the module": ", ".join(f"{each:.1e}" for each in worst),
    }


def main() -> None:
    """Add the rows that are missing, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[*TIMM, *TORCHVISION])
    parser.add_argument("--rows", type=Path, default=ROWS)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    there = {(each["name"], each["dynamo"], each["free"]) for each in _rows(asked.rows)}
    forms = ((False, False), (True, True), (True, False), (False, True))
    for name, (dynamo, free) in ((name, form) for form in forms for name in asked.only):
        if (name, dynamo, free) not in there:
            found = row(name, dynamo=dynamo, free=free)
            with asked.rows.open("a") as file:
                file.write(json.dumps(found) + "\n")
    rows = list(_rows(asked.rows))
    for dynamo, free in forms:
        keep("onnx_in", counts(rows, newer=dynamo, free=free), named_by=2)


if __name__ == "__main__":
    main()
