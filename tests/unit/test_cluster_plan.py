"""The parts of a shared run that need no cluster: order of results, images on their way, addresses, errors."""

import random
import socket
import sys

import pytest
import ray
import ray.exceptions
import torch
from hypothesis import given
from hypothesis import strategies as st

from senseapp.core.errors import ClusterFailed
from senseapp.data.images import PreparedImages, TensorImages
from senseapp.measure.cluster.cluster import cluster_errors, connected, look
from senseapp.measure.cluster.remote import in_order, part_of, tasks_of
from senseapp.measure.measurer import JobResult, MeasurementJob
from senseapp.measure.reuse import differences, versions_here
from senseapp.networks.loaded import Preprocessing

SPANS = ((0, 4), (4, 8), (8, 10))
BLOCKS = ((0, 2), (2, 3), (3, 6))


def jobs(spans: tuple[tuple[int, int], ...] = SPANS) -> list[MeasurementJob]:
    return [
        MeasurementJob(index=index, level=level, span=span)
        for span in spans
        for index in range(6)
        for level in (0.3, 0.6)
    ]


def test_a_task_holds_the_orders_of_one_block_and_span() -> None:
    tasks = list(tasks_of(jobs(), BLOCKS))
    numbered = [((block, number), span) for number, span in enumerate(SPANS) for block in range(3)]
    assert [(task, span) for task, span, _ in tasks] == numbered
    assert [job for _, _, some in tasks for job in some] == jobs()


def test_tasks_are_made_only_when_asked_for() -> None:
    asked = []

    def one_by_one():  # type: ignore[no-untyped-def]
        for job in jobs():
            asked.append(job)
            yield job

    next(tasks_of(one_by_one(), BLOCKS))
    assert len(asked) == 5  # the first of the next block showed where this one ends


@given(st.integers(0, 10_000))
def test_outcomes_are_counted_in_the_order_of_the_images_however_they_come(seed: int) -> None:
    tasks = list(tasks_of(jobs(), BLOCKS))
    random.Random(seed).shuffle(tasks)
    finished = ((task, [JobResult(job=job, seconds=0.0) for job in some]) for task, _, some in tasks)
    counted = [result.job for result in in_order(finished)]
    assert sorted(counted, key=jobs().index) == jobs()
    for index in range(6):
        spans = [job.span for job in counted if job.index == index and job.level == 0.3]
        assert spans == list(SPANS)


def test_a_part_carries_its_own_images_and_nothing_else() -> None:
    pixels = torch.randint(0, 256, (6, 1, 4, 4), dtype=torch.uint8)
    preprocessing = Preprocessing(input_shape=(1, 4, 4), mean=(0.5,), std=(0.25,))
    prepared = PreparedImages(pixels, preprocessing, torch.arange(6)).subset([5, 3, 1, 0])
    part = part_of(prepared, 1, 3)
    assert isinstance(part, PreparedImages)
    assert part.labels is None
    assert part.pixels.untyped_storage().nbytes() == 2 * 16  # bytes, and not those of the other pictures
    assert part.batch(0, 2).equal(prepared.batch(1, 3))
    tensors = TensorImages(torch.randn(8, 1, 4, 4), torch.arange(8))
    other = part_of(tensors, 2, 4)
    assert other.batch(0, 2).equal(tensors.batch(2, 4))
    assert other.batch(0, 2).untyped_storage().nbytes() == 2 * 16 * 4


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "somewhere", "10.0.0.1:port", ":6379"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ClusterFailed, match="must be auto, or host:port"), connected(address, device="auto"):
        raise AssertionError("nothing can be joined there")


def test_an_address_where_nobody_answers_is_refused_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        pytest.raises(
            ClusterFailed, match=rf"No Ray cluster answers at 127\.0\.0\.1:{port}\. What was measured is kept"
        ),
        connected(f"127.0.0.1:{port}", device="auto"),
    ):
        raise AssertionError("nobody is there")


def test_without_ray_the_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(
            ClusterFailed, match=r"Ray is not installed\. Install it \(pip install 'senseapp\[ray\]'\), or go on"
        ),
        connected("auto", device="auto"),
    ):
        raise AssertionError("there is no Ray")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ray.exceptions.ObjectStoreFullError("no room"), "object store is full, and so is its disk"),
        (ray.exceptions.OutOfDiskError("no room"), "object store is full, and so is its disk"),
        (
            ray.exceptions.RayletDiedError() if hasattr(ray.exceptions, "RayletDiedError") else ConnectionError("x"),
            "was lost",
        ),
        (ConnectionError("the head does not answer"), "The cluster was lost: the head does not answer."),
        (
            ray.exceptions.RayTaskError("f", "trace", ModuleNotFoundError("No module named 'senseapp'")),
            "A worker could not do its task: No module named 'senseapp'.",
        ),
        (ray.exceptions.RayTaskError("f", "trace", ClusterFailed("Other versions.")), r"Other versions\."),
    ],
)
def test_what_ray_raises_becomes_a_sentence_with_a_choice(error: Exception, words: str) -> None:
    with pytest.raises(ClusterFailed, match=f"{words}.* or go on on this machine alone"), cluster_errors():
        raise error


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), cluster_errors():
        raise ZeroDivisionError


def test_versions_are_those_installed_and_differences_are_named() -> None:
    here = versions_here()
    assert here["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert len(here["senseapp"]) == 12
    assert differences(here, dict(here)) == ""
    assert differences({"torch": "1.0", "numpy": here["numpy"]}, here) == f"torch {here['torch']} instead of 1.0"
    assert differences({"timm": "1.0"}, {}) == "timm none instead of 1.0"


def _node(cpus: float, gpus: float = 0, *, alive: bool = True) -> dict[str, object]:
    resources = {"CPU": cpus, "memory": 32e9, "object_store_memory": 8e9} | ({"GPU": gpus} if gpus else {})
    return {"Alive": alive, "Resources": resources}


@pytest.mark.parametrize(
    ("nodes", "device", "workers", "gpus"),
    [
        ([_node(4), _node(2), _node(64, alive=False)], "auto", 6, 0),
        ([_node(4), _node(16, 2), _node(3, 8)], "auto", 5, 1),  # a card for each, and a processor
        ([_node(4), _node(16, 2)], "cpu", 20, 0),
        ([_node(4), _node(16, 2)], "cuda", 2, 1),
    ],
)
def test_workers_are_processors_or_graphics_cards(
    nodes: list[dict[str, object]], device: str, workers: int, gpus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    offer = look(device=device)
    assert (offer.workers, offer.gpus, offer.cpus) == (workers, gpus, 1)
    assert offer.memory_bytes <= 32e9


def test_workers_may_have_several_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [_node(7), _node(3)])
    monkeypatch.setenv("SENSEAPP_RAY_CPUS_PER_WORKER", "4")
    assert look(device="auto").workers == 1
