import os
import subprocess
import sys
from dataclasses import replace

import pytest

from senseapp.core.errors import InvalidFile, NotFound, RunMismatch
from senseapp.core.files import remove_temporaries
from senseapp.records.candidate import Delivery
from senseapp.records.schedule import Schedule, ValidationResult
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.store.run_folder import RunFolder
from tests.deployments import a_candidate
from tests.fake_session import SPEC, a_measurement, a_result

OTHER = RunSpec(sensitivity=SensitivitySpec(levels=(0.75,)))


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.make()
    made.claim(SPEC)
    return made


def test_a_folder_remembers_its_settings(folder):
    assert folder.spec() == SPEC
    assert not folder.finished
    folder.claim(SPEC)


def test_settings_that_never_loaded_a_model_are_given_up(folder):
    folder.claim(OTHER)
    assert folder.spec() == OTHER


def test_a_run_with_other_settings_is_refused_and_the_difference_named(folder):
    folder.save_head(a_result())
    with pytest.raises(RunMismatch, match=r"unfinished run .* \(levels\)"):
        folder.claim(OTHER)
    folder.save_result(a_result())
    with pytest.raises(RunMismatch, match="a finished run"):
        folder.claim(OTHER)
    assert folder.spec() == SPEC


def test_what_was_found_so_far(folder):
    assert folder.so_far() is folder.load_estimates() is None
    folder.save_head(a_result([a_measurement("head")]))
    assert folder.so_far() == a_result()
    folder.measurements.append(a_measurement("stem"))
    estimate = a_measurement("stem", estimated=True)
    folder.save_estimates((estimate,))
    assert folder.so_far() == replace(a_result([a_measurement("stem")]), estimates=(estimate,))


def a_validation(predicted):
    schedule = Schedule(model="fake", method="manual", entries=())
    return ValidationResult(schedule=schedule, changes=(), predicted=predicted)


def test_proofs_come_in_the_order_they_were_made_and_a_new_one_is_seen(folder):
    assert folder.records(ValidationResult) == ()
    for place, key in enumerate(("b", "a")):
        folder.save(key, a_validation(place))
        os.utime(folder.path / f"validation-{key}.json", ns=(place, place))
    assert [proof.predicted for proof in folder.records(ValidationResult)] == [0, 1]
    folder.save("b", a_validation(2))
    assert [proof.predicted for proof in folder.records(ValidationResult)] == [1, 2]


def test_the_result_round_trips(folder):
    with pytest.raises(NotFound, match="is not finished"):
        folder.load_result()
    result = a_result([a_measurement("stem"), a_measurement("head", 0.25)])
    folder.save_result(result)
    assert folder.finished
    assert folder.load_result() == result == folder.so_far()


def test_a_damaged_result_names_the_file(folder):
    folder.save_result(a_result())
    (folder.path / "result.json").write_text("{")
    with pytest.raises(InvalidFile, match=r"result\.json"):
        folder.load_result()


def test_two_at_once_are_refused_and_a_dead_process_holds_nothing(folder):
    with (
        folder.exclusive(),
        pytest.raises(RunMismatch, match="Another senseapp is measuring"),
        RunFolder(folder.path).exclusive(),
    ):
        pass
    script = "import os, pathlib, sys; from senseapp.store.run_folder import RunFolder\n"
    script += "with RunFolder(pathlib.Path(sys.argv[1])).exclusive(): os.kill(os.getpid(), 9)"
    died = subprocess.run([sys.executable, "-c", script, str(folder.path)], check=False)
    assert died.returncode == -9
    with folder.exclusive():
        pass


def test_half_written_files_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    names = [f".result.json.{process}.{'0' * 32}" for process in (dead.pid, os.getpid())]
    for name in (*names, ".hidden", "result.json"):
        (tmp_path / name).write_text("half")
    remove_temporaries(tmp_path, beside_others=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[1], ".hidden", "result.json"])
    remove_temporaries(tmp_path, beside_others=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "result.json"]


def test_a_file_that_was_made_twice_is_listed_once(folder):
    first = a_candidate("int8", size=1000)
    again = replace(first, file=f"deployed-{'2' * 16}.onnx")
    larger = replace(again, figures=replace(first.figures, file_bytes=2000), file=f"deployed-{'3' * 16}.onnx")
    folder.save("0" * 16, Delivery(candidates=(first,)))
    folder.save("1" * 16, Delivery(candidates=(again, larger)))
    assert [each.file for each in folder.candidates()] == [first.file, larger.file]
