"""Questions about files that people bring, answered in a process that can be ended."""

import inspect
import json
import os
import pickletools
import struct
import tempfile
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import get_type_hints

import psutil
import pytest
import timm
import torch

from senseapp.compressions import PruningConfig
from senseapp.core.codec import from_plain, to_plain
from senseapp.core.errors import Abandoned, InvalidCheckpoint, InvalidFile, InvalidSchedule, OutOfMemory, ReadingStopped
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.machine import memory_limit
from senseapp.server.model_cards import CheckpointReport, identify_checkpoint
from senseapp.server.process import processes, requester
from senseapp.server.process.processes import JobProcess, answer_in
from senseapp.server.process.requester import COPIES, Requester, WorkerRequest, file_request
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings
from tests.onnx_files import write_export
from tests.pictures import png, write_zip
from tests.small_models import small_network

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("brought")


@pytest.fixture(scope="module")
def backend(folder: Path) -> Iterator[Backend]:
    """One whose questions go to a further process, as those of the app do."""
    made = Backend(folder / "home", workers=0, data_roots=(folder,), settings=ServerSettings(job_processes=True))
    yield made
    made.close()


@pytest.fixture(scope="module")
def weights(folder: Path) -> Path:
    torch.manual_seed(0)
    torch.save(timm.create_model("resnet10t", num_classes=4).state_dict(), folder / "colleague.pth")
    return folder / "colleague.pth"


@pytest.fixture
def service(backend: Backend) -> Service:
    return Service(backend)


def test_every_question_and_answer_is_the_same_after_a_way_as_json(
    folder: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_zip(folder / "photos.zip", {f"{name}/{i}.png": png(i) for name in "0123" for i in range(2)})
    backend = Backend(tmp_path, workers=0, data_roots=(folder,))
    inputs = Service(backend).inputs
    model = ModelSpec(library="timm", name="resnet10t", num_classes=4, checkpoint=str(weights))
    spec = RunSpec(model=model, data=DataSpec(kind="archive", path=str(archive)))
    pruning = RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig()))
    graph = ModelSpec(
        library="onnx", checkpoint=str(write_export(folder / "colleague.onnx", small_network())), task="classification"
    )
    asked: list[str] = []

    def answer(request: WorkerRequest[object], requester: Requester) -> object:
        function = request.call.func
        asked.append(function.__name__)
        arguments = json.loads(json.dumps(request.encoded()))["arguments"]
        kinds = get_type_hints(function)
        again = {name: from_plain(value, kinds[name]) for name, value in arguments.items()}
        assert again == inspect.signature(function).bind(*request.call.args, **request.call.keywords).arguments
        found = request.call()
        assert request.decoded(json.loads(json.dumps(to_plain(found)))) == found
        return found

    monkeypatch.setattr(backend, "answer", answer)
    inputs.identify_checkpoint(str(weights))
    inputs.compare_checkpoint(model)
    inputs.compare_checkpoint(ModelSpec(library="timm", name="resnet18", checkpoint=str(weights)))
    inputs.survey_images(spec.data, spec.model)  # with the card of its model
    inputs.preview(spec)
    inputs.pruning_groups(pruning)
    inputs.examine_onnx(graph)
    inputs.model_card(graph)
    assert set(asked) == {
        *("identify_checkpoint", "compare_checkpoint", "load_card", "survey", "preview_images"),
        *("find_pruning_groups", "examine_onnx_file"),
    }


def pickled(path: Path, *opcodes: bytes) -> Path:
    """Write a checkpoint whose pickle is a dict with one entry made by ``opcodes``."""
    body = b"\x80\x02}" + b"".join(opcodes) + b"s."
    pickletools.dis(body, out=(path.parent / "listing.txt").open("w"))  # whatever else it is, it is a pickle
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", body)
        archive.writestr("archive/version", "3\n")
    return path


def doubled(levels: int) -> bytes:
    """A tuple of two that are one, and so on: its hash takes 2 ** levels steps."""
    return b")q\x00" + b"".join(b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(levels))


def encoded(codec: bytes) -> bytes:
    text = b"X" + struct.pack("<I", 60_000) + "é".encode() * 30_000
    return b"c_codecs\nencode\n" + text + b"X" + struct.pack("<I", len(codec)) + codec + b"\x86R"


