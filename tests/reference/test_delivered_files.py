"""Each file that a run delivers, opened without senseapp: its answers, counted one by one, are those of its figures."""

import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from senseapp.cli.main import main
from senseapp.data.load import load_demo_images
from senseapp.networks.sources.demo import load_demo_model
from senseapp.records.candidate import Candidate, value_interval
from senseapp.runtimes.onnxruntime.operations import OnnxTemplate
from senseapp.store.run_folder import RunFolder
from tests.delivered_files import HeldOut
from tests.few_digits import NUM_DIGITS
from tests.few_digits import few_digits as few_digits

pytestmark = pytest.mark.slow

SEEN = 64  # digits that the curves are measured on; the others judge
LEVELS = {"quantization": "4,8"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run whose recommendation the command line made, and the line that it printed."""

    folder: RunFolder
    report: dict[str, Any]
    out: Path

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return self.folder.candidates()


@pytest.fixture(scope="module")
def held_out(few_digits) -> HeldOut:
    order = torch.randperm(NUM_DIGITS, generator=torch.Generator().manual_seed(0))
    digits, unseen = load_demo_images(), sorted(order[SEEN:].tolist())
    assert digits.labels is not None
    images, labels = digits.images[unseen], digits.labels[unseen]
    return HeldOut(network=load_demo_model().module, images=images, labels=labels)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("delivered")


@pytest.fixture(scope="module", params=LEVELS)
def run(request, few_digits, quick_times, home) -> Run:
    """Analyse the last layers and recommend; the file of the original weights comes first."""
    out = home / request.param
    options = ["--compression", request.param, "--levels", LEVELS[request.param], "--samples", str(SEEN)]
    options += ["--layers", "layer4.1*", "--out", str(out / "run")]
    assert main(["analyze", "--model", "demo", "--data", "demo", *options]) == 0
    with redirect_stdout(StringIO()) as printed:
        files = ["--schedule", str(out / "targets.json"), "--out", str(out / "model.safetensors")]
        assert main(["recommend", "--run", str(out / "run"), *files, "--best", str(out / "best")]) == 0
    return Run(folder=RunFolder(out / "run"), report=json.loads(printed.getvalue()), out=out)


def test_every_file_answers_as_its_figures_say(run: Run, held_out: HeldOut) -> None:
    assert {each.form for each in run.candidates} >= {"weights", "onnx"}
    for candidate in run.candidates:
        assert candidate.held_out
        assert candidate.images == len(held_out.images)
        own = held_out.counted(candidate, run.folder.path)
        found = {change.metric: change.value for change in candidate.figures.changes}
        assert found["top1"] == pytest.approx(own["top1"], abs=1e-9), candidate.file
        assert found["agreement"] == pytest.approx(own["agreement"], abs=1e-9), candidate.file
        assert found["kl"] == pytest.approx(own["kl"], rel=1e-4, abs=1e-9), candidate.file
        assert candidate.loss.baseline == pytest.approx(held_out.before["top1"], abs=1e-9)
        low, high = value_interval(candidate.loss)
        assert low <= own[candidate.metric] <= high


def test_the_answers_of_every_file_are_kept_image_by_image(run: Run, held_out: HeldOut) -> None:
    labels = [str(int(label)) for label in held_out.labels]
    for candidate in run.candidates:
        kept = run.folder.answers(candidate)
        scores = held_out.scores(candidate, run.folder.path)
        for original, own in ((True, held_out.original), (False, scores)):
            side = kept.original if original else kept.file
            assert [each.text for each in side.values()] == [str(best) for best in own.argmax(1)], candidate.file
            shares = torch.from_numpy(own).softmax(1).amax(1).tolist()
            assert [each.sure for each in side.values()] == pytest.approx(shares, abs=2e-3)
            assert [each.label for each in side.values()] == labels


def test_bytes_are_those_on_the_disk_and_the_original_has_one_size(run: Run, held_out: HeldOut) -> None:
    exported = len(OnnxTemplate(held_out.network, held_out.images[:1])(held_out.network))
    for candidate in run.candidates:
        assert candidate.figures.file_bytes == run.folder.candidate_file(candidate).stat().st_size
        assert candidate.original.file_bytes == exported


def test_the_command_line_prints_the_figures_of_the_files_that_it_writes(run: Run, held_out: HeldOut) -> None:
    printed = [*run.report["candidates"], run.report["recommended"]]
    known = {each.headline: each for each in run.candidates}
    assert printed
    for line in printed:
        candidate = known[line["headline"]]
        assert line["file_bytes"] == candidate.figures.file_bytes
        values = {change.metric: change.value for change in candidate.figures.changes}
        assert {name: each["value"] for name, each in line["changes"].items()} == values
    (best,) = run.out.glob("best.*")
    assert best.read_bytes() == run.folder.candidate_file(known[run.report["recommended"]["headline"]]).read_bytes()
    weights = next(each for each in run.candidates if each.form == "weights")
    assert (run.out / "model.safetensors").read_bytes() == run.folder.candidate_file(weights).read_bytes()
