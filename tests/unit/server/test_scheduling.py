"""What the Schedule page asks of the service: searches, proofs of a run, couplings, the graph and the zip."""

import io
import json
import zipfile
from functools import partial

import pytest
import torch

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.errors import InvalidCheckpoint, InvalidSchedule
from senseapp.networks.sources.load import load_model
from senseapp.records.jobs import RunState
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import Limits, ResourceBudget, StrongestFound, TriedTarget
from senseapp.records.spec import ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.model_cards import require_same_model
from senseapp.server.process.requester import WorkerRequest, answer_here
from senseapp.server.run_requests import find_couplings
from senseapp.server.run_tasks import DropLimit, StrongestSearch
from senseapp.server.service import Service
from senseapp.solve.methods import make_schedule
from tests.fake_session import a_backend
from tests.pages.records import change, measurement

DROP = DropLimit(kind="params", allowed_drop=0.01, metric="top1", repair=True, limits=Limits(fixed={"fc": 0.0}))


@pytest.fixture
def service(backend):
    return Service(backend)


def a_demo_result(spec: RunSpec) -> RunResult:
    """Made-up figures of two layers of the real demo network."""
    from senseapp.networks.profile import profile_model

    profile = profile_model(load_model(ModelSpec()).module, torch.zeros(1, 1, 32, 32))
    measured = tuple(
        measurement(name, order, level, severity=level)
        for order, name in enumerate(("layer3.1.conv1", "layer4.1.conv1"))
        for level in spec.sensitivity.levels
    )
    return RunResult(spec=spec, profile=profile, metric="top1", baseline={}, measurements=measured)


def keep(service: Service, backend: Backend, spec: RunSpec) -> str:
    """Store a finished run of ``spec``."""
    run_id = service.start(spec)
    backend.runner.cancel(run_id)
    backend.store.folder(run_id).save_result(a_demo_result(spec))
    backend.store.set_state(run_id, RunState.DONE)
    return run_id


@pytest.fixture
def run_id(service, backend):
    return keep(service, backend, RunSpec(sensitivity=SensitivitySpec(levels=(0.5, 0.75))))


def a_schedule(service, run_id):
    return make_schedule(service.result(run_id), budget=ResourceBudget(kind="params", target=0.005))


def test_a_search_waits_is_cancelled_and_is_found_by_the_same_question(service, backend, run_id):
    assert service.work.outcome(StrongestSearch(run_id=run_id, drop=DROP)) is None
    service.work.start(StrongestSearch(run_id=run_id, drop=DROP))
    assert service.work.progress(StrongestSearch(run_id=run_id, drop=DROP)).queue_place == 1
    service.work.cancel(StrongestSearch(run_id=run_id, drop=DROP))
    assert service.work.progress(StrongestSearch(run_id=run_id, drop=DROP)).state is RunState.CANCELLED
    tried = TriedTarget(figure=0.1, changes=(change("top1", 0.004, 0.002),))
    found = StrongestFound(schedule=a_schedule(service, run_id), allowed_drop=0.01, repaired=True, tried=(tried,))
    backend.store.folder(run_id).save(StrongestSearch(run_id=run_id, drop=DROP).key, found)
    assert service.work.outcome(StrongestSearch(run_id=run_id, drop=DROP)) == found
    other = DropLimit(kind="params", allowed_drop=0.01, metric="top1", repair=True, limits=Limits(fixed={"fc": 0.5}))
    assert service.work.outcome(StrongestSearch(run_id=run_id, drop=other)) is None


def test_a_search_that_a_killed_server_had_begun_is_interrupted_until_it_is_asked_for_again(service, backend, run_id):
    search = StrongestSearch(run_id=run_id, drop=DROP)
    service.work.start(search)
    later = Service(a_backend(backend.home))
    left = later.work.progress(search)
    assert left.state is RunState.INTERRUPTED
    assert "try again" in left.error
    later.work.start(search)
    assert later.work.progress(search).state is RunState.QUEUED
    later.work.cancel(search)
    last = Service(a_backend(backend.home))
    assert last.work.progress(search) is None  # it ended, and was told


def test_couplings_are_those_of_the_runs_network(service, backend):
    spec = RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig(), levels=(0.5,)))
    run_id = keep(service, backend, spec)
    found = service.work.couplings(run_id)
    groups = {group.layer: group for group in found}
    assert {axis.layer for axis in groups["layer4.1.conv1"].axes} == {"layer4.1.conv1", "layer4.1.conv2"}
    assert groups["layer4.1.conv1"].num_units == 64
    asked = WorkerRequest(call=partial(find_couplings, backend.store.folder(run_id).path, spec.model))
    assert asked.decoded(answer_here(json.loads(json.dumps(asked.encoded())))) == found


