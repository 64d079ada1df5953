"""Files for devices: are they written, do they answer as torch does, and what does int8 lose beside the tool's recipe?

    python -m benchmarks.devices float|int8|integers|processors|qnn [NAME ...]

``float``: networks of twenty families with random weights, as torch modules and as uploaded ONNX files of them, each
written for LiteRT and run there. ``int8``: networks with real weights through ``analyze`` and ``deploy``, on held-out
images, beside the static recipe of LiteRT's quantizer. Both need the extra ``litert``. ``integers`` and ``processors``
(:mod:`benchmarks.integers`): what is computed in integers, by runtime, and answers of processors without VNNI.

``qnn``: int8 files (QDQ) of three networks on the simulator of Qualcomm's HTP, beside onnxruntime that computes them in
float between roundings, and beside its integer kernels here. Needs the extra ``qnn``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.segmentation.lraspp import _lraspp_mobilenetv3

from benchmarks.integers import FILES, NETWORKS, processor_row, share_row
from benchmarks.networks import CACHE, trained
from benchmarks.results import keep
from senseapp.cli.main import main as senseapp
from senseapp.core.errors import SenseError
from senseapp.data.demo_pictures import shapes
from senseapp.data.load import images_for, load_demo_images
from senseapp.descriptions.runtimes import installed_runtimes
from senseapp.networks.sources.load import load_model
from senseapp.reconstruct.write import onnx_copy
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.runtimes.base import runtime_named
from senseapp.runtimes.onnxruntime.runtime import ForeignFile
from senseapp.tasks import task_named
from tests.architectures import ARCHITECTURES, QUICK_ARCHITECTURES

_NEAR = 1e-3  # relative difference, beyond which a file counts as wrong
_OTHERS = ("efficientnet_lite0", "poolformer_s12", "pvt_v2_b0", "inception_next_atto", "tv_swin")
FLOAT = tuple(name for name in (*QUICK_ARCHITECTURES, *_OTHERS) if name in ARCHITECTURES)
DEMOS = {
    "Lite0": ("demo/efficientnet_lite0", "photographs"),
    "digits": ("demo", "demo"),
    "detector": ("demo/shapes_detector", "shapes"),
}
"""Model and images of each."""
TRAINED = {"digits, ResNet-18": "resnet", "digits, MobileNetV3": "mobilenet", "digits, ViT": "vit"}


DENSE = "shapes, dense map"
_PICTURES, _EPOCHS, _BATCH = 480, 8, 16


def _dense() -> nn.Module:
    network: nn.Module = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4
    )
    return network


class DenseMap(nn.Module):
    """The scores of each pixel: LR-ASPP on MobileNetV3-Small, 1.1 million weights."""

    def __init__(self) -> None:
        super().__init__()
        backbone = torchvision.models.mobilenet_v3_small(weights=None, dilated=True)
        self.network = _lraspp_mobilenetv3(backbone, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores (N, classes, H, W)."""
        found: Tensor = self.network(images)["out"]
        return found


