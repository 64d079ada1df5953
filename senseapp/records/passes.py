"""How the forward passes of a run were made, which whatever goes on from it or is compared with it has to follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSettings:
    """How the passes of a run were made; their precision is that of the result.

    Attributes:
        channels_last: (N, H, W, C) in memory instead of (N, C, H, W).
        micro_batch: images in one pass.
        levels_together: levels of one layer in one pass, each over as many images.
        images_at_once: most images measured together; 0 for as many as fit.
        images_in_span: images that were measured together; 0 where that is unknown.
        workers: of the cluster that measured; 0 for this machine.
    """

    channels_last: bool = False
    micro_batch: int = 16
    levels_together: int = 1
    images_at_once: int = 0
    images_in_span: int = 0
    workers: int = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> PassSettings:
        """Read the settings of a result that tells them in its environment only, as those before 2026-12 do."""
        counts = ("micro_batch", "levels_together", "images_at_once", "images_in_span", "workers")
        return cls(
            channels_last=environment.get("memory_layout") == "channels_last",
            **{name: int(environment[name]) for name in counts if name in environment},
        )
