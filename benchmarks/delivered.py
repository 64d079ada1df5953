"""Does each file that people leave with do what its figures say? ``python -m benchmarks.delivered [--only NAME,NAME]``.

For a network and a compression, the run is analysed and recommended by the command line and by the job of the page,
each in a folder of its own. Every file that either makes is then opened without senseapp, and its answers to the
held-out images are counted one by one (``tests/delivered_files.py``). Rows that are not run stay.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import safetensors.torch
import timm
from torch import Tensor

from benchmarks.results import Row
from scripts.train_demo import Recipe, train
from senseapp.cli.main import main as command
from senseapp.core.process import become_measuring
from senseapp.data.images import TensorImages
from senseapp.data.load import load_images, write_demo_zip
from senseapp.networks.sources.load import load_model
from senseapp.prove.evaluator import load_proof_images
from senseapp.records.candidate import Candidate, value_interval
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.tasks import RunObserver, TaskContext
from senseapp.store.run_folder import RunFolder
from senseapp.tasks import CLASSIFICATION
from tests.delivered_files import HeldOut

LEVELS = {"sparsity": "25,50,75", "pruning": "12.5,25,50", "quantization": "3,4,8"}
# Of the larger network: the number of levels, like that of its images, takes time and tells nothing of files.
_FEWER = {"sparsity": "25,50", "pruning": "12.5,25", "quantization": "4,8"}
WAYS = ("command line", "page")
_VIT, _SIDE, _CLASSES = "test_vit", 64, 10
_RECIPE = Recipe(epochs=80, learning_rate=0.002)
_SAMPLES = 100
_SHARE, _DIVERGENCE = 1e-9, 1e-4  # that a figure may be off by: a share of answers absolutely, others relatively


def _demo(_home: Path) -> list[str]:
    return ["--model", "demo", "--data", "demo", "--samples", str(_SAMPLES)]


def _efficientnet(_home: Path) -> list[str]:
    return ["--model", "demo/efficientnet_lite0", "--data", "photographs", "--samples", "32"]


def _vit(home: Path) -> list[str]:
    """Write the network, trained on one half of the digits, and the other half."""
    write_demo_zip(home / "digits.zip")
    safetensors.torch.save_file(_trained_vit(), home / "vit.safetensors")
    model = ["--model", f"timm/{_VIT}", "--checkpoint", str(home / "vit.safetensors")]
    return [*model, "--data", str(home / "digits.zip"), "--samples", str(_SAMPLES)]


@cache
def _trained_vit() -> dict[str, Tensor]:
    """Return the weights of the ViT after a minute or a few on the digits that train the demo, with a fixed seed."""
    spec = ModelSpec(library="timm", name=_VIT, num_classes=_CLASSES, img_size=_SIDE)
    with tempfile.TemporaryDirectory() as name:
        write_demo_zip(Path(name) / "digits.zip", "train")
        data = DataSpec(kind="archive", path=str(Path(name) / "digits.zip"))
        digits = load_images(data, load_model(spec).preprocessing, num_classes=_CLASSES, task=CLASSIFICATION)
        images = TensorImages(digits.batch(0, len(digits)), digits.labels)
    network = train(lambda: timm.create_model(_VIT, num_classes=_CLASSES, img_size=_SIDE), images, _RECIPE)
    return {name: each.contiguous() for name, each in network.state_dict().items()}


NETWORKS: dict[str, Callable[[Path], list[str]]] = {"demo": _demo, "EfficientNet-Lite0": _efficientnet, "ViT": _vit}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A candidate, and what was counted of its file."""

    candidate: Candidate
    own: dict[str, float]
    bytes_on_disk: int

    @property
    def holds(self) -> bool:
        """Whether the headline's figure is the file's own, which lies in its interval, and its bytes are those."""
        low, high = value_interval(self.candidate.loss)
        inside = low <= self.own[self.candidate.metric] <= high
        return inside and self.apart <= 1 and self.bytes_on_disk == self.candidate.figures.file_bytes

    @property
    def apart(self) -> float:
        """The largest difference between figures and counts, as a multiple of what is allowed."""
        allowed = {name: _DIVERGENCE * max(value, 1e-5) if name == "kl" else _SHARE for name, value in self.own.items()}
        found = {change.metric: change.value for change in self.candidate.figures.changes}
        return max(abs(found[name] - value) / allowed[name] for name, value in self.own.items())

    @property
    def text(self) -> str:
        """The headline of the file, and what differs."""
        differs = "" if self.holds else f" BUT {self.own}, {self.bytes_on_disk} bytes"
        return f"{self.candidate.made_of}: {self.candidate.answers_text} ({self.candidate.evidence}){differs}"


