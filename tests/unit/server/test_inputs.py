"""What the service tells about files before a run, and how much people may upload."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch

from senseapp.core.errors import InvalidCheckpoint, InvalidDataset, QuotaExceeded
from senseapp.data.downloads import image_set_folder
from senseapp.data.load import demo_pictures
from senseapp.descriptions.sources import IMAGE_SETS
from senseapp.records.inputs import num_held_out
from senseapp.records.spec import NUM_DIGITS, DataSpec, ModelSpec, RunSpec
from senseapp.server import run_requests
from senseapp.server.backend import Backend
from senseapp.server.inputs import num_images
from senseapp.server.model_cards import load_card, shipped_card
from senseapp.server.run_requests import sample_zip
from senseapp.server.service import Service
from senseapp.server.settings import uploads_folder
from tests.image_set_files import Publisher
from tests.pictures import class_files, write_zip

MODEL = "resnet10t"
MB = 1_000_000


@pytest.fixture
def service(tmp_path):
    backend = Backend(tmp_path / "home", workers=0, data_roots=(tmp_path / "files",))
    (tmp_path / "files").mkdir()
    yield Service(backend)
    backend.close()


def save(path: Path, *, num_classes: int = 4, change=None, **extra) -> Path:
    torch.manual_seed(0)
    tensors = timm.create_model(MODEL, num_classes=num_classes).state_dict()
    if change is not None:
        change(tensors)
    torch.save({"model": {f"module.{name}": tensor for name, tensor in tensors.items()}, **extra}, path)
    return path


def digits(folder: Path) -> Path:
    path = folder / "digits.zip"
    path.write_bytes(sample_zip())
    return path


@pytest.mark.slow
def test_a_checkpoint_without_a_name_is_recognised(service, tmp_path):
    path = save(tmp_path / "files" / "net.pth")
    report = service.inputs.identify_checkpoint(str(path))
    assert report.proposal == ModelSpec(library="timm", name=MODEL, checkpoint=str(path))
    best = report.candidates[0]
    assert (best.score, best.exact, best.num_classes, best.in_chans) == (1.0, True, 4, 3)
    assert not any(other.exact for other in report.candidates[1:])
    assert report.network == "model.module"
    assert report.networks == ("model.module",)
    assert "every name and shape fits" in report.verdict


def test_a_checkpoint_of_no_architecture_has_the_closest_ones(service, tmp_path):
    def widen(tensors):
        tensors["layer4.0.extra.weight"] = torch.zeros(3, 3)

    report = service.inputs.identify_checkpoint(str(save(tmp_path / "files" / "net.pth", change=widen)))
    assert report.proposal is None
    assert report.candidates[0].name == MODEL
    assert "no architecture of timm or torchvision" in report.verdict


def test_differences_come_in_a_table_with_their_cause(service, tmp_path):
    def damage(tensors):
        del tensors["layer1.0.conv1.weight"]
        tensors["layer9.weight"] = torch.zeros(2, 5)
        tensors["layer2.0.conv1.weight"] = torch.zeros(128, 64, 5, 5)

    path = save(tmp_path / "files" / "net.pth", change=damage)
    fit = service.inputs.compare_checkpoint(ModelSpec(library="timm", name=MODEL, checkpoint=str(path)))
    assert not fit.fits
    assert [(item.kind, item.name, item.expected, item.found) for item in fit.differences] == [
        ("missing", "layer1.0.conv1.weight", (64, 64, 3, 3), None),
        ("wrong shape", "layer2.0.conv1.weight", (128, 64, 3, 3), (128, 64, 5, 5)),
        ("unexpected", "layer9.weight", None, (2, 5)),
    ]
    assert "variant of this architecture" in fit.cause


def test_files_elsewhere_on_the_server_are_not_looked_at(service, tmp_path):
    path = save(tmp_path / "secret.pth")
    with pytest.raises(InvalidCheckpoint, match="only from uploads"):
        service.inputs.identify_checkpoint(str(path))
    with pytest.raises(InvalidCheckpoint, match="only from uploads"):
        service.inputs.compare_checkpoint(ModelSpec(library="timm", name=MODEL, checkpoint=str(path)))
    archive = write_zip(tmp_path / "secret.zip", class_files())
    with pytest.raises(InvalidDataset, match="only from uploads"):
        service.inputs.survey_images(DataSpec(kind="archive", path=str(archive)), ModelSpec())


def test_a_survey_counts_and_proposes(service, tmp_path):
    files = {**class_files(("zero", "1"), each=3), "truth.csv": b"file,label\n"}
    archive = write_zip(tmp_path / "files" / "a.zip", files)
    survey = service.inputs.survey_images(DataSpec(kind="archive", path=str(archive)), ModelSpec())
    assert (survey.num_images, survey.label_counts) == (6, (("1", 3), ("zero", 3)))
    assert survey.proposal.pairs == (("1", 1),)
    assert survey.proposal.unmatched == ("zero",)
    assert survey.tables == ("truth.csv",)


def test_the_time_is_known_once_the_images_have_been_counted(service, tmp_path):
    spec = RunSpec(data=DataSpec(kind="archive", path=str(digits(tmp_path / "files"))))
    assert service.inputs.estimate_time(spec) is None
    service.inputs.survey_images(spec.data, spec.model)
    seconds = service.inputs.estimate_time(spec)
    assert seconds == pytest.approx(service.inputs.estimate_time(RunSpec()))
    chosen = replace(spec, data=replace(spec.data, class_map=(("0", 0),)))
    assert service.inputs.estimate_time(chosen) == seconds


def test_a_preview_shows_four_pictures_with_label_prediction_and_baseline(service, tmp_path):
    data = DataSpec(kind="archive", path=str(digits(tmp_path / "files")))
    report = service.inputs.preview(RunSpec(data=data))
    assert len(report.pictures) == len({picture.label for picture in report.pictures}) == 4
    assert all(picture.png.startswith(b"\x89PNG") for picture in report.pictures)
    assert sum(picture.label == picture.prediction for picture in report.pictures) >= 3
    assert 0 < report.num_scored <= 256
    assert report.score is not None
    assert report.score > 0.9
    assert report.warning == ""


def test_labels_that_do_not_line_up_are_warned_about(service, tmp_path):
    shifted = tuple((str(index), (index + 1) % 10) for index in range(10))
    data = DataSpec(kind="archive", path=str(digits(tmp_path / "files")), class_map=shifted)
    report = service.inputs.preview(RunSpec(data=data))
    assert report.score is not None
    assert report.score < 0.1
    assert "check the preprocessing, which class each label means" in report.warning


def test_a_preview_without_labels_has_predictions_only(service, tmp_path):
    data = DataSpec(kind="archive", path=str(digits(tmp_path / "files")), labels="none")
    report = service.inputs.preview(RunSpec(data=data))
    assert (report.score, report.num_scored, report.warning) == (None, 0, "")
    assert {picture.label for picture in report.pictures} == {""}
    assert all(picture.prediction in set("0123456789") for picture in report.pictures)


def test_an_image_set_is_counted_and_only_a_part_of_it_previewed(service, tmp_path, monkeypatch):
    monkeypatch.setenv("SENSEAPP_HOME", str(tmp_path / "home"))
    folder = image_set_folder("svhn")
    folder.mkdir(parents=True)
    Publisher(folder, "http://nowhere.invalid", monkeypatch).publish("svhn")
    data = DataSpec(kind="torchvision", name="svhn")
    known = IMAGE_SETS["svhn"].num_images
    assert num_images(RunSpec(data=data)) == known - num_held_out(known)
    survey = service.inputs.survey_images(data, ModelSpec())
    assert survey.num_images == 20
    assert survey.class_names == tuple("0123456789")
    assert num_images(RunSpec(data=data), service._backend.image_counts) == 20
    report = service.inputs.preview(RunSpec(data=data))
    assert (len(report.pictures), report.num_scored) == (4, 20)
    monkeypatch.setattr(run_requests, "_MOST_SCORED", 5)
    report = service.inputs.preview(RunSpec(data=data))
    assert (len(report.pictures), report.num_scored) == (4, 5)


@pytest.mark.wide
@pytest.mark.slow
def test_many_first_questions_at_once_load_the_engine_once():
    program = """
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from senseapp.server.run_requests import sample_zip
from senseapp.server.model_cards import load_card
from senseapp.server.run_requests import preview_images
from senseapp.records.spec import ModelSpec, RunSpec
from senseapp.server.machine import load_engine
barrier = threading.Barrier(4)
def ask(question):  # as the backend answers without a process
    barrier.wait()
    load_engine()
    return question()
