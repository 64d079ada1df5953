"""What a run's files are judged by, whatever was measured of its layers."""

from dataclasses import replace

import pytest

from senseapp.records.spec import DataSpec
from tests.fake_session import SPEC, a_change, a_measurement, a_result


@pytest.mark.parametrize(
    ("task", "metric", "has_labels", "expected"),
    [
        ("detection", "detection_kl", True, "map"),  # which is measured of files, not of layers
        ("detection", "detection_kl", False, "objects_f1"),
        ("classification", "kl", True, "top1"),
        ("classification", "kl", False, "agreement"),
    ],
)
def test_files_are_judged_by_answers_where_layers_have_only_a_divergence(task, metric, has_labels, expected) -> None:
    layers = [a_measurement(changes=(a_change(0.1, metric=metric),))]
    spec = replace(SPEC, model=replace(SPEC.model, task=task))
    assert a_result(layers, spec=spec, has_labels=has_labels).judged_by == expected


def test_imported_figures_are_judged_by_what_they_have() -> None:
    spec = replace(SPEC, data=DataSpec(kind="imported"))
    assert a_result([a_measurement(changes=(a_change(0.1, metric="kl"),))], spec=spec).judged_by == "kl"
