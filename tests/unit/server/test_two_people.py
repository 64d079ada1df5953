"""Two people on one server: whatever one of them asks with the other's ids, links or guesses is answered alike."""

import inspect
import io
import operator
import random
import string
from pathlib import Path

import pytest

from senseapp.core.errors import NotFound
from senseapp.records.schedule import Limits, ResourceBudget, Schedule, ScheduleEntry
from senseapp.records.spec import HistogramSpec
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.finished_runs import Work
from senseapp.server.run_tasks import (
    DiagnosisTask,
    DropLimit,
    HistogramTask,
    LayerAnswers,
    StrongestSearch,
    Verification,
)
from senseapp.server.service import Service
from tests.deployments import a_candidate
from tests.fake_session import SPEC, a_backend

SCHEDULE = Schedule(
    model="demo",
    method="manual",
    entries=(ScheduleEntry(layer="stem", members=("stem",), compression="sparsity", level=0.5),),
)
HISTOGRAM = HistogramSpec(layer="stem")
DROP = DropLimit(kind="params", allowed_drop=0.1, metric="kl", repair=False, limits=Limits())
OTHER_ARGUMENTS = {
    "title": "mine now",
    "tags": ("mine",),
    "name": "file",
    "target": Path("never written"),
    "shared": True,
    "schedule": SCHEDULE,
    "budget": ResourceBudget(kind="params", target=0.5),
    "method": "knapsack",
    "limits": Limits(),
    "gamma": 1.0,
    "stream": io.BytesIO(),
    "candidate": a_candidate(),
    "names": ("a.png",),
    "picture": Path("no picture"),
    "path": Path("no file"),
}
TASKS = {
    "proof": lambda run_id: Verification(run_id=run_id, schedule=SCHEDULE),
    "search": lambda run_id: StrongestSearch(run_id=run_id, drop=DROP),
    "recommendation": lambda run_id: RecommendationTask(run_id=run_id),
    "diagnosis": lambda run_id: DiagnosisTask(run_id=run_id, layer="stem", level=0.5),
    "answers": lambda run_id: LayerAnswers(run_id=run_id, layer="stem", level=0.5),
    "histogram": lambda run_id: HistogramTask(run_id=run_id, spec=HISTOGRAM),
}
PROOFS_ONLY = ("compressed_model", "changed")
PARTS = {"": Service, "work.": Work}


def public_methods(part):
    return [name for name, _ in inspect.getmembers(part, inspect.isfunction) if not name.startswith("_")]


def calls_with_a_run():
    """Every public method of the service and its parts that takes a run's id, or a task of a run, by name."""
    named = [
        f"{prefix}{name}"
        for prefix, part in PARTS.items()
        for name in public_methods(part)
        if "run_id" in inspect.signature(getattr(part, name)).parameters
    ]
    takes_task = [name for name in public_methods(Work) if "task" in inspect.signature(getattr(Work, name)).parameters]
    works = [f"work.{name} {task}" for name in takes_task for task in TASKS]
    return [*named, *works, *(f"work.{name} proof" for name in PROOFS_ONLY)]


def ask(service, name, run_id):
    path, _, task = name.partition(" ")
    method = operator.attrgetter(path)(service)
    if task:
        more = list(inspect.signature(method).parameters)[1:]
        return method(TASKS[task](run_id), *(OTHER_ARGUMENTS[name] for name in more))
    parameters = inspect.signature(method).parameters
    return method(run_id, **{key: value for key, value in OTHER_ARGUMENTS.items() if key in parameters})


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    made = a_backend(tmp_path_factory.mktemp("home"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def anns_run(backend):
    run_id = Service(backend, "ann").start(SPEC, title="Ann's own")
    backend.runner.run_next()
    return run_id


def hostile_ids(run_id, link):
    """Two hundred ids: guessed, mangled and foreign."""
    draw = random.Random(0)
    guessed = ["".join(draw.choices("0123456789abcdef", k=size)) for size in (32, 40) for _ in range(40)]
    mangled = [run_id[:at] + draw.choice("ghXYZ/.%\0 '\"") + run_id[at + 1 :] for at in range(32)]
    mangled += [run_id[:at] for at in range(0, 32, 4)] + [run_id.upper(), run_id + "0", f" {run_id}", f"{run_id}\n"]
    mangled += [link[:-1], link[1:], link.upper(), link[:39] + ("0" if link[39] != "0" else "1"), f"{link}\n"]
    nasty = ["", ".", "..", "../..", f"../{run_id}", f"{run_id}/../{run_id}", "/etc/passwd", "C:\\", "~", "*", "%", "_"]
    nasty += [
        "' OR '1'='1",
        f"{run_id}' --",
        "1; DROP TABLE runs",
        "\0",
        "null",
        "None",
        "-1",
        "😀",
        "٣" * 32,
        "０" * 32,
    ]
    filler = ["".join(draw.choices(string.printable, k=draw.randint(1, 60))) for _ in range(60)]
    return [run_id, *guessed, *mangled, *nasty, *filler][:200]


def test_there_are_calls_to_try():
    assert {
        *("run", "snapshot", "result", "cancel", "resume", "delete", "rename", "share", "work.graph"),
        *("work.start proof", "work.outcome search", "work.progress histogram", "work.cancel proof"),
    } <= set(calls_with_a_run())


@pytest.mark.parametrize("name", sorted(calls_with_a_run()))
def test_nobody_reaches_anothers_run_by_any_call(backend, anns_run, name):
    ann, bob = Service(backend, "ann"), Service(backend, "bob")
    link = ann.share(anns_run, shared=True)
    answers = set()
    ids = hostile_ids(anns_run, link)
    assert len(ids) == 200
    for run_id in ids:
        with pytest.raises(NotFound) as refused:
            ask(bob, name, run_id)
        answers.add(str(refused.value))
    assert len(answers) == 1, "an answer tells what exists"
    before = ann.run(anns_run)
    assert (before.title, before.state) == ("Ann's own", "done")


@pytest.mark.parametrize(
    "name",
    [
        "cancel",
        "resume",
        "delete",
        "rename",
        "share",
        *(f"work.{call} {task}" for call in ("start", "cancel") for task in TASKS),
    ],
)
def test_a_link_changes_and_starts_nothing(backend, anns_run, name):
    ann, bob = Service(backend, "ann"), Service(backend, "bob")
    link = ann.share(anns_run, shared=True)
    for somebody in (ann, bob):  # the owner too: a link is read-only whoever follows it
        with pytest.raises(NotFound):
            ask(somebody, name, link)
    assert not backend.runner.run_next()


def test_lists_hold_ones_own_runs_only(backend, anns_run):
    Service(backend, "ann").share(anns_run, shared=True)
    assert Service(backend, "bob").runs() == ()
    assert Service(backend, "").runs() == ()
    assert [record.run_id for record in Service(backend, "ann").runs()] == [anns_run]


def test_a_stranger_owns_nothing_and_starts_nothing(backend):
    nobody = Service(backend, "")
    for forbidden in (
        lambda: nobody.start(SPEC),
        lambda: nobody.import_csv("x", b"parameter,sparsity,top1,top5,loss\n"),
        lambda: nobody.import_run(io.BytesIO()),
    ):
        with pytest.raises(NotFound, match="Nobody is logged in"):
            forbidden()
    assert nobody.runs() == ()
