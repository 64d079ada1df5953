"""Checks as jobs: for their owner only, with their uploads until they end, and with a reason where they fail."""

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from senseapp.core.codec import dumps
from senseapp.core.errors import InvalidCheckpoint, NotFound, QueueFull, ReadingStopped
from senseapp.records.check import CheckSpec
from senseapp.records.jobs import RunState
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.server.backend import Backend
from senseapp.server.checks import MOST_SECONDS, CheckObserver, sweep_checks
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings
from tests.check_pairs import PAIRS, Workshop


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    made = Backend(tmp_path / "home", workers=0, data_roots=(), settings=ServerSettings(max_queue=1))
    yield made
    made.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    shop = Workshop(tmp_path_factory.mktemp("files"))
    made = next(each for each in PAIRS if each.name == "other names inside").make(shop)
    assert isinstance(made, onnx.ModelProto)
    return shop.reference.read_bytes(), made.SerializeToString()


def uploaded(service: Service, content: bytes, name: str) -> ModelSpec:
    path = service.inputs.reserve_upload(len(content))
    path.write_bytes(content)
    return ModelSpec(library="onnx", checkpoint=str(path.replace(path.with_name(name))), task="classification")


def spec_of(service: Service, files: tuple[bytes, bytes]) -> CheckSpec:
    return CheckSpec(
        reference=uploaded(service, files[0], "net.onnx"),
        candidate=uploaded(service, files[1], "net.onnx"),
        data=DataSpec(kind="demo", mean=(0.304,), std=(0.323,)),
        num_samples=160,
        max_drop=0.03,
    )


def test_a_check_is_carried_out_and_found_again_by_its_owner_only(backend: Backend, files: tuple[bytes, bytes]) -> None:
    service, stranger = Service(backend, "ada"), Service(backend, "bob")
    spec = spec_of(service, files)
    check_id = service.checks.start(spec)
    assert service.checks.record(check_id).report is None
    snapshot = service.checks.progress(check_id)
    assert snapshot is not None
    assert snapshot.state is RunState.QUEUED
    service.inputs.discard_upload(Path(spec.candidate.checkpoint))  # as when its session ends
    assert backend.runner.run_next()
    record = service.checks.record(check_id)
    assert record.report is not None
    assert record.report.holds
    assert record.title == "net.onnx against net.onnx"
    service.inputs.discard_upload(Path(spec.candidate.checkpoint))
    assert not Path(spec.candidate.checkpoint).exists()
    assert [each.check_id for each in service.checks.recent()] == [check_id]
    assert stranger.checks.recent() == ()
    for look in (stranger.checks.record, stranger.checks.progress, stranger.checks.cancel):
        with pytest.raises(NotFound):
            look(check_id)
    kept = {path.name for path in (backend.home / "checks").rglob("*") if path.is_file()}
    assert kept == {"spec.json", "report.json"}
    assert str(backend.home) not in (backend.home / "checks").rglob("report.json").__next__().read_text()


def test_files_elsewhere_are_refused_before_anything_is_queued(
    backend: Backend, files: tuple[bytes, bytes], tmp_path: Path
) -> None:
    service = Service(backend, "ada")
    elsewhere = tmp_path / "secret.onnx"
    elsewhere.write_bytes(files[0])
    own = uploaded(service, files[0], "net.onnx")
    others = uploaded(Service(backend, "bob"), files[0], "net.onnx")
    for wrong in (ModelSpec(library="onnx", checkpoint=str(elsewhere), task="classification"), others):
        for sides in ((own, wrong), (wrong, own)):
            with pytest.raises(InvalidCheckpoint):
                service.checks.start(CheckSpec(reference=sides[0], candidate=sides[1]))
    assert not list((backend.home / "checks").rglob("spec.json"))
    for text in ("", "../../runs", "0" * 32, "\x00"):
        with pytest.raises(NotFound):
            service.checks.record(text)


def test_a_check_that_fails_or_is_cancelled_says_why(backend: Backend, files: tuple[bytes, bytes]) -> None:
    service = Service(backend, "ada")
    check_id = service.checks.start(spec_of(service, (files[0], b"no network")))
    with pytest.raises(QueueFull):
        service.checks.start(spec_of(service, files))
    assert len(service.checks.recent()) == 1
    backend.runner.run_next()
    record = service.checks.record(check_id)
    assert "net.onnx cannot be checked: The file is text, not an ONNX model" in record.error
    second = service.checks.start(spec_of(service, files))
    service.checks.cancel(second)
    assert service.checks.record(second).error == "This check was cancelled."


