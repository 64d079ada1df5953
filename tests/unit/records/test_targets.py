"""Targets: the runtime of their files, what is said of these, and which files of a run are compared for them."""

from dataclasses import replace

import pytest

from senseapp.core.errors import InvalidSpec
from senseapp.descriptions.runtimes import RUNTIMES
from senseapp.descriptions.targets import TARGETS, USUAL_TARGET, target_of_file
from senseapp.prove.decision import decision
from senseapp.records.candidate import Candidate
from senseapp.records.deployment import DeploySettings
from senseapp.records.spec import RunSpec
from senseapp.server.delivery_tasks import original_in_int8
from senseapp.store.run_folder import RunFolder
from tests.deployments import a_candidate, a_deployment


def a_file_for(runtime: str, size: int) -> Candidate:
    deployment = a_deployment(settings=DeploySettings(runtime=runtime), in_float=())
    name = f"deployed-{size:016x}{RUNTIMES[runtime].suffix}"
    return a_candidate(size=size, lost=0.0, deployment=deployment, file=name)


ONNX, OPENVINO, TFLITE = (
    a_file_for("onnxruntime", 3_000_000),
    a_file_for("openvino", 2_000_000),
    a_file_for("litert", 4),
)
FILES = (ONNX, OPENVINO, TFLITE)


def test_each_target_has_a_runtime_and_says_what_was_not_measured() -> None:
    assert [each.runtime_name for each in TARGETS.values()] == [
        *("onnxruntime", "openvino", "litert", "onnxruntime", "onnxruntime")
    ]
    assert {each.name for each in TARGETS.values() if not each.measured} == {USUAL_TARGET}
    assert "not a phone's" in TARGETS["phone"].measured
    assert "not measured on the device" in TARGETS["qualcomm"].measured


def test_a_target_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="The target must be one of computer, intel, phone, qualcomm, other"):
        RunSpec(target="toaster")


def test_another_target_is_no_other_run(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    folder.claim(RunSpec())
    folder._head_file.write_text("{}")
    folder.claim(RunSpec(target="phone"))


@pytest.mark.parametrize("target", TARGETS)
def test_the_first_file_of_a_run_is_for_the_runtime_of_its_target(target: str) -> None:
    assert original_in_int8("run", 0.01, target=target).settings.runtime == TARGETS[target].runtime_name


@pytest.mark.parametrize(
    ("target", "choice"),
    [("computer", TFLITE), ("intel", OPENVINO), ("phone", TFLITE), ("qualcomm", ONNX), ("other", ONNX)],
)
def test_files_for_other_devices_are_not_compared(target: str, choice: Candidate) -> None:
    found = decision(FILES, "smaller", 0.05, target=target)
    assert found.choice is not None
    assert found.choice.file == choice.file
    others = [one.file for one in FILES if not TARGETS[target].runs(one.runtime.name)]
    assert [file for file, standing in found.standings.items() if standing == "other target"] == others
    assert {one.file for one in found.compared(FILES)} == {one.file for one in FILES} - set(others)
    assert found.evidence.endswith(target_of_file(choice.runtime.name, target).measured)


def test_without_a_file_for_the_target_none_is_recommended() -> None:
    found = decision([ONNX], "smaller", 0.05, target="phone")
    assert found.choice is None
    assert found.compared([ONNX]) == (ONNX,)


def test_the_readme_loads_the_file_there_and_says_what_was_measured() -> None:
    record = ONNX.deployment
    assert record is not None
    here, there = record.readme("net.onnx"), record.readme("net.onnx", "qualcomm")
    assert 'InferenceSession("net.onnx")' in here
    assert 'InferenceSession("net.onnx", providers=["QNNExecutionProvider"]' in there
    assert there.endswith(f"{TARGETS['qualcomm'].measured}\n")
    phone = replace(record, settings=DeploySettings(runtime="litert")).readme("net.tflite", "qualcomm")
    assert "ai_edge_litert" in phone
    assert "not a phone's" in phone
