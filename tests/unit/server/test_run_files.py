"""A run as one file: what comes back equals what went out, and nothing that somebody made up gets in."""

import io
import json
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from senseapp.core.errors import InvalidFile, NotFound, QuotaExceeded
from senseapp.records.jobs import RunState
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import Schedule, TriedTarget, ValidationResult
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, without_folders
from senseapp.server.run_tasks import Verification
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings
from soak.large_run_files import SOUND_RUN, large_run_file
from tests.cases import examples, first_of
from tests.fake_session import a_backend, a_change, a_measurement, a_result

KEY = "0123456789abcdef"
SPEC = RunSpec(
    model=ModelSpec(library="auto", checkpoint="/srv/secret/place/net.pth"),
    data=DataSpec(kind="archive", path="/srv/secret/place/photos.zip"),
)
PROOF = ValidationResult(
    schedule=Schedule(model="demo", method="manual", entries=(), metric="kl"),
    changes=(a_change(0.1, metric="kl"),),
    files={".safetensors": 5, ".sparse.safetensors.gz": 3},  # of which one is carried, and has another size
)
RECOMMENDATION = Recommendation(
    kind="params",
    metric="kl",
    allowed_drop=0.01,
    tried=(TriedTarget(figure=0.5, changes=PROOF.changes),),
    schedule=PROOF.schedule,
    validation=replace(PROOF, schedule=replace(PROOF.schedule, achieved={"params": 0.5})),
)
WEIGHTS = save({"stem.weight": np.ones((4, 3), np.float32)})


def a_service(home, **options):
    return Service(a_backend(home, **options), "ann")


@pytest.fixture
def service(tmp_path):
    return a_service(tmp_path / "here")


@pytest.fixture
def finished(service):
    """A finished run with a proof and a compressed model."""
    store = service._backend.store
    run_id = store.create(SPEC, owner="ann", title="Tuesday's").run_id
    folder = store.folder(run_id)
    folder.save_result(a_result([a_measurement(level=level) for level in (0.25, 0.5, 0.75)], spec=SPEC))
    folder.save(KEY, PROOF)
    folder.save(KEY, RECOMMENDATION)
    folder.compressed_model(KEY).write_bytes(WEIGHTS)
    store.set_state(run_id, RunState.DONE)
    return run_id


def packed(service, run_id):
    stream = io.BytesIO()
    service.pack(run_id, stream)
    return stream.getvalue()


def take_in(service, stream):
    """Import a run file that lies on the disk, as an upload does."""
    with tempfile.NamedTemporaryFile(suffix=".zip") as file:
        file.write(stream.getvalue())
        file.flush()
        return service.import_run(Path(file.name))


def zipped(members, **options):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return io.BytesIO(stream.getvalue())


