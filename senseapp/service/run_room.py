"""How much disk space runs may take, and removing the ones that nobody has touched for long."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass

from senseapp.errors import QuotaExceeded
from senseapp.service.settings import ServerSettings
from senseapp.store import RunStore

_MB = 1_000_000
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """How much is used and how much there may be, in bytes.

    Attributes:
        own_bytes, own_limit_bytes: of one person's runs.
        all_bytes, all_limit_bytes: of everybody's runs.
        free_bytes: on the disk that holds them.
        keep_days: days after which a run that nobody touched is deleted; 0 keeps all for good.
    """

    own_bytes: int
    own_limit_bytes: int
    all_bytes: int
    all_limit_bytes: int
    free_bytes: int
    keep_days: int


def disk_use(store: RunStore, owner: str, settings: ServerSettings) -> DiskUse:
    """Return what the runs of ``owner`` and of everybody take."""
    return DiskUse(
        own_bytes=store.bytes_used(owner),
        own_limit_bytes=settings.person_mb * _MB,
        all_bytes=store.bytes_used(),
        all_limit_bytes=settings.server_mb * _MB,
        free_bytes=shutil.disk_usage(store.folder_of_runs).free,
        keep_days=settings.keep_days,
    )


def check_run_room(use: DiskUse, num_bytes: int = 0) -> None:
    """Check that a new run, or ``num_bytes`` more, may be kept.

    Raises:
        QuotaExceeded: the person's or the server's runs take too much already.
    """
    more = f", and this adds {_megabytes(num_bytes)}" if num_bytes else ""
    if use.own_bytes + num_bytes >= use.own_limit_bytes:
        raise QuotaExceeded(
            f"Your runs may take {_megabytes(use.own_limit_bytes)} and take {_megabytes(use.own_bytes)}{more}. "
            "Delete some on the Runs page; those with compressed models are the largest."
        )
    if use.all_bytes + num_bytes >= use.all_limit_bytes:
        raise QuotaExceeded(
            f"The runs on this server may take {_megabytes(use.all_limit_bytes)} in all, and there is no room left"
            f"{more}. Delete runs that you no longer need, or ask whoever runs it."
        )


def remove_untouched(store: RunStore, keep_days: int) -> tuple[str, ...]:
    """Delete runs that ended and were not touched for ``keep_days``, and return their ids; 0 days keeps all."""
    if not keep_days:
        return ()
    old = store.untouched_since(time.time() - keep_days * _DAY_SECONDS)
    for run_id in old:
        store.remove(run_id)
    return old


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / _MB:,.1f} MB" if num_bytes < 10 * _MB else f"{num_bytes // _MB:,} MB"