def by_command_line(folder: Path, home: Path) -> str:
    """Recommend on the command line; return what its line says that the records do not."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        out = ["--schedule", str(home / "targets.json"), "--out", str(home / "model.safetensors")]
        if command(["recommend", "--run", str(folder), *out, "--best", str(home / "best")]):
            raise RuntimeError("The command failed; its message is above.")
    report = json.loads(printed.getvalue())
    known = {each.headline: each.figures.file_bytes for each in RunFolder(folder).candidates()}
    said = [*report["candidates"], *filter(None, [report["recommended"]])]
    return "; ".join(line["headline"] for line in said if known.get(line["headline"]) != line["file_bytes"])


def by_page(folder: Path, _home: Path) -> str:
    """Recommend as the page's job does."""
    RecommendationTask(run_id="").carry_out(TaskContext(folder=RunFolder(folder), observer=RunObserver()))
    return ""


def checked(folder: Path) -> list[Checked]:
    """Return each file of a run's folder with its counts."""
    run = RunFolder(folder)
    result = run.load_result()
    loaded = load_model(result.spec.model)
    proof = load_proof_images(result, loaded).proof
    held_out = HeldOut(network=loaded.module, images=proof.batch(0, len(proof)), labels=proof.labels)
    return [
        Checked(
            candidate=each, own=held_out.counted(each, folder), bytes_on_disk=run.candidate_file(each).stat().st_size
        )
        for each in run.candidates()
    ]


def rows(network: str, compression: str, ways: list[str]) -> Iterator[Row]:
    """Yield one row for each of ``ways``."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        levels = (_FEWER if NETWORKS[network] is _efficientnet else LEVELS)[compression]
        options = ["--compression", compression, "--levels", levels, "--out", str(home / "analysed")]
        if command(["analyze", *NETWORKS[network](home), *options]):
            raise RuntimeError("The run failed; its message is above.")
        for way in ways:
            folder = home / way.replace(" ", "-")
            shutil.copytree(home / "analysed", folder)
            other = (by_page if way == "page" else by_command_line)(folder, home)
            found = checked(folder)
            inside = sum(each.holds for each in found)
            yield Row(
                what=f"{network}, {compression}, {way}",
                wanted="the file's own figure, inside the interval; the file's bytes",
                found=f"{inside} of {len(found)} files: {'; '.join(each.text for each in found)}{other}",
                holds=inside == len(found) > 0 and not other,
            )


def main() -> None:
    """Run what is asked for; write and print each row as it is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(NETWORKS), metavar="NAME,NAME", help="networks")
    parser.add_argument("--compressions", default=",".join(LEVELS), metavar="NAME,NAME")
    parser.add_argument("--ways", default=",".join(WAYS), metavar="NAME,NAME")
    chosen = parser.parse_args()
    for network in chosen.only.split(","):
        for compression in chosen.compressions.split(","):
            started = time.process_time()
            for row in rows(network, compression, chosen.ways.split(",")):
                row.keep("delivered")
            print(f"       {time.process_time() - started:.0f} s of the processor", flush=True)


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