def members_of(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_run_moves_to_another_server_whole(service, finished, tmp_path):
    other = a_service(tmp_path / "there")
    run_id = take_in(other, io.BytesIO(packed(service, finished)))
    record = other.run(run_id)
    assert (record.title, record.state, record.owner) == ("Tuesday's", RunState.DONE, "ann")
    assert record.headline.startswith("Most fragile: stem")
    assert "measured elsewhere" in record.origin
    assert record.num_bytes > len(WEIGHTS)
    here, there = service.result(finished), other.result(run_id)
    assert there == without_folders(here)
    folder = other._backend.store.folder(run_id)
    assert folder.load(ValidationResult, KEY) == replace(PROOF, files={".safetensors": len(WEIGHTS)})
    validation = replace(RECOMMENDATION.validation, files={})  # the file of its proof is not there
    assert folder.load(Recommendation, KEY) == replace(RECOMMENDATION, validation=validation)
    assert folder.compressed_model(KEY).read_bytes() == WEIGHTS
    assert packed(other, run_id) == packed(other, run_id)


def test_a_run_file_tells_nothing_of_the_server_it_came_from(service, finished):
    content = members_of(packed(service, finished))
    assert sorted(content) == [
        f"compressed-{KEY}.safetensors",
        f"recommendation-{KEY}.json",
        "result.json",
        "run.json",
        f"validation-{KEY}.json",
    ]
    assert not any(b"secret" in part or finished.encode() in part for part in content.values())


def test_an_unfinished_run_is_not_packed(service):
    run_id = service.start(RunSpec())
    with pytest.raises(NotFound, match="finished"):
        packed(service, run_id)


def test_an_imported_run_may_not_read_files_of_this_server(tmp_path, finished, service):
    """Its settings name files; only their names are kept, and no job looks for them anywhere."""
    other = a_service(tmp_path / "there")
    run_id = take_in(other, io.BytesIO(packed(service, finished)))
    spec = other.run(run_id).spec
    assert (spec.model.checkpoint, spec.data.path) == ("net.pth", "photos.zip")
    other.work.start(Verification(run_id=run_id, schedule=PROOF.schedule))
    other._backend.runner.run_next()
    assert "net.pth" in other.work.progress(Verification(run_id=run_id, schedule=PROOF.schedule)).error


def broken(content, **changed):
    """The run file with members replaced (bytes), changed (a function of the record's data) or dropped (None)."""
    members = members_of(content)
    for name, change in changed.items():
        name = name.replace("_", ".")
        if change is None:
            del members[name]
        elif callable(change):
            record = json.loads(members[name])
            change(record["data"])
            members[name] = json.dumps(record).encode()
        else:
            members[name] = change
    return zipped(members.items())


MEASUREMENT, LAYER = ("measurements", 0), ("profile", "layers", 0)


def put(*place, **values):
    """Return what changes a record at a place in it."""
    return lambda data: reduce(getitem, place, data).update(values)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"run_json": None}, "holds one run.json"),
        ({"result_json": None}, "holds one result.json"),
        ({"result_json": b"{}"}, "Expected a RunResult"),
        ({"result_json": b"[" * 100_000}, "nested too deeply"),
        ({"result_json": b'{"type":"RunResult","version":99,"data":{}}'}, "version 99"),
        ({"result_json": put(*MEASUREMENT, layer="nowhere")}, "no layer 'nowhere'"),
        ({"result_json": put(*MEASUREMENT, "changes", 0, metric="beauty")}, "no metric 'beauty'"),
        ({"result_json": put(*MEASUREMENT, level=0.123)}, "no level 0.123"),
        ({"result_json": put(agreement={"0.25 of all": 0.5})}, "a level that was not asked for"),
        ({"result_json": put("profile", num_params=-1)}, "below 0"),
        ({"result_json": put(*LAYER, name="conv\x1b[2J")}, "no network has"),
        ({"result_json": put("profile", layers=[])}, "no layers"),
        ({"run_json": put(title="x" * 201)}, "1 to 200 characters"),
        ({"run_json": put(extra=1)}, "damaged"),
        ({f"compressed-{KEY}_safetensors": b"\x80\x04pickle"}, "no safetensors"),
        ({f"recommendation-{KEY}_json": put(kind="bits")}, "does not save"),
        ({f"recommendation-{KEY}_json": put(metric="beauty")}, "unknown metric"),
        ({f"recommendation-{KEY}_json": put(allowed_drop=1e300)}, "no possible one"),
        ({f"recommendation-{KEY}_json": put("tried", 0, figure=1e300)}, "no possible one"),
        ({f"recommendation-{KEY}_json": put(allowed_drop=0.0)}, "no possible one"),
        ({f"recommendation-{KEY}_json": put("tried", 0, figure=5.0)}, "no possible one"),
        ({f"recommendation-{KEY}_json": put(validation=None)}, "has no proof"),
        ({f"recommendation-{KEY}_json": put("validation", "schedule", "achieved", params=5.0)}, "what it saves"),
        ({f"recommendation-{KEY}_json": put("validation", "changes", 0, delta="inf")}, "no number"),
        ({f"recommendation-{KEY}_json": put("validation", "schedule", achieved={})}, "what it saves"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(service, finished, tmp_path, changed, message):
    other = a_service(tmp_path / "there")
    with pytest.raises(Exception, match=message) as refused:
        take_in(other, broken(packed(service, finished), **changed))
    assert isinstance(refused.value, InvalidFile | ValueError)
    assert other.runs() == ()
    assert list((tmp_path / "there" / "runs").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["../evil.json", "/etc/cron.d/evil", "x.pkl", "a/result.json", "validation-../../x.json", "compressed-1.pt2",
     f"validation-{KEY}.json\n", "spec.json", ".hidden", f"compressed-{KEY}.safetensors/../x"],
)  # fmt: skip
def test_only_known_names_get_in(service, finished, tmp_path, name):
    other = a_service(tmp_path / "there")
    members = [*members_of(packed(service, finished)).items(), (name, b"{}")]
    with pytest.raises(InvalidFile, match="of known names"):
        take_in(other, zipped(members))
    assert sorted(path.name for path in tmp_path.rglob("*evil*")) == []


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_comes_once(service, finished, tmp_path):
    members = [*members_of(packed(service, finished)).items(), ("result.json", b"{}")]
    with pytest.raises(InvalidFile, match=r"holds one result\.json; this one has 2"):
        take_in(a_service(tmp_path / "there"), zipped(members))


def test_bombs_are_refused_before_they_are_unpacked(service, finished, tmp_path, monkeypatch):
    other = a_service(tmp_path / "there")
    members = members_of(packed(service, finished))
    with pytest.raises(InvalidFile, match="more than 32 MB"):
        take_in(other, zipped([*members.items(), (f"histogram-{KEY}.json", bytes(65_000_000))]))
    monkeypatch.setenv("SENSEAPP_MAX_UPLOAD_MB", "1")
    weights = {f"compressed-{number:016x}.safetensors": bytes(600_000) for number in range(4)}
    with pytest.raises(InvalidFile, match="may hold 1 MB here; this one says it holds 2 MB"):
        take_in(other, zipped([*members.items(), *weights.items()]))
    with pytest.raises(InvalidFile, match="at most 2000 files"):
        take_in(other, zipped([(f"{number}", b"") for number in range(2001)]))


def test_a_member_that_lies_about_its_size_is_refused(service, finished, tmp_path):
    content = bytearray(packed(service, finished))
    name = b"result.json"
    for at in (content.index(name) - 30 + 22, content.rindex(name) - 46 + 24):  # local header, directory
        content[at : at + 4] = (10).to_bytes(4, "little")
    with pytest.raises(InvalidFile):
        take_in(a_service(tmp_path / "there"), io.BytesIO(bytes(content)))


def test_texts_come_as_they_were_written_but_printable_and_not_endless(service, tmp_path):
    store = service._backend.store
    title = "![a](http://evil.example/1) **b** <img src=x> $x$"
    run_id = store.create(RunSpec(), owner="ann", title=title).run_id
    result = a_result([a_measurement(level=0.5, reason="`[x](y)`\x1b[2J")], spec=RunSpec(), notes=("a\nb", "c" * 3000))
    store.folder(run_id).save_result(replace(result, environment={"device": "\x07cpu"}))
    store.set_state(run_id, RunState.DONE)
    other = a_service(tmp_path / "there")
    moved = take_in(other, io.BytesIO(packed(service, run_id)))
    found = other.result(moved)
    assert other.run(moved).title == title
    assert found.measurements[0].reason == "`[x](y)` [2J"
    assert found.notes == ("a b", "c" * 2000)
    assert found.environment["device"] == " cpu"


def test_a_full_quota_takes_no_import(service, finished, tmp_path):
    content = packed(service, finished)
    tight = a_service(tmp_path / "there", settings=ServerSettings(person_mb=1))
    tight._backend.store.folder_of_runs.joinpath("x").mkdir()
    big = take_in(tight, io.BytesIO(content))
    tight._backend.store.folder(big).compressed_model("f" * 16).write_bytes(bytes(1_000_000))
    tight._backend.store.update_size(big)
    with pytest.raises(QuotaExceeded, match=r"Your runs may take 1\.0 MB and take 1\.0 MB"):
        take_in(tight, io.BytesIO(content))


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_never_more(service, finished, tmp_path_factory, data):
    content = bytearray(packed(service, finished))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    other = a_service(tmp_path_factory.mktemp("there"))
    with suppress(InvalidFile):  # anything else fails the test
        take_in(other, io.BytesIO(bytes(content)))
    assert len(other.runs()) == len(list(other._backend.store.folder_of_runs.iterdir()))


@pytest.mark.parametrize(
    ("layers", "levels", "what"),
    first_of([(2001, 1, "2,001 layers"), (10, 101, "101 levels"), (210, 99, "20,790 measurements")], 2),
)
def test_a_run_of_more_than_every_page_can_show_is_refused(tmp_path, layers, levels, what):
    with pytest.raises(InvalidFile, match=f"it has {what}, and a run file holds at most"):
        take_in(a_service(tmp_path), io.BytesIO(large_run_file(layers, levels)))


def changed_run_file(change):
    """Return a sound run file whose result was changed."""
    return broken(SOUND_RUN.read_bytes(), result_json=change)


CHAIN = [{"name": "image", "kind": "input"}, *({"name": "add", "kind": "join", "inputs": [0]} for _ in range(10_000))]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (put(*LAYER, name="a." * 50 + "a"), "whose name no network has"),
        (put(*LAYER, name="a" * 501), "whose name no network has"),
        (put("profile", flow=CHAIN), "10,001 nodes in its data flow"),
        (put("profile", flow=[*CHAIN[:5], CHAIN[5] | {"inputs": [0] * 40_001}]), "40,005 edges in its data flow"),
        (put(environment={str(place): "" for place in range(201)}), "201 facts on its environment"),
        (put("baseline", **{str(place): 0.5 for place in range(40)}), "figures of the uncompressed"),
        (
            lambda data: data.update(
                estimates=[item | {"members": [item["layer"]] * 999} for item in 100 * data["estimates"]]
            ),
            r"\d+,\d+ layers in groups",
        ),
    ],
)
def test_amounts_that_no_network_has_are_refused(tmp_path, change, what):
    with pytest.raises(InvalidFile, match=what):
        take_in(a_service(tmp_path), changed_run_file(change))


def test_records_that_every_page_reads_are_limited_together(tmp_path):
    file = changed_run_file(lambda _: None)
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        for place in range(3):
            archive.writestr(f"validation-{place:016x}.json", bytes(6_000_000))
    with pytest.raises(InvalidFile, match=r"at most 16 MB together, and these 18\.0 MB"):
        take_in(a_service(tmp_path), file)


def test_a_run_of_many_layers_is_taken(tmp_path):
    service = a_service(tmp_path)
    assert len(service.result(take_in(service, io.BytesIO(large_run_file(40, 5)))).estimates) == 200