def _dense_trained() -> nn.Module:
    """Return a network trained on scenes of rectangles that no run measures, kept in ``.cache``."""
    path = CACHE / "dense-map.safetensors"
    torch.manual_seed(0)
    network = DenseMap()
    if path.is_file():
        network.load_state_dict(safetensors.torch.load_file(path))
        return network.eval()
    scenes = [shapes(-index) for index in range(1, _PICTURES + 1)]
    images = torch.stack([torch.from_numpy(picture) for picture, _ in scenes]).movedim(-1, 1).float() / 127.5 - 1
    maps = torch.zeros(len(images), *images.shape[2:], dtype=torch.long)
    for each, (_, found) in zip(maps, scenes, strict=True):
        for label, left, top, right, bottom in found:
            each[top:bottom, left:right] = label
    optimizer = torch.optim.Adam(network.parameters())
    steps = _EPOCHS * (_PICTURES // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    for _ in range(_EPOCHS):
        for chosen in torch.randperm(_PICTURES).split(_BATCH):
            loss = nn.functional.cross_entropy(network.train()(images[chosen]), maps[chosen])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
        print(f"loss {float(loss.detach()):.3f}", flush=True)
    with torch.no_grad():  # its norms average too slowly for so few steps
        for each in network.modules():
            if isinstance(each, nn.BatchNorm2d):
                each.reset_running_stats()
                each.momentum = None
        for part in images.split(_BATCH):
            network.train()(part)
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file({name: each.contiguous() for name, each in network.state_dict().items()}, path)
    return network.eval()


def _float_networks() -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]:
    found: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        name: (ARCHITECTURES[name].factory, (3, ARCHITECTURES[name].size, ARCHITECTURES[name].size)) for name in FLOAT
    }
    detector = ModelSpec(library="demo", name="shapes_detector")
    shape = load_model(detector).preprocessing.input_shape
    found["detector"] = (lambda: load_model(detector).module, shape)
    found["dense map"] = (_dense, (3, 64, 64))
    return found


