"""Named settings of pages that people save, by owner."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from senseapp.core.errors import InvalidSpec, QuotaExceeded
from senseapp.store.database import Database

_NAME_LIMIT = 60
_MOST = 50  # of one owner on one page
_TEXT_LIMIT = 8000


class Presets:
    """Presets in the database of runs: for an owner and a page, texts of settings by the preset's name.

    Raises:
        StorageFailed: from every method, where the database refuses.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, owner: str, page: str) -> dict[str, dict[str, str]]:
        """Return the presets of ``owner`` for ``page``, in the order of their names."""
        with self._database.connection() as connection:
            rows = connection.execute(
                "SELECT name, settings FROM presets WHERE owner = ? AND page = ? ORDER BY name", (owner, page)
            ).fetchall()
        return {row["name"]: json.loads(row["settings"]) for row in rows}

    def save(self, owner: str, page: str, name: str, settings: Mapping[str, str]) -> None:
        """Keep ``settings`` as ``name``, in place of an earlier preset of that name.

        Raises:
            InvalidSpec: the name is empty or too long, or the settings are.
            QuotaExceeded: there are too many presets already.
        """
        name, text = " ".join(name.split()), json.dumps(dict(settings))
        if not 1 <= len(name) <= _NAME_LIMIT or not name.isprintable():
            raise InvalidSpec(f"A preset has a name of 1 to {_NAME_LIMIT} characters. Enter another one.")
        if len(text) > _TEXT_LIMIT:
            raise InvalidSpec("These settings are too long for a preset. Lock fewer layers.")
        others = self.of(owner, page).keys() - {name}
        if len(others) >= _MOST:
            raise QuotaExceeded(f"At most {_MOST} presets can be kept for a page. Delete one first.")
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO presets VALUES (?, ?, ?, ?, ?)",
                               (owner, page, name, text, time.time()))  # fmt: skip

    def delete(self, owner: str, page: str, name: str) -> None:
        """Remove a preset; one that does not exist is no error."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM presets WHERE owner = ? AND page = ? AND name = ?", (owner, page, name))
