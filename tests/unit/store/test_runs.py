import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from senseapp.core.errors import InvalidSpec, NotFound, StorageFailed
from senseapp.core.files import home
from senseapp.records.jobs import RunState
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.store.run_store import RunStore
from tests.fake_session import SPEC, a_measurement, a_result


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path)


def test_a_new_run_is_queued_with_its_folder(store):
    record = store.create(SPEC, owner="ann", title="  My \n run ")
    assert (record.state, record.owner, record.title, record.shared) == (RunState.QUEUED, "ann", "My run", False)
    assert store.get(record.run_id, "ann") == record
    assert store.folder(record.run_id).spec() == SPEC
    assert store.progress(record.run_id) == (0, 0)


def test_runs_are_listed_newest_first_even_if_the_clock_moves_back(store, monkeypatch):
    ids = []
    for second in (500.0, 400.0, 300.0):
        monkeypatch.setattr(time, "time", lambda second=second: second)
        ids.append(store.create(SPEC, owner="ann").run_id)
    assert [record.run_id for record in store.list("ann")] == ids[::-1]
    monkeypatch.setattr(time, "time", lambda: 100.0)
    store.set_state(ids[0], RunState.DONE)
    assert store.record(ids[0]).updated_seconds == 500.0


def test_state_headline_and_counts_are_kept(store, tmp_path):
    run_id = store.create(SPEC, owner="ann").run_id
    store.set_state(run_id, RunState.RUNNING, done=2, total=8)
    store.set_state(run_id, RunState.FAILED, error="It broke.")
    store.update(run_id, headline="Most fragile: stem.")
    again = RunStore(tmp_path)
    record = again.record(run_id)
    assert (record.state, record.error, record.headline) == (RunState.FAILED, "It broke.", "Most fragile: stem.")
    assert again.progress(run_id) == (2, 8)
    store.set_state(run_id, RunState.QUEUED)
    assert store.record(run_id).error == ""


def test_somebody_else_sees_nothing_and_changes_nothing(store):
    run_id = store.create(SPEC, owner="ann").run_id
    for forbidden in (
        lambda: store.get(run_id, "bob"),
        lambda: store.owned(run_id, "bob"),
        lambda: store.rename(run_id, "bob", "mine"),
        lambda: store.share(run_id, "bob", shared=True),
        lambda: store.delete(run_id, "bob"),
    ):
        with pytest.raises(NotFound) as foreign:
            forbidden()
        with pytest.raises(NotFound) as unknown:
            store.get("0" * 32, "bob")
        assert str(foreign.value) == str(unknown.value)
    assert store.list("bob") == ()
    assert store.record(run_id).title == "demo"


def test_a_link_reads_and_changes_nothing(store):
    spec = RunSpec(data=DataSpec(kind="folder", path="/srv/pictures/cats"))
    run_id = store.create(spec, owner="ann").run_id
    link = store.share(run_id, "ann", shared=True)
    seen = store.get(link, "bob")
    assert (seen.run_id, seen.owner, seen.read_only, seen.spec.data.path) == (link, "", True, "cats")
    assert store.readable(link, "bob") == run_id
    assert run_id not in repr(seen)
    assert store.list("bob") == ()
    for known in (link, run_id):
        for forbidden in (
            lambda known=known: store.delete(known, "bob"),
            lambda known=known: store.share(known, "bob", shared=False),
            lambda known=known: store.rename(known, "bob", "mine"),
            lambda known=known: store.owned(known, "bob"),
        ):
            with pytest.raises(NotFound):
                forbidden()
    with pytest.raises(NotFound):
        store.get(run_id, "bob")  # the link is the secret, not the id


def test_a_link_that_was_taken_back_never_works_again(store):
    run_id = store.create(SPEC, owner="ann").run_id
    first = store.share(run_id, "ann", shared=True)
    assert store.share(run_id, "ann", shared=True) == first
    assert store.share(run_id, "ann", shared=False) == ""
    second = store.share(run_id, "ann", shared=True)
    assert second != first
    assert len(second) == 40
    with pytest.raises(NotFound):
        store.get(first, "bob")
    assert store.get(second, "bob").title == "demo"


def test_an_owner_has_a_name_for_those_with_the_link(store):
    run_id = store.create(SPEC, owner="https://id.example|7").run_id
    store.set_owner_name("https://id.example|7", "Ann")
    store.set_owner_name("https://id.example|7", "Ann Example")
    seen = store.get(store.share(run_id, "https://id.example|7", shared=True), "bob")
    assert (seen.owner, seen.owner_name) == ("", "Ann Example")