questions = [sample_zip, lambda: load_card(ModelSpec()), lambda: preview_images(RunSpec(), num_images=None)]
with ThreadPoolExecutor(4) as pool:
    for answer in [pool.submit(ask, question) for question in (*questions, sample_zip)]:
        answer.result()
print(gc.get_freeze_count() > len(gc.get_objects()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.stderr, done.stderr
    assert done.stdout == "True\n"  # what was loaded is no work for the collector, which runs after each page


def uploaded(folder: Path, name: str, num_bytes: int, *, hours_old: float = 0) -> Path:
    path = folder / name / "file.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(num_bytes))
    then = time.time() - 3600 * hours_old
    os.utime(path, (then, then))
    return path


@pytest.fixture
def limits(monkeypatch):
    """Set the limits of uploads, in megabytes."""

    def set_limits(*, file_mb=4, person_mb=5, server_mb=100):
        for name, value in (("MAX_UPLOAD", file_mb), ("PER_PERSON", person_mb), ("UPLOADS_IN_ALL", server_mb)):
            monkeypatch.setenv(f"SENSEAPP_{name}_MB", str(value))

    set_limits()
    return set_limits


@pytest.fixture
def mine(service, tmp_path):
    return uploads_folder(tmp_path / "home", service.owner)


@pytest.mark.parametrize(
    ("num_bytes", "sentence"),
    [(4 * MB + 1, "up to 4 MB"), (3 * MB + 1, "Your uploads may take 5 MB and take 2 MB"), (3 * MB, None)],
)
def test_a_file_and_a_person_have_a_quota(service, mine, limits, num_bytes, sentence):
    uploaded(mine, "a", 2 * MB)
    if sentence is None:
        path = service.inputs.reserve_upload(num_bytes)
        assert path.stat().st_size == num_bytes
        return
    with pytest.raises(QuotaExceeded, match=sentence):
        service.inputs.reserve_upload(num_bytes)
    assert [path.name for path in mine.iterdir()] == ["a"]


def test_everybody_together_has_a_quota(service, mine, limits):
    limits(server_mb=3)
    uploaded(mine.with_name("you"), "a", 2 * MB)
    with pytest.raises(QuotaExceeded, match="on this server may take 3 MB in all"):
        service.inputs.reserve_upload(2 * MB)


def test_what_is_on_its_way_counts_before_it_has_come(service, limits):
    assert service.inputs.reserve_upload(3 * MB).stat().st_blocks == 0
    with pytest.raises(QuotaExceeded, match="take 5 MB and take 3 MB"):
        service.inputs.reserve_upload(3 * MB)


def test_old_uploads_that_no_run_reads_make_room(service, mine, limits, monkeypatch):
    limits(server_mb=9)
    old, used, fresh = (uploaded(mine, name, MB, hours_old=age) for name, age in (("a", 9), ("b", 9), ("c", 1)))
    forgotten = uploaded(mine.with_name("you"), "d", MB, hours_old=9)
    monkeypatch.setattr(service._backend, "reads_upload", lambda name: name == "b")
    service.inputs.reserve_upload(3 * MB)
    assert [path.exists() for path in (old, used, fresh, forgotten)] == [False, True, True, False]
    assert not old.parent.exists()


def test_an_upload_that_ends_while_room_is_made_for_another_refuses_nobody(service, monkeypatch):
    ending = service.inputs.reserve_upload(1 * MB).parent
    listed = Path.iterdir

    def removed_once_listed(folder):
        found = list(listed(folder))
        if folder == ending:
            shutil.rmtree(ending)
        return iter(found)

    monkeypatch.setattr(Path, "iterdir", removed_once_listed)
    assert service.inputs.reserve_upload(1 * MB).is_file()


def test_only_uploads_are_ever_discarded(service, mine, tmp_path, monkeypatch):
    path, elsewhere = uploaded(mine, "a", 1), uploaded(tmp_path / "precious", "b", 1)
    service.inputs.discard_upload(elsewhere)
    with monkeypatch.context() as patch:
        patch.setattr(service._backend, "reads_upload", lambda name: name == "a")
        service.inputs.discard_upload(path)
    assert elsewhere.exists()
    assert path.exists()
    service.inputs.discard_upload(path)
    assert not path.parent.exists()


def test_the_upload_of_a_run_is_kept(service, tmp_path):
    path = write_zip(uploaded(uploads_folder(tmp_path / "home", service.owner), "a" * 32, 1), class_files())
    run_id = service.start(RunSpec(data=DataSpec(kind="archive", path=str(path))))
    service.inputs.discard_upload(path)
    assert path.exists()
    service.delete(run_id)
    service.inputs.discard_upload(path)
    assert path.exists()  # the run may be restored, and resumed
    service._backend.store.remove_deleted()
    service.inputs.discard_upload(path)
    assert not path.exists()


def test_the_shipped_card_and_the_number_of_digits_are_what_is_found() -> None:
    assert shipped_card() == load_card(ModelSpec())
    assert len(demo_pictures()) == NUM_DIGITS