def test_a_check_of_a_server_that_ended_is_said_to_be_interrupted(backend: Backend, files: tuple[bytes, bytes]) -> None:
    service = Service(backend, "ada")
    check_id = service.checks.start(spec_of(service, files))
    other = Backend(backend.home, workers=0)
    try:
        assert "senseapp stopped before this check was finished" in Service(other, "ada").checks.record(check_id).error
    finally:
        other.close()


def test_only_the_last_checks_of_a_user_are_kept(backend: Backend, files: tuple[bytes, bytes]) -> None:
    service = Service(backend, "ada")
    spec = spec_of(service, (b"none", b"none"))
    for _ in range(22):
        service.checks.start(spec)
        backend.runner.run_next()
    assert len(service.checks.recent()) == 20


def test_a_check_that_never_ends_is_stopped() -> None:
    moments = iter([0.0, 1.0, MOST_SECONDS + 1])
    observer = CheckObserver(lambda sentence: None, clock=lambda: next(moments))
    observer.phase("Opening")
    with pytest.raises(ReadingStopped, match="longer than 30 minutes"):
        observer.phase("")


def test_the_time_left_follows_from_the_first_images() -> None:
    moments, planned = iter([0.0, 21.0, 25.0, 30.0]), []
    observer = CheckObserver(lambda sentence: None, lambda *told: planned.append(told), clock=lambda: next(moments))
    for done in (0, 8, 16):
        observer.phase(f"Running the original · {done} of 80 images")
    ((steps, since),) = planned
    assert [each.seconds for each in steps] == [40.0, 40.0, 53.0]  # half a second an image, also of 100 timed calls
    assert since == 4.0


def test_a_damaged_record_is_left_out_of_the_list(backend: Backend, files: tuple[bytes, bytes]) -> None:
    service = Service(backend, "ada")
    check_id = service.checks.start(spec_of(service, files))
    (next((backend.home / "checks").glob(f"*/{check_id}")) / "spec.json").write_text("{}")
    assert service.checks.recent() == ()


def test_a_killed_server_leaves_no_file_of_a_check(backend: Backend, files: tuple[bytes, bytes]) -> None:
    """Killed before the settings were written, while they were, after the report was, and with a damaged report."""
    service = Service(backend, "ada")
    before, during, after, damaged = folders = [backend.home / "checks" / "a" / (str(place) * 32) for place in range(4)]
    for folder in folders:
        folder.mkdir(parents=True)
    (during / f".spec.json.{2**22}.{'0' * 32}").write_bytes(b"half")
    spec = CheckSpec(reference=ModelSpec(checkpoint="a.onnx"), candidate=ModelSpec(checkpoint="b.onnx"))
    for folder in (after, damaged):
        (folder / "spec.json").write_text(dumps(spec))
        (folder / f".report.json.{2**22}.{'0' * 32}").write_bytes(b"half")
    (damaged / "report.json").write_text("{")
    Backend(backend.home, workers=0).close()  # as a server does that starts after another was killed
    left = {str(path.relative_to(after.parent)) for path in after.parent.rglob("*") if path.is_file()}
    assert left == {f"{after.name}/{name}" for name in ("spec.json",)} | {
        f"{damaged.name}/{name}" for name in ("spec.json", "report.json")
    }
    assert not before.exists()
    assert not during.exists()
    assert service.checks.recent() == ()


def test_old_checks_are_deleted_with_untouched_runs(backend: Backend, files: tuple[bytes, bytes]) -> None:
    service = Service(backend, "ada")
    old = service.checks.start(spec_of(service, files))
    service.checks.cancel(old)
    waiting = service.checks.start(spec_of(service, files))
    os.utime(next((backend.home / "checks").glob(f"*/{old}/spec.json")), (1.0, 1.0))
    sweep_checks(backend.home, 0)
    assert len(service.checks.recent()) == 2
    sweep_checks(backend.home, 30)
    assert [each.check_id for each in service.checks.recent()] == [waiting]