def float_row(name: str, build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Write one network from torch and from ONNX, and compare with torch."""
    torch.manual_seed(0)
    module = build().eval()
    for each in module.parameters():
        if not each.any():  # as some heads are at first, whose answers would all be 0
            nn.init.normal_(each, std=0.02)
    images = torch.randn(2, *shape)
    with torch.no_grad():
        wanted = _flat(module(images))
    row: dict[str, object] = {"network": name}
    with tempfile.TemporaryDirectory() as folder:
        for form in ("torch", "ONNX"):
            started = time.perf_counter()
            try:
                written = module if form == "torch" else _uploaded(module, images, Path(folder) / "network.onnx")
                row[form] = f"{_difference(written, images, wanted):.1e}"
            except SenseError as error:
                row[form] = f"refused: {error}"[:160]
            row[f"{form} s"] = f"{time.perf_counter() - started:.0f}"
    keep("devices_float", row)


def _uploaded(module: nn.Module, images: Tensor, path: Path) -> nn.Module:
    path.write_bytes(onnx_copy(module, images))
    return load_model(ModelSpec(library="onnx", name="", checkpoint=str(path), task="values")).module


def _difference(module: nn.Module, images: Tensor, wanted: Tensor) -> float:
    runtime = runtime_named("litert")
    network = runtime.open(runtime.exporter(module, images)(module))
    found = torch.cat([_flat(network.run(each[None])) for each in images])
    return float((found - wanted).norm() / wanted.norm())


def _flat(output: object) -> Tensor:
    leaves: list[Tensor] = torch.utils._pytree.tree_leaves(output)
    return torch.cat([each.flatten(1).float() for each in leaves], dim=1)


def int8_row(name: str) -> None:
    """Deploy one network with real weights in int8, and compare with the static recipe."""
    with tempfile.TemporaryDirectory() as folder:
        run, out = str(Path(folder) / "run"), str(Path(folder) / "file.tflite")
        if name in DEMOS:
            model = ["--model", DEMOS[name][0], "--data", DEMOS[name][1]]
        else:
            path = Path(folder) / "network.onnx"
            if name == DENSE:
                path.write_bytes(onnx_copy(_dense_trained(), torch.zeros(2, 3, 64, 64)))
                half = "0.5,0.5,0.5"
                own = ["--data", "shapes", "--task", "segmentation", "--mean", half, "--std", half]
            else:
                path.write_bytes(onnx_copy(trained(TRAINED[name]), torch.zeros(2, 1, 32, 32)))
                trained_with = load_model(ModelSpec()).preprocessing
                mean, std = (",".join(map(str, each)) for each in (trained_with.mean, trained_with.std))
                own = ["--data", "demo", "--mean", mean, "--std", std]
            model = ["--model", "onnx", "--checkpoint", str(path), "--preprocessing", "own", *own]
        common = ["--mode", "quick", "--compression", "quantization", "--levels", "8", "--out", run]
        _asked(["analyze", *model, *common])
        told = json.loads(_asked(["deploy", "--run", run, "--runtime", "litert", "--out", out]).splitlines()[-1])
    row: dict[str, object] = {"network": name, "images": told["images"]}
    for title, key in (("ours", "file"), ("static_wi8_ai8", "default")):
        changes = told[key]["changes"]
        for metric in ("kl", "agreement", "map", "agreement_map", "miou_agreement"):
            if metric in changes:
                row[f"{title}: {metric}"] = f"{changes[metric]['value']:.4g}"
        row[f"{title}: kB"] = f"{told[key]['file_bytes'] / 1000:.0f}"
    row["parts in float"] = len(told["in_float"])
    keep("devices_int8", row)


def qnn_row(name: str, seconds: float) -> None:
    """Run one file in int8 on the simulator, on as many images as ``seconds`` allow, and compare with onnxruntime."""
    from senseapp.runtimes.qnn.simulator import SimulatedFile

    module, images = _with_images(name)
    runtime = runtime_named("onnxruntime")
    network = runtime.exporter(module, images[:2])(module)
    content = runtime.quantizer(network, [images[:64]]).write()
    began = time.perf_counter()
    simulated = SimulatedFile(content)
    row: dict[str, object] = {"network": name, "compile s": f"{time.perf_counter() - began:.0f}"}
    files = {"HTP": simulated, "unoptimised": ForeignFile(content, fused=False), "here": ForeignFile(content)}
    answers: dict[str, list[Tensor]] = {each: [] for each in files}
    began = time.perf_counter()
    for image in images[64:]:
        for each, file in files.items():
            answers[each].append(_flat(file.run(image[None])))
        if time.perf_counter() - began > seconds:
            break
    found = {each: torch.cat(rows) for each, rows in answers.items()}
    row |= {"images": len(found["HTP"]), "s an image": f"{(time.perf_counter() - began) / len(found['HTP']):.2f}"}
    for one, other in (("HTP", "unoptimised"), ("HTP", "here"), ("here", "unoptimised")):
        same = (found[one].argmax(1) == found[other].argmax(1)).double().mean()
        noise = (found[one] - found[other]).norm() / found[other].norm()
        row[f"{one} as {other}"] = f"{float(same):.3f}, {-20 * math.log10(float(noise) + 1e-9):.1f} dB"
    keep("devices_qnn", row | {"operators": simulated.about})


def _with_images(name: str) -> tuple[nn.Module, Tensor]:
    if name in TRAINED:
        images = load_demo_images()
        return trained(TRAINED[name]), images.batch(0, len(images))
    model = load_model(ModelSpec(library="demo", name="efficientnet_lite0"))
    images = images_for(model, DataSpec(kind="photographs"), task=task_named("classification"))
    return model.module, images.batch(0, len(images))


def _asked(arguments: list[str]) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = senseapp(arguments)
    if status:
        raise SystemExit(f"{' '.join(arguments[:3])} ended with {status}")
    return output.getvalue()


def main() -> None:
    """Measure the networks that are named, or all of a part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=("float", "int8", "integers", "processors", "qnn"))
    parser.add_argument("--seconds", type=float, default=300.0, help="of each network on the simulator")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    if asked.part == "float":
        for name, (build, shape) in _float_networks().items():
            if not asked.names or name in asked.names:
                float_row(name, build, shape)
    elif asked.part == "qnn":
        for name in asked.names or ("digits, ResNet-18", "digits, MobileNetV3", "Lite0"):
            qnn_row(name, asked.seconds)
    elif asked.part == "int8":
        for name in asked.names or (*DEMOS, *TRAINED, DENSE):
            int8_row(name)
    elif asked.part == "integers":
        for runtime in (each.name for each in installed_runtimes()):
            for name in asked.names or NETWORKS:
                share_row(name, runtime)
    else:
        for name in asked.names or FILES:
            processor_row(name)


if __name__ == "__main__":
    main()