def test_disk_space_is_weighed_by_owner_and_in_all(store):
    mine, other = store.create(SPEC, owner="ann").run_id, store.create(SPEC, owner="bob").run_id
    (store.folder(mine).path / "compressed-1.safetensors").write_bytes(bytes(5000))
    for run_id in (mine, other):
        store.update_size(run_id)
    spec_bytes = (store.folder(other).path / "spec.json").stat().st_size
    assert store.record(mine).num_bytes == store.bytes_used("ann") == 5000 + spec_bytes
    assert store.bytes_used() == 5000 + 2 * spec_bytes
    assert store.bytes_used("carl") == 0
    store.update_size("../..")


def test_only_runs_that_ended_and_were_left_alone_are_old(store, monkeypatch):
    now = time.time()
    ids = {}
    for name, age in (("old", 50), ("renamed", 50), ("new", 1), ("waiting", 50)):
        monkeypatch.setattr(time, "time", lambda age=age: now - age * 86400)
        ids[name] = store.create(SPEC, owner="ann").run_id
        if name != "waiting":
            store.set_state(ids[name], RunState.DONE)
    monkeypatch.setattr(time, "time", lambda: now)
    store.rename(ids["renamed"], "ann", "Still in use")
    assert store.unchanged_since(now - 30 * 86400) == (ids["old"],)
    store.remove(ids["old"])
    assert not store.folder_of_runs.joinpath(ids["old"]).exists()


def test_other_runs_are_the_owners_own(store):
    first, second, foreign = (store.create(SPEC, owner=owner).run_id for owner in ("ann", "ann", "bob"))
    for run_id in (first, foreign):
        store.update(run_id, content_key="the same")
    third = store.create(SPEC, owner="ann", title="Newest").run_id
    assert [(run_id, key) for run_id, _, key in store.others(second)] == [(third, ""), (first, "the same")]
    assert store.others(second, most=1)[0][1] == "Newest"


@pytest.mark.parametrize(
    "hostile",
    [
        "",
        ".",
        "..",
        "../" * 10 + "etc/passwd",
        "' OR 1=1 --",
        "%",
        "A" * 32,
        "0" * 33,
        "0" * 32 + "\n",
        "\0" * 32,
        "٠" * 32,
        None,
        ["0" * 32],
    ],
)
def test_hostile_ids_find_nothing(store, hostile):
    store.create(SPEC, owner="ann")
    for ask in (
        store.record,
        store.folder,
        store.progress,
        lambda run_id: store.delete(run_id, "ann"),
        lambda run_id: store.restore(run_id, "ann"),
    ):
        with pytest.raises(NotFound):
            ask(hostile)
    assert len(store.list("ann")) == 1


def test_a_run_goes_with_its_files(store, tmp_path):
    kept, gone = (store.create(SPEC, owner="ann").run_id for _ in range(2))
    store.folder(gone).measurements.append(a_measurement())
    store.delete(gone, "ann")
    with pytest.raises(NotFound):
        store.set_state(gone, RunState.DONE)
    store.remove_deleted(older_seconds=60)
    assert (tmp_path / "runs" / gone).is_dir()
    store.remove_deleted()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [kept]
    with pytest.raises(NotFound):
        store.restore(gone, "ann")


def test_a_deleted_run_is_restored_whole_and_only_by_its_owner(store):
    spec = replace(SPEC, model=ModelSpec(library="auto", checkpoint="/uploads/abc/file.pt"))
    first, run_id, last = (store.create(spec, owner="ann", title=title).run_id for title in "abc")
    link = store.share(run_id, "ann", shared=True)
    store.tag(run_id, "ann", ["mine"])
    store.folder(run_id).measurements.append(a_measurement())
    before = store.record(run_id)
    for deleted in (first, run_id, last):
        store.delete(deleted, "ann")
    assert store.list("ann") == ()
    assert store.reads_upload("abc")  # its file must be there when it comes back
    for ask in (lambda: store.readable(link, "bob"), lambda: store.restore(run_id, "bob")):
        with pytest.raises(NotFound):
            ask()
    for restored in (last, first, run_id):
        store.restore(restored, "ann")
    assert [record.run_id for record in store.list("ann")] == [last, run_id, first]
    assert store.record(run_id) == before
    assert store.folder(run_id).measurements.count() == 1
    assert store.get(link, "bob").read_only