@pytest.mark.parametrize(
    ("opcodes", "sentence"),
    [
        ((doubled(60), b"K\x00"), "more than 4,000,000 steps"),
        ((b"X\x01\x00\x00\x00a", encoded(b"punycode")), "holds no weights by layer name"),
    ],
    ids=["nested keys", "slow codec"],
)
def test_a_pickle_that_would_keep_an_unpickler_busy_is_refused_at_once(
    tmp_path: Path, opcodes: tuple[bytes, ...], sentence: str
) -> None:
    from senseapp.networks.checkpoints.checkpoint import read_checkpoint

    with pytest.raises(InvalidCheckpoint, match=sentence):
        read_checkpoint(pickled(tmp_path / "small.pth", *opcodes))


def test_a_file_that_takes_too_long_costs_its_process_and_the_next_one_is_read(
    service: Service, backend: Backend, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.inputs.identify_checkpoint(str(weights))
    before = set(backend.processes.pids())
    with monkeypatch.context() as patch:
        patch.setattr(requester, "OPEN_SECONDS", -10.0)
        for pid in before:
            psutil.Process(pid).suspend()  # as one that computes in C and hears nothing
        begun = time.monotonic()
        with pytest.raises(ReadingStopped, match=r"colleague\.pth kept the process"):
            service.inputs.identify_checkpoint(str(weights))
        assert time.monotonic() - begun < 10
    assert len(before) == 1
    assert not before & set(backend.processes.pids())
    assert service.inputs.identify_checkpoint(str(weights)).proposal is not None


@pytest.mark.wide
def test_a_question_ends_with_the_page_that_asked(
    backend: Backend, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(backend)
    service.inputs.identify_checkpoint(str(weights))
    (pid,) = backend.processes.pids()
    psutil.Process(pid).suspend()  # as one that is busy
    looked: list[bool] = []

    def closed_soon() -> bool:
        looked.append(True)
        return len(looked) > 2

    with pytest.raises(Abandoned, match=r"colleague\.pth was not read to its end"):
        backend.answer(identifying(weights), Requester(person="a", is_gone=closed_soon))
    assert not psutil.pid_exists(pid)
    assert service.inputs.identify_checkpoint(str(weights)).proposal is not None


def test_a_file_that_takes_more_memory_than_files_may_gets_a_sentence() -> None:
    """However much is free, and whatever one job may take."""
    sentence = r"more than the 0\.3 GB of memory that a file of its size may take"
    with pytest.raises(OutOfMemory, match=sentence), memory_limit(most_bytes=requester.OPEN_BYTES):
        bytearray(10**9)
    assert len(bytearray(10**9)) == 10**9


@pytest.mark.wide
def test_a_file_whose_process_was_killed_before_it_was_asked_can_be_read_again(weights: Path) -> None:
    process = JobProcess()
    process.kill()
    with pytest.raises(ReadingStopped, match=r"colleague\.pth ended the process that read it.*Try again"):
        answer_in(process, identifying(weights))
    process.close()


def test_what_a_killed_process_has_unpacked_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    processes._own_folder.cache_clear()
    try:
        process = JobProcess()
        (folder,) = tmp_path.glob("senseapp-*/*/")
        assert psutil.Process(process.pid).environ()["TMPDIR"] == str(folder)
        (folder / "model.safetensors").write_bytes(b"unpacked")
        process.kill()
        process.close()
        assert not list(tmp_path.glob("senseapp-*/*/"))
        kept = {folder.parent.name, f"senseapp-{os.getppid()}-x", "senseapp-x"}
        for name in ("senseapp-4194304-x", f"senseapp-{os.getpid()}-x", *kept):
            (tmp_path / name / "inside").mkdir(parents=True)
        processes.remove_left_over()
        assert {path.name for path in tmp_path.iterdir()} == kept
    finally:
        processes._own_folder.cache_clear()


def test_texts_get_their_sentence_too(service: Service, tmp_path: Path) -> None:
    profile = service.inputs.model_card(ModelSpec())
    bomb = b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    for content in (bomb, b"a: !!bool abc", b"[" * 100_000, b"\xff"):
        with pytest.raises(InvalidSchedule):
            service.inputs.read_schedule(content, profile)
    with pytest.raises(InvalidFile, match="Its first line must name the columns"):
        service.import_csv("bad", b"no,table\n1,2\n")
    (tmp_path / "no.zip").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InvalidFile):
        service.import_run(tmp_path / "no.zip")


def test_a_message_that_quotes_a_file_can_be_shown_and_ends() -> None:
    error = InvalidFile(f"There is no layer {'x' * 10_000} and no \ud800 either.")
    assert str(InvalidFile("no \ud800")) == "no ?"
    assert len(str(error)) < 1000


def identifying(weights: Path) -> WorkerRequest[CheckpointReport]:
    return file_request(partial(identify_checkpoint, str(weights)), str(weights), copies=COPIES)
