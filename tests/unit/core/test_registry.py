"""Registries: senseapp's own objects first, then those of installed packages, in every process alike."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from senseapp.core.errors import InvalidSpec
from senseapp.core.registry import Registry
from senseapp.descriptions import COMPRESSIONS
from senseapp.formats.registry import FORMATS
from senseapp.metrics import METRICS
from senseapp.tasks import TASKS


@dataclass(frozen=True)
class Thing:
    name: str


FIRST, SECOND = Thing("first"), Thing("second")


def a_registry() -> Registry[Thing]:
    return Registry("thing", group="senseapp.things", own=(f"{__name__}:FIRST", f"{__name__}:SECOND"))


def test_its_own_objects_are_there_in_their_order() -> None:
    registry = a_registry()
    assert list(registry) == ["first", "second"]
    assert registry["second"] is SECOND
    assert registry.named("first") is FIRST


def test_an_unknown_name_is_an_error_that_lists_those_there_are() -> None:
    with pytest.raises(InvalidSpec, match="The thing must be one of first, second, got 'third'"):
        a_registry().named("third")


def test_what_fails_to_load_fails_each_time_and_leaves_nothing_half_done() -> None:
    registry: Registry[Thing] = Registry(
        "thing", group="senseapp.things", own=(f"{__name__}:FIRST", f"{__name__}:NONE")
    )
    for _ in range(2):
        with pytest.raises(AttributeError):
            len(registry)


EXTENSION = """
from dataclasses import replace
from senseapp.formats.plain import JSON
from senseapp.metrics.classification import KL
from senseapp.tasks import CLASSIFICATION

MINE = replace(JSON, name="mine")
HARM = replace(KL, name="harm")
TASK = replace(CLASSIFICATION, name="other")
"""
ENTRY_POINTS = """
[senseapp.formats]
mine = extension:MINE
[senseapp.metrics]
harm = extension:HARM
broken = no_such_module:HARM
[senseapp.tasks]
other = extension:TASK
"""


def test_what_another_package_brings_is_there_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "extension.py").write_text(EXTENSION)
    installed = tmp_path / "extension-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: extension\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINTS)
    code = (
        "import senseapp.records.spec; from senseapp.tasks import TASKS; from senseapp.metrics import METRICS;"
        "from senseapp.formats.registry import FORMATS; print(*TASKS, *METRICS, *FORMATS)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"other", "harm", "mine", "kl", "json"} <= set(found.stdout.split())
    assert "the metric 'broken' of another package cannot be loaded (no_such_module:HARM)" in found.stderr
    assert not {"other", "harm", "mine"} & {*TASKS, *METRICS, *FORMATS, *COMPRESSIONS}