def test_a_start_removes_what_was_deleted_before(store, tmp_path):
    gone = store.create(SPEC, owner="ann").run_id
    store.delete(gone, "ann")
    RunStore(tmp_path).recover()
    assert not list((tmp_path / "runs").iterdir())
    with pytest.raises(NotFound):
        store.restore(gone, "ann")


@pytest.mark.parametrize("title", [" \n ", "x" * 201])
def test_titles_are_bounded(store, title):
    run_id = store.create(SPEC, owner="ann").run_id
    with pytest.raises(InvalidSpec, match="1 to 200 characters"):
        store.rename(run_id, "ann", title)
    store.rename(run_id, "ann", "x" * 200)
    assert len(store.record(run_id).title) == 200


def test_recovery_marks_what_was_left_and_sweeps_stray_folders(store, tmp_path):
    states = [RunState.QUEUED, RunState.RUNNING, RunState.DONE, RunState.CANCELLED]
    ids = [store.create(SPEC, owner="ann").run_id for _ in states]
    for run_id, state in zip(ids, states, strict=True):
        store.set_state(run_id, state)
    store.folder(ids[1]).measurements.append(a_measurement())
    (tmp_path / "runs" / ("f" * 32)).mkdir()
    (tmp_path / "runs" / "notes of the administrator").mkdir()

    again = RunStore(tmp_path)
    assert again.recover() == (ids[0], ids[1])
    assert [again.record(run_id).state for run_id in ids] == [
        RunState.INTERRUPTED,
        RunState.INTERRUPTED,
        RunState.DONE,
        RunState.CANCELLED,
    ]
    assert ["is kept; press Resume" in again.record(run_id).error for run_id in ids[:2]] == [False, True]
    assert again.progress(ids[1])[0] == 1
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {*ids, "notes of the administrator"}
    assert again.recover() == ()


def test_one_damaged_run_does_not_stop_the_others(store, tmp_path):
    broken, fine = (store.create(SPEC, owner="ann").run_id for _ in range(2))
    (tmp_path / "runs" / broken / "measurements.jsonl").write_bytes(b'nonsense\n{"a":1}\n')
    store.recover()
    assert store.record(broken).state is RunState.FAILED
    assert "Line 1" in store.record(broken).error
    assert store.record(fine).state is RunState.INTERRUPTED


def test_a_run_whose_folder_cannot_be_made_leaves_no_row(store, tmp_path):
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(StorageFailed):
        store.create(SPEC, owner="ann")
    assert store.list("ann") == ()


def test_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SENSEAPP_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.setenv("SENSEAPP_HOME", "~/somewhere")
    assert home() == Path.home() / "somewhere"
    monkeypatch.setenv("SENSEAPP_HOME", "  ")
    assert home().name == "senseapp"


def test_recovery_sweeps_half_written_files_and_finishes_what_had_its_result(store):
    ended, waits = (store.create(SPEC, owner="ann").run_id for _ in range(2))
    store.folder(ended).save_result(a_result([a_measurement()], summary="Half can go."))
    for run_id in (ended, waits):
        (store.folder(run_id).path / f".result.json.{'0' * 32}").write_bytes(b'{"half')
    store.recover()
    assert (store.record(ended).state, store.record(ended).headline) == (RunState.DONE, "Half can go.")
    assert store.record(waits).state is RunState.INTERRUPTED
    assert sorted(path.name for path in store.folder(ended).path.iterdir()) == ["result.json", "spec.json"]
    assert [path.name for path in store.folder(waits).path.iterdir()] == ["spec.json"]


def test_a_run_that_is_filled_is_entered_when_it_is_whole(store, tmp_path):
    def die(folder):
        raise KeyboardInterrupt

    how = {"owner": "ann", "title": "of a file", "done": 1, "total": 1}
    with pytest.raises(KeyboardInterrupt):
        store.create(SPEC, fill=die, **how)
    assert (store.list("ann"), list((tmp_path / "runs").iterdir())) == ((), [])
    seen = []
    result = a_result([a_measurement()])
    made = store.create(SPEC, fill=lambda folder: (folder.save_result(result), seen.extend(store.list("ann"))), **how)
    assert seen == []  # a process that is killed here leaves no row
    assert (made.state, store.progress(made.run_id)) == (RunState.DONE, (1, 1))
    assert store.folder(made.run_id).load_result() == result
