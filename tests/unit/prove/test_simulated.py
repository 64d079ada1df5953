"""The condition of a simulated processor, on one that is made up: it answers as onnxruntime, or not at all."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from senseapp.core.errors import InvalidSpec
from senseapp.descriptions.runtimes import PROCESSORS, ProcessorDescription
from senseapp.prove.check.check import check_files
from senseapp.records.check import CheckSpec
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.runtimes.onnxruntime.runtime import ForeignFile
from senseapp.runtimes.open_file import Array
from tests.check_pairs import Workshop


class Reversed(ForeignFile):
    """A processor that returns the scores of a file in the opposite order."""

    about = "All of it runs here."

    def arrays(self, names: object, fed: object) -> dict[str, Array]:  # type: ignore[override]
        found = super().arrays(names, fed)  # type: ignore[arg-type]
        return {name: np.flip(values, axis=1) for name, values in found.items()}


def opened(content: bytes, *, context: Path | None) -> ForeignFile:
    """Open as the processor ``same`` does."""
    if context is not None:
        context.write_bytes(b"compiled")
    return ForeignFile(content)


def opened_reversed(content: bytes, *, context: Path | None) -> ForeignFile:
    """Open as the processor ``reversed`` does."""
    return Reversed(content)


@pytest.fixture(autouse=True)
def _processors() -> Iterator[None]:
    before = dict(PROCESSORS)
    for name, function in (("same", "opened"), ("reversed", "opened_reversed"), ("absent", "opened")):
        package = "no_such_package" if name == "absent" else "numpy"
        PROCESSORS.register(
            ProcessorDescription(
                name=name,
                label=f"A {name} NPU",
                operations=f"{__name__}:{function}",
                package=package,
                added_by="pip install it",
            )
        )
    yield
    for name in [name for name in PROCESSORS if name not in before]:
        del PROCESSORS[name]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> CheckSpec:
    path = str(Workshop(tmp_path_factory.mktemp("files")).reference)
    data = DataSpec(kind="demo", mean=(0.304,), std=(0.323,))
    model = ModelSpec(library="onnx", checkpoint=path, task="classification")
    return CheckSpec(reference=model, candidate=model, data=data, num_samples=40, max_drop=0.2)


def test_the_loss_there_is_a_condition_beside_the_loss_here(spec: CheckSpec, tmp_path: Path) -> None:
    found = check_files(replace(spec, processor="same"), context=tmp_path / "compiled.onnx")
    limit = next(each for each in found.limits if each.name == "processor")
    assert limit.holds
    assert limit.sentence.startswith("On A same NPU, simulated: Loss of right answers: 0 points on 40 images")
    assert "On this computer, the same images: 0 points." in limit.sentence
    assert (tmp_path / "compiled.onnx").read_bytes() == b"compiled"


def test_a_processor_that_answers_otherwise_fails_the_check(spec: CheckSpec) -> None:
    found = check_files(replace(spec, processor="reversed"))
    limit = next(each for each in found.limits if each.name == "processor")
    assert not limit.holds
    assert not limit.undecided
    assert limit.sentence.endswith("All of it runs here.")
    assert next(each for each in found.limits if each.name == "loss").holds


def test_images_are_as_many_as_the_time_allows(spec: CheckSpec) -> None:
    found = check_files(replace(spec, processor="same", processor_seconds=1e-9))
    limit = next(each for each in found.limits if each.name == "processor")
    assert "on 1 image" in limit.sentence
    assert limit.undecided


def test_what_is_not_there_is_said(spec: CheckSpec) -> None:
    with pytest.raises(InvalidSpec, match="must be one of qnn, same, reversed, absent, got 'abacus'"):
        replace(spec, processor="abacus")
    with pytest.raises(InvalidSpec, match="A absent NPU is not installed here"):
        PROCESSORS["absent"].load()
    with pytest.raises(InvalidSpec, match="above 0, got 0"):
        replace(spec, processor_seconds=0)
