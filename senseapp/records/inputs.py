"""Reports on a checkpoint and on images before a run: their fit to the model, and the chosen preparation."""

from dataclasses import dataclass, replace
from typing import Literal

from senseapp.core.errors import ReadingOpen
from senseapp.core.texts import first_names
from senseapp.records.spec import ModelSpec, RunSpec
from senseapp.tasks.labels import LabelMapProposal, Layout
from senseapp.tasks.reading import Evidence, Reading

USUAL_SIZES = (224, 256, 320, 640, 512, 384, 64, 32, 28)
"""Sides of images, in pixels, the most frequent first, that a file is tried with where it takes any."""
OTHER_SIZES = (160, 128, 96, 112, 192, 240, 288, 299, 336, 416, 448, 480, 518, 600, 608, 800, 1024)
"""Those of other published networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationTrial:
    """Result of a model on some images that were prepared in one way.

    Attributes:
        title: of the architecture and of what differs from its own preparation.
        spec: settings that measure with it.
        correct: right answers; None without labels.
        score: mean cross-entropy after the best temperature, in nats, the lower the better; without labels mean
            information of an answer, in nats, the higher the better.
        words: the result in words, for tasks whose answers are not right or wrong.
    """

    title: str
    spec: RunSpec
    num_images: int
    correct: int | None
    score: float
    words: str = ""

    @property
    def result(self) -> str:
        """What came out, in words: ``47 of 50 right``."""
        if self.words:
            return self.words
        if self.correct is not None:
            return f"{self.correct} of {self.num_images} right"
        return f"answers tell {self.score:.2f} (more is better) on {self.num_images} images"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationChoice:
    """Alternatives that were tried, and the chosen one.

    Attributes:
        spec: the settings to measure with: nothing is left to choose, and they say how it was chosen.
        trials: those that were tried on all of the images, the best first; empty where there was nothing to try on.
        guess: whether there were no labels to choose by.
        subject: what was chosen: the preprocessing, the order of the classes, or both.
        verdict: one sentence on what was chosen and by what; empty where there was nothing to try on.
        num_tried: alternatives, also those that were given up before all of the images.
        caveats: sentences on why it may be wrong.
        question: what a person has to decide before anything is measured, with what was found; empty for nothing.
    """

    spec: RunSpec
    chosen: PreparationTrial | None = None
    trials: tuple[PreparationTrial, ...] = ()
    guess: bool = False
    subject: str = "Preprocessing"
    verdict: str = ""
    num_tried: int = 0
    caveats: tuple[str, ...] = ()
    question: str = ""

    def picked(self, trial: PreparationTrial) -> RunSpec:
        """Return the settings of a trial that a person picks, who then vouches for what the trials differ in."""
        known: dict[str, Evidence] = dict(self.spec.data.evidence)
        known.update((part, "person") for part, how in known.items() if how in ("assumed", "images", "labels"))
        return replace(trial.spec, data=replace(trial.spec.data, evidence=tuple(known.items())))

    @property
    def settled(self) -> RunSpec:
        """The settings to measure with; raises ReadingOpen where a person has to choose."""
        if self.question:
            raise ReadingOpen(self.asked)
        return self.spec

    @property
    def asked(self) -> str:
        """The question with the numbered readings to choose from."""
        listed = " ".join(f"[{number}] {trial.title}." for number, trial in enumerate(self.trials, start=1))
        return (
            f"{self.question} {listed} The Analyze page shows each on pictures, to choose one (with --reading FILE, "
            "which `senseapp read … --reading N --out FILE` writes)."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """The verdict, the best of the trials, and the caveats, as text."""
        # Trials in one note; the report has all of them. They are chosen by loss, and said to be right so many times.
        best = first_names(
            [
                f"{trial.title}: {trial.result}"
                for trial in sorted(self.trials, key=lambda trial: -(trial.correct or 0) / trial.num_images)
            ],
            5,
            between=" · ",
            count=self.num_tried,
        )
        tried = f"{self.subject} tried on these images, the best first: {best}." if len(self.trials) > 1 else ""
        return tuple(note for note in (self.verdict, tried, *self.caveats) if note)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One weight that does not fit, with its shape in the network and in the checkpoint; None where it is not there."""

    name: str
    expected: tuple[int, ...] | None
    found: tuple[int, ...] | None

    @property
    def kind(self) -> Literal["missing", "unexpected", "wrong shape"]:
        """Kind of problem."""
        if self.found is None:
            return "missing"
        return "unexpected" if self.expected is None else "wrong shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchReport:
    """How a checkpoint and a network compare: missing weights first, then those of another shape, then surplus ones.

    ``ignored`` are names that are not needed: heads for training only, tables that the network computes. ``cause`` is
    one sentence on the likely cause; empty if everything fits.
    """

    differences: tuple[Mismatch, ...] = ()
    ignored: tuple[str, ...] = ()
    cause: str = ""

    @property
    def fits(self) -> bool:
        """Whether every weight of the network is in the checkpoint, in its shape, and nothing else."""
        return not self.differences


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts:
    """One value of an ONNX file that can be measured, in the ``shape`` of one batch of the file.

    Its ``kind`` is ``output`` of the file, ``cut`` before what cannot be measured, or ``logits`` before probabilities:
    those of the output ``of``, which ``operator`` computes from them.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    of: str = ""
    operator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxReport:
    """Content of an ONNX file.

    Attributes:
        spec: the file as a model.
        input_shape: of the images, batch included; ``channels_last`` where they are (N, H, W, C).
        free_axes: axes of the input whose length the file leaves free.
        batch: images that the network computes at once; None where it takes any number.
        outputs: names of those that are measured: those that ``spec`` names, else those that fit its task.
        candidates: all that can be measured.
        problem: why these outputs cannot be measured with this task; empty where they can.
        fitting_tasks: where there is a problem, the tasks that outputs of the file fit; one alone is sure.
        unread: why a node is not read, where the file can be measured with onnxruntime computing that; else empty.
        barrier: a node that the network ends before although onnxruntime could compute it; empty without one.
        in_runtime: nodes that onnxruntime computes, or would.
    """

    spec: ModelSpec
    input_name: str
    input_shape: tuple[int, ...]
    channels_last: bool
    free_axes: tuple[int, ...]
    batch: int | None
    outputs: tuple[str, ...]
    candidates: tuple[OutputFacts, ...]
    notes: tuple[str, ...]
    problem: str = ""
    fitting_tasks: tuple[str, ...] = ()
    unread: str = ""
    barrier: str = ""
    in_runtime: tuple[str, ...] = ()

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images, in pixels."""
        height, width = self.input_shape[1:3] if self.channels_last else self.input_shape[2:4]
        return height, width

    @property
    def is_size_free(self) -> bool:
        """Whether the file leaves height and width free."""
        return set(self.free_axes).issuperset((1, 2) if self.channels_last else (2, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSurvey:
    """Contents of a folder, archive or image set by names; pictures are decoded until one succeeds.

    Attributes:
        layout: where labels come from, if anywhere.
        num_images: pictures there, by their names; damaged ones are found when they are read.
        label_counts: (label as written, number of pictures); empty without labels.
        proposal: what those labels mean for the model; None where there is nothing to confirm.
        tables: CSV, TSV and text files in it, one of which may hold the labels.
        class_names: of the model, by index; empty where unknown.
        task: that of the model, or the one that labels call for; empty where unknown.
    """

    title: str
    layout: Layout
    num_images: int
    label_counts: tuple[tuple[str, int], ...]
    proposal: LabelMapProposal | None
    notes: tuple[str, ...]
    tables: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    task: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPicture:
    """One picture as the network sees it: a PNG file, its label (empty without labels) and prediction as text.

    ``drawn`` are the picture with the prediction drawn in it, as a PNG file, and that with the label, where possible.
    """

    name: str
    png: bytes
    label: str
    prediction: str
    drawn: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewReport:
    """Some pictures, how they and the outputs are read, and the uncompressed model's figures on them.

    Attributes:
        pictures: at most four, spread evenly over the set.
        score: the task's shown metric of the uncompressed model on ``num_scored`` images; None without labels.
        warning: one sentence where that says that the model does not do its task; else empty.
        choice: how the preprocessing was chosen that the pictures are shown with; None where it was given.
        num_marked: pictures with a rotation mark of their camera, of those that were read.
        asked: the same pictures in other readings, where a person has to choose; at most four.
        layouts: (key, words) of those that the outputs may have.
        ranges: (words, mean, std) of common ranges of values.
    """

    reading: Reading
    pictures: tuple[SeenPicture, ...] = ()
    num_scored: int = 0
    score: float | None = None
    warning: str = ""
    notes: tuple[str, ...] = ()
    choice: PreparationChoice | None = None
    num_marked: int = 0
    asked: tuple[tuple[PreparationTrial, tuple[SeenPicture, ...]], ...] = ()
    layouts: tuple[tuple[str, str], ...] = ()
    ranges: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...] = ()


HELD_OUT_SHARE = 0.3  # of the images
LEAST_HELD_OUT = 100  # with fewer, a share of right answers has a standard error of 5 points and more
MOST_HELD_OUT = 2000  # by then it is about 1 point


_PREVIEW_MACS, _FEWEST_PREVIEWED, MOST_SCANNED = 3e10, 16, 1024  # the work of some seconds on two cores


def num_previewed(images: int, macs: float, passes: float) -> int:
    """Return how many of the ``images`` give estimates that measurements replace: some seconds' work.

    ``macs`` are those of an image in one pass through the network; the estimates take so many ``passes``.
    """
    affordable = int(_PREVIEW_MACS / max(1.0, macs * passes))
    return min(images, max(_FEWEST_PREVIEWED, min(MOST_SCANNED, affordable)))


def num_held_out(count: int) -> int:
    """Return how many of ``count`` images are kept when no number was asked for.

    >>> num_held_out(897), num_held_out(333), num_held_out(50_000)
    (269, 0, 2000)
    """
    kept = int(HELD_OUT_SHARE * count)
    return min(kept, MOST_HELD_OUT) if kept >= LEAST_HELD_OUT else 0
