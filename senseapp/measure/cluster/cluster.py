"""Connection to a Ray cluster: its resources, and its errors as one sentence."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from senseapp.core.errors import ClusterFailed, InvalidSpec, first_line_of

ADDRESS_VARIABLE = "SENSEAPP_RAY_ADDRESS"
_CPUS_VARIABLE = "SENSEAPP_RAY_CPUS_PER_WORKER"
_ANSWER_SECONDS = 5.0  # to wait for the head node
_CHOICE = "What was measured is kept: try again once that is mended, or go on on this machine alone."
_log = logging.getLogger(__name__)


def cluster_address() -> str:
    """Return the address of the cluster to use; empty to measure on this machine."""
    return os.environ.get(ADDRESS_VARIABLE, "").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Resources of a cluster: the number of parallel workers, with processors, cards and memory of each."""

    workers: int
    cpus: float
    gpus: float
    memory_bytes: int


@contextmanager
def connected(address: str, *, device: str) -> Iterator[Cluster]:
    """Join the cluster inside the block.

    Raises ClusterFailed if Ray is not installed, no cluster responds at ``address``, or it has no free worker.
    """
    try:
        import ray
    except ImportError as error:
        raise ClusterFailed(
            f"{ADDRESS_VARIABLE} is set and Ray is not installed. Install it (pip install 'senseapp[ray]'), or go on "
            "on this machine alone."
        ) from error
    _require_answer(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises several kinds, and plain RuntimeErrors for versions that differ
        raise ClusterFailed(
            f"The Ray cluster at {address} cannot be joined: {first_line_of(error, most=300)}. {_CHOICE}"
        ) from error
    try:
        yield look(device=device)
    finally:
        ray.shutdown()


def look(*, device: str) -> Cluster:
    """Return the resources that the joined cluster has now."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    offered = [node["Resources"] for node in nodes]
    cards = sum(resources.get("GPU", 0) for resources in offered)
    gpus = 1.0 if cards and device != "cpu" and device != "mps" else 0.0
    cpus = _cpus_per_worker()
    counts = [_workers_of(resources, cpus=cpus, gpus=gpus) for resources in offered]
    if not sum(counts):
        raise ClusterFailed(f"The Ray cluster has no node with {cpus:g} processors to spare. {_CHOICE}")
    memory = [resources.get("memory", 0.0) / count for resources, count in zip(offered, counts, strict=True) if count]
    return Cluster(workers=sum(counts), cpus=cpus, gpus=gpus, memory_bytes=int(min(memory)))


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Convert Ray's exceptions inside the block into one sentence.

    Raises ClusterFailed if Ray raised an exception.
    """
    import ray.exceptions as failed

    try:
        yield
    except failed.RayTaskError as error:  # first, since it is also an instance of its cause's type
        cause = error.cause
        if isinstance(cause, ClusterFailed):
            raise ClusterFailed(f"{cause} {_CHOICE}") from error
        _log.error("a task failed: %s", error)
        raise ClusterFailed(
            f"A worker could not do its task: {first_line_of(cause or error, most=300)}. {_CHOICE}"
        ) from error
    except (failed.ObjectStoreFullError, failed.OutOfDiskError) as error:
        raise ClusterFailed(f"The cluster's object store is full, and so is its disk. {_CHOICE}") from error
    except (failed.RayError, ConnectionError) as error:
        raise ClusterFailed(f"The cluster was lost: {first_line_of(error, most=300)}. {_CHOICE}") from error


def _workers_of(resources: dict[str, float], *, cpus: float, gpus: float) -> int:
    by_cpus = int(resources.get("CPU", 0) // cpus)
    return min(by_cpus, int(resources.get("GPU", 0) // gpus)) if gpus else by_cpus


def _cpus_per_worker() -> float:
    text = os.environ.get(_CPUS_VARIABLE, "1")
    try:
        cpus = float(text)
    except ValueError:
        cpus = 0.0
    if cpus < 1 or cpus != int(cpus):
        raise InvalidSpec(f"{_CPUS_VARIABLE} must be a whole number of processors, at least 1; got {text!r}.")
    return cpus


def _require_answer(address: str) -> None:
    """Connect to the port first: Ray itself would wait for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        raise ClusterFailed(
            f"{ADDRESS_VARIABLE} must be auto, or host:port of the cluster's head such as 10.0.0.1:6379; got "
            f"{address!r}. Correct it, or go on on this machine alone."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterFailed(f"No Ray cluster answers at {address}. {_CHOICE}") from error