def test_a_model_that_may_not_be_read_any_more_is_not_loaded(service, backend, tmp_path, run_id):
    folder = backend.store.folder(run_id)
    elsewhere = RunSpec(model=ModelSpec(library="timm", name="resnet18", checkpoint=str(tmp_path / "x.pth")))
    folder.save_result(a_demo_result(elsewhere))
    with pytest.raises(InvalidCheckpoint, match="only from uploads"):
        service.work.graph(run_id)


@pytest.mark.slow
def test_the_zip_holds_the_overlay_and_says_where_its_graph_is(service, run_id):
    with zipfile.ZipFile(io.BytesIO(service.work.target_zip(run_id, a_schedule(service, run_id)))) as archive:
        overlay = json.loads(archive.read("schedule.model-explorer.json"))
        manifest = json.loads(archive.read("manifest.json"))
        readme = archive.read("README.txt").decode()
    program = torch.export.load(service.work.graph(run_id).path)
    assert overlay["results"].keys() <= {node.name for node in program.graph.nodes}
    assert not [name for name in manifest["files"] if name.endswith(".pt2")]  # of 45 MB for a usual network
    assert "choose the format Model Explorer" in readme
    assert "schedule.model-explorer.json: Google's Model Explorer" in readme


@pytest.fixture
def bits_of_one_file(service, backend, tmp_path):
    """Return what stores a quantization run of a checkpoint with this content, in a folder of its own."""

    def stored(content, name, levels=(8.0, 4.0), config=None):
        path = tmp_path / name / "net.pth"
        path.parent.mkdir()
        path.write_bytes(content)
        model = ModelSpec(library="timm", name="resnet18", checkpoint=str(path))
        settings = SensitivitySpec(compression=config or QuantizationConfig(), levels=levels)
        record = backend.store.create(RunSpec(model=model, sensitivity=settings), owner=service.owner, title=name)
        backend.store.set_state(record.run_id, RunState.DONE)
        return record.run_id

    return stored


def test_partners_are_runs_of_the_same_weights_wherever_they_were_uploaded(bits_of_one_file, service):
    zeros = bits_of_one_file(b"weights", "first", (0.5,), SparsityConfig())
    same, other = bits_of_one_file(b"weights", "second"), bits_of_one_file(b"WEIGHTS", "third")
    assert [record.run_id for record in service.work.partners(zeros)] == [same]
    assert [record.run_id for record in service.work.partners(same)] == [zeros]
    assert service.work.partners(other) == ()


def test_a_checkpoint_that_is_gone_is_the_same_as_none_other(bits_of_one_file, service, tmp_path):
    zeros = bits_of_one_file(b"weights", "first", (0.5,), SparsityConfig())
    bits_of_one_file(b"weights", "second")
    (tmp_path / "second" / "net.pth").unlink()
    assert service.work.partners(zeros) == ()


def test_two_runs_of_different_weights_are_refused(tmp_path):
    models = []
    for name, content in {"a.pth": b"one", "b.pth": b"two", "c.pth": b"one"}.items():
        (tmp_path / name).write_bytes(content)
        models.append(ModelSpec(library="auto", checkpoint=str(tmp_path / name)))
    require_same_model(models[0], models[2])
    require_same_model(models[0], ModelSpec(library="imported", name="a table", task="classification"))
    with pytest.raises(InvalidSchedule, match=r"different models.*a\.pth and b\.pth"):
        require_same_model(models[0], models[1])
    with pytest.raises(InvalidSchedule, match="different models"):
        require_same_model(models[0], ModelSpec(library="timm", name="resnet18", checkpoint=models[0].checkpoint))


def test_a_zip_without_the_network_says_why(service, backend, tmp_path, run_id):
    schedule = a_schedule(service, run_id)
    gone = RunSpec(model=ModelSpec(library="timm", name="resnet18", checkpoint=str(tmp_path / "gone.pth")))
    backend.store.folder(run_id).save_result(a_demo_result(gone))
    with zipfile.ZipFile(io.BytesIO(service.work.target_zip(run_id, schedule))) as archive:
        readme = archive.read("README.txt").decode()
        assert "schedule.json" in archive.namelist()
    assert "(left out) schedule.model-explorer.json: This app reads a checkpoint only from uploads" in readme
