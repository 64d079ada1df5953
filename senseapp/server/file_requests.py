"""Requests about uploaded files, answered in killable worker processes.

The file is opened, parsed and looked at there, never in the server: one that keeps a library busy without end, or takes
all memory, costs that process, and the person who brought it one sentence. Answers come back as JSON records.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from senseapp.compressions.sparsity import SparsityGranularity
from senseapp.core.codec import decode, encode, register
from senseapp.records.inputs import ImageSurvey, MatchReport, PreviewReport
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.image_report import preview_images
from senseapp.server.model_cards import (
    CheckpointReport,
    ModelCard,
    compare_checkpoint,
    find_pruning_groups,
    identify_checkpoint,
    load_card,
)
from senseapp.server.process.requester import (
    BYTES_PER_SECOND,
    COPIES,
    MODEL_BYTES,
    MODEL_SECONDS,
    OPEN_BYTES,
    OPEN_SECONDS,
    AnswerT_co,
    WorkerRequest,
    num_bytes,
)
from senseapp.server.run_files import UnpackedRun, unpack_run_file
from senseapp.server.run_requests import (
    ReadSchedule,
    ReadTimes,
    ShowPictures,
    SolveSchedule,
    Thumbnails,
    TryPicture,
)
from senseapp.server.session import load_engine
from senseapp.store.distiller import read_distiller_csv
from senseapp.tasks import task_named

_PREVIEW_SECONDS = 600.0  # the preparation of the images may be searched for
_DOWNLOAD_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The members of each group of layers that pruning takes together."""

    groups: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifyCheckpoint(WorkerRequest[CheckpointReport]):
    """Which architectures does a checkpoint belong to?"""

    answer_type: ClassVar[type[Any]] = CheckpointReport
    path: str
    network: str = ""

    @property
    def subject(self) -> str:
        """The file's name."""
        return Path(self.path).name

    @property
    def seconds(self) -> float:
        """By the size of the file."""
        return OPEN_SECONDS + num_bytes(self.path) / BYTES_PER_SECOND

    @property
    def memory_bytes(self) -> float:
        """By the size of the file."""
        return OPEN_BYTES + COPIES * num_bytes(self.path)

    def answer(self) -> CheckpointReport:
        """Read it and compare it with all architectures known."""
        return identify_checkpoint(self.path, network=self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfModel(WorkerRequest[AnswerT_co]):
    """A question that builds a network, and loads a checkpoint into it where one is given."""

    model: ModelSpec

    @property
    def subject(self) -> str:
        """The model's title."""
        return self.model.title

    @property
    def seconds(self) -> float:
        """By the size of the checkpoint."""
        return MODEL_SECONDS + num_bytes(self.model.checkpoint) / BYTES_PER_SECOND

    @property
    def memory_bytes(self) -> float:
        """By the size of the checkpoint."""
        return MODEL_BYTES + COPIES * num_bytes(self.model.checkpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareCheckpoint(_OfModel[MatchReport]):
    """How does a checkpoint compare with one architecture, name by name?"""

    answer_type: ClassVar[type[Any]] = MatchReport

    def answer(self) -> MatchReport:
        """Build the architecture and compare."""
        return compare_checkpoint(self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeModel(_OfModel[ModelCard]):
    """What layers does a model have, and what do they cost?"""

    answer_type: ClassVar[type[Any]] = ModelCard

    def answer(self) -> ModelCard:
        """Load it and run it once."""
        return load_card(self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindGroups(WorkerRequest[Groups]):
    """Which layers does a run of pruning take together?"""

    answer_type: ClassVar[type[Any]] = Groups
    spec: RunSpec

    @property
    def subject(self) -> str:
        """The model's title."""
        return self.spec.model.title

    @property
    def seconds(self) -> float:
        """To load the model and follow its channels."""
        return 2 * MODEL_SECONDS

    @property
    def memory_bytes(self) -> float:
        """By the size of the checkpoint."""
        return MODEL_BYTES + COPIES * num_bytes(self.spec.model.checkpoint)

    def answer(self) -> Groups:
        """Load the model and find them."""
        return Groups(groups=find_pruning_groups(self.spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyImages(WorkerRequest[ImageSurvey]):
    """What does a folder, an archive or an image set hold?"""

    answer_type: ClassVar[type[Any]] = ImageSurvey
    data: DataSpec
    task: str
    num_classes: int
    class_names: tuple[str, ...]
    data_roots: tuple[str, ...]

    @property
    def subject(self) -> str:
        """The name of the folder, archive or set."""
        return Path(self.data.path).name or self.data.name

    @property
    def seconds(self) -> float:
        """By the size of the archive; a set may have to be downloaded."""
        return _DOWNLOAD_SECONDS if self.data.name else OPEN_SECONDS + num_bytes(self.data.path) / BYTES_PER_SECOND

    def answer(self) -> ImageSurvey:
        """List it, and decode a picture."""
        load_engine()
        from senseapp.data.pictures import survey_images  # torch loads on first use

        return survey_images(
            self.data,
            num_classes=self.num_classes,
            task=task_named(self.task),
            class_names=self.class_names,
            data_roots=tuple(map(Path, self.data_roots)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewImages(WorkerRequest[PreviewReport]):
    """What does the model see of some images, and what does it make of them?"""

    answer_type: ClassVar[type[Any]] = PreviewReport
    spec: RunSpec
    num_images: int | None
    data_roots: tuple[str, ...]

    @property
    def subject(self) -> str:
        """The model's title."""
        return self.spec.model.title

    @property
    def seconds(self) -> float:
        """For the search of a preparation too."""
        return _PREVIEW_SECONDS

    @property
    def memory_bytes(self) -> float:
        """By the size of the checkpoint; pictures are decoded in processes with a limit of their own."""
        return MODEL_BYTES + COPIES * num_bytes(self.spec.model.checkpoint)

    def answer(self) -> PreviewReport:
        """Load both and run the one on the other."""
        return preview_images(self.spec, num_images=self.num_images, data_roots=tuple(map(Path, self.data_roots)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable(WorkerRequest[RunResult]):
    """What does another tool's sensitivity table say?"""

    answer_type: ClassVar[type[Any]] = RunResult
    content: bytes
    title: str
    granularity: SparsityGranularity
    profile: ModelProfile | None

    def answer(self) -> RunResult:
        """Read it."""
        return read_distiller_csv(self.content, title=self.title, granularity=self.granularity, profile=self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackRunFile(WorkerRequest[UnpackedRun]):
    """What is in a run file? What is sound in it is written anew, into an empty folder."""

    answer_type: ClassVar[type[Any]] = UnpackedRun
    path: str
    folder: str
    most_bytes: int

    @property
    def seconds(self) -> float:
        """By the size of the file."""
        return OPEN_SECONDS + num_bytes(self.path) / BYTES_PER_SECOND

    def answer(self) -> UnpackedRun:
        """Check it, and write what is in it."""
        with Path(self.path).open("rb") as stream:
            return unpack_run_file(stream, Path(self.folder), most_bytes=self.most_bytes)


QUESTIONS: dict[str, type[Any]] = {
    kind.__name__: register(kind)
    for kind in (
        *(IdentifyCheckpoint, CompareCheckpoint, DescribeModel, FindGroups),
        *(SurveyImages, PreviewImages, ReadTable, ReadSchedule, SolveSchedule),
        *(ReadTimes, UnpackRunFile, TryPicture, ShowPictures),
    )
}
"""What can be asked, by the names that messages have."""

for _kind in (CheckpointReport, MatchReport, Groups, ImageSurvey, PreviewReport, UnpackedRun, Thumbnails):
    register(_kind)


def answer_here(payload: dict[str, Any]) -> dict[str, Any]:
    """Answer the question that :func:`senseapp.core.codec.encode` was given, and encode the answer."""
    question: WorkerRequest[Any] = decode(payload, QUESTIONS[payload["type"]])
    return encode(question.answer())
