"""Measurements that a run took from an earlier one of the same weights, images, settings and versions."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.spec.codec import register


@dataclass(frozen=True, slots=True, kw_only=True)
class Reused:
    """How much was taken, and from which run.

    Attributes:
        title: of the run that they were taken from.
        taken: measurements taken over.
        total: measurements that this run consists of.
    """

    title: str
    taken: int
    total: int

    @property
    def sentence(self) -> str:
        """What the owner of both runs is told."""
        return self._taken_from(f"run “{self.title}”")

    @property
    def note(self) -> str:
        """What everybody is told who sees the result: that the other run exists is known, not what it is called."""
        return self._taken_from("an earlier run")

    def _taken_from(self, source: str) -> str:
        return (
            f"{self.taken} of {self.total} measurements taken from {source}, which measured the same weights and "
            "images with the same settings and versions."
        )


register(Reused)
