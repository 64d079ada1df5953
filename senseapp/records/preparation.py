"""Which preparation of the images, and which of several look-alike architectures, suits a model best."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.records.spec import RunSpec

_LISTED_AT_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationTrial:
    """What a model made of some images that were prepared in one way.

    Attributes:
        title: of the architecture and of what differs from its own preparation.
        spec: settings that measure with it, where nothing is left to choose.
        correct: right answers; None without labels.
        score: mean cross-entropy after the best temperature, in nats, the lower the better; without labels mean
            information of an answer, in nats, the higher the better.
    """

    title: str
    spec: RunSpec
    num_images: int
    correct: int | None
    score: float

    @property
    def result(self) -> str:
        """What came out, in words: ``47 of 50 right``."""
        if self.correct is not None:
            return f"{self.correct} of {self.num_images} right"
        return f"answers tell {self.score:.2f} nats on {self.num_images} images"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationChoice:
    """What was tried, and what was chosen.

    Attributes:
        spec: the settings to measure with: nothing is left to choose, and they say how it was chosen.
        trials: those that were tried on all of the images, the best first; empty where there was nothing to try on.
        guess: whether there were no labels to choose by.
        subject: what was chosen: the preprocessing, the order of the classes, or both.
        verdict: one sentence on what was chosen and by what; empty where there was nothing to try on.
        caveats: sentences on why it may be wrong.
    """

    spec: RunSpec
    chosen: PreparationTrial | None = None
    trials: tuple[PreparationTrial, ...] = ()
    guess: bool = False
    subject: str = "Preprocessing"
    verdict: str = ""
    caveats: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The verdict, the best of what was tried, and the caveats, for people without a page."""
        best = "; ".join(f"{trial.title}: {trial.result}" for trial in self.trials[:_LISTED_AT_MOST])
        tried = f"{self.subject} tried on these images, the best first: {best}." if len(self.trials) > 1 else ""
        return tuple(note for note in (self.verdict, tried, *self.caveats) if note)
