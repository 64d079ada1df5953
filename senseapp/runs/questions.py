"""What a page asks about files that people bring: each question is answered in a process that can be ended.

The file is opened, parsed and looked at there, never in the server: one that keeps a library busy without end, or takes
all memory, costs that process, and the person who brought it one sentence. Answers come back as JSON records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from senseapp.compressions import CompressionConfig
from senseapp.compressions.sparsity import SparsityGranularity
from senseapp.core.codec import decode, encode, register
from senseapp.records.inputs import ImageSurvey, MatchReport, PreviewReport
from senseapp.records.layer_times import LayerTimes
from senseapp.records.measurement import SensitivityResult
from senseapp.records.profile import CoupledGroup, ModelProfile
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.runs.image_report import preview_images
from senseapp.runs.model_cards import (
    CheckpointReport,
    ModelCard,
    compare_checkpoint,
    find_pruning_groups,
    identify_checkpoint,
    load_card,
)
from senseapp.runs.run_files import UnpackedRun, unpack_run_file
from senseapp.runs.session import load_engine
from senseapp.store.distiller_reading import read_distiller_csv
from senseapp.store.layer_times import read_layer_times
from senseapp.store.run_folder import RunFolder
from senseapp.tasks import task_named

AnswerT_co = TypeVar("AnswerT_co", covariant=True)

_OPEN_SECONDS = 8.0  # a hostile file has its sentence within ten
_BYTES_PER_SECOND = 50e6  # of a large file on a slow disk
_MODEL_SECONDS = 120.0  # to build a large network and run it once
_PREVIEW_SECONDS = 600.0  # the preparation of the images may be searched for
_DOWNLOAD_SECONDS = 3600.0
_SOLVE_SECONDS, _SOLVE_BYTES = 60.0, 2e9
_OPEN_BYTES = 280e6  # of memory, whatever is free: what a lying file may cost
_MODEL_BYTES = 8e9  # to build a large network and run it once
_COPIES = 3  # of a checkpoint's weights: as loaded, as numbers of 32 bits, and in the network


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The members of each group of layers that pruning takes together."""

    groups: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(ABC, Generic[AnswerT_co]):
    """One question; it and its answer are plain values that can be written as JSON."""

    answer_type: ClassVar[type[Any]]

    @property
    def subject(self) -> str:
        """What is looked at, for people: the name of a file or a model."""
        return "This file"

    @property
    def seconds(self) -> float:
        """Processor time that it may take once the engine is loaded; on a busy machine it may last longer."""
        return _OPEN_SECONDS

    @property
    def memory_bytes(self) -> float:
        """What it may take of memory beyond the engine, however much is free."""
        return _OPEN_BYTES

    @abstractmethod
    def answer(self) -> AnswerT_co:
        """Open the file and find out.

        Raises:
            InvalidInput: it cannot be used, with one sentence on why.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifyCheckpoint(Question[CheckpointReport]):
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
        return _OPEN_SECONDS + _num_bytes(self.path) / _BYTES_PER_SECOND

    @property
    def memory_bytes(self) -> float:
        """By the size of the file."""
        return _OPEN_BYTES + _COPIES * _num_bytes(self.path)

    def answer(self) -> CheckpointReport:
        """Read it and compare it with all architectures known."""
        return identify_checkpoint(self.path, network=self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfModel(Question[AnswerT_co]):
    """A question that builds a network, and loads a checkpoint into it where one is given."""

    model: ModelSpec

    @property
    def subject(self) -> str:
        """The model's title."""
        return self.model.title

    @property
    def seconds(self) -> float:
        """By the size of the checkpoint."""
        return _MODEL_SECONDS + _num_bytes(self.model.checkpoint) / _BYTES_PER_SECOND

    @property
    def memory_bytes(self) -> float:
        """By the size of the checkpoint."""
        return _MODEL_BYTES + _COPIES * _num_bytes(self.model.checkpoint)


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
class FindGroups(Question[Groups]):
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
        return 2 * _MODEL_SECONDS

    @property
    def memory_bytes(self) -> float:
        """By the size of the checkpoint."""
        return _MODEL_BYTES + _COPIES * _num_bytes(self.spec.model.checkpoint)

    def answer(self) -> Groups:
        """Load the model and find them."""
        return Groups(groups=find_pruning_groups(self.spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyImages(Question[ImageSurvey]):
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
        return _DOWNLOAD_SECONDS if self.data.name else _OPEN_SECONDS + _num_bytes(self.data.path) / _BYTES_PER_SECOND

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
class PreviewImages(Question[PreviewReport]):
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
        return _MODEL_BYTES + _COPIES * _num_bytes(self.spec.model.checkpoint)

    def answer(self) -> PreviewReport:
        """Load both and run the one on the other."""
        return preview_images(self.spec, num_images=self.num_images, data_roots=tuple(map(Path, self.data_roots)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable(Question[SensitivityResult]):
    """What does another tool's sensitivity table say?"""

    answer_type: ClassVar[type[Any]] = SensitivityResult
    content: bytes
    title: str
    granularity: SparsityGranularity
    profile: ModelProfile | None

    def answer(self) -> SensitivityResult:
        """Read it."""
        return read_distiller_csv(self.content, title=self.title, granularity=self.granularity, profile=self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSchedule(Question[Schedule]):
    """What does a schedule file say?"""

    answer_type: ClassVar[type[Any]] = Schedule
    content: bytes
    profile: ModelProfile

    def answer(self) -> Schedule:
        """Read it."""
        from senseapp.schedules.export.plain import read_schedule  # loads yaml, which other questions do without

        return read_schedule(self.content, self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveSchedule(Question[Schedule]):
    """Which levels meet a budget with the least damage, in a run of very many layers, whose folder is given?"""

    answer_type: ClassVar[type[Any]] = Schedule
    folder: str
    budget: ResourceBudget
    method: str
    limits: Limits
    gamma: float
    groups: tuple[CoupledGroup, ...] = ()

    @property
    def subject(self) -> str:
        """What is solved."""
        return "The schedule of this run"

    @property
    def seconds(self) -> float:
        """Of the largest run that is imported: 15 s."""
        return _SOLVE_SECONDS

    @property
    def memory_bytes(self) -> float:
        """Of the largest run that is imported: 0.5 GB."""
        return _SOLVE_BYTES

    def answer(self) -> Schedule:
        """Read the run's results and solve."""
        from senseapp.schedules.trade_off import schedule_for  # loads scipy's solvers

        return schedule_for(
            RunFolder(Path(self.folder)).load_result(),
            self.budget,
            method=self.method,
            limits=self.limits,
            gamma=self.gamma,
            groups=self.groups,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTimes(Question[LayerTimes]):
    """How long do layers take, as a file of another program has it? ``level`` is that of a profiled network."""

    answer_type: ClassVar[type[Any]] = LayerTimes
    content: bytes
    name: str
    profile: ModelProfile
    compression: CompressionConfig
    level: float | None

    def answer(self) -> LayerTimes:
        """Read it."""
        return read_layer_times(self.content, self.profile, self.compression.scale, name=self.name, level=self.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackRunFile(Question[UnpackedRun]):
    """What is in a run file? What is sound in it is written anew, into an empty folder."""

    answer_type: ClassVar[type[Any]] = UnpackedRun
    path: str
    folder: str
    most_bytes: int

    @property
    def seconds(self) -> float:
        """By the size of the file."""
        return _OPEN_SECONDS + _num_bytes(self.path) / _BYTES_PER_SECOND

    def answer(self) -> UnpackedRun:
        """Check it, and write what is in it."""
        with Path(self.path).open("rb") as stream:
            return unpack_run_file(stream, Path(self.folder), most_bytes=self.most_bytes)


QUESTIONS: dict[str, type[Any]] = {
    kind.__name__: register(kind)
    for kind in (
        *(IdentifyCheckpoint, CompareCheckpoint, DescribeModel, FindGroups),
        *(SurveyImages, PreviewImages, ReadTable, ReadSchedule, SolveSchedule),
        *(ReadTimes, UnpackRunFile),
    )
}
"""What can be asked, by the names that messages have."""

for _kind in (CheckpointReport, MatchReport, Groups, ImageSurvey, PreviewReport, UnpackedRun):
    register(_kind)


def answer_here(payload: dict[str, Any]) -> dict[str, Any]:
    """Answer the question that :func:`senseapp.core.codec.encode` was given, and encode the answer."""
    question: Question[Any] = decode(payload, QUESTIONS[payload["type"]])
    return encode(question.answer())


def _num_bytes(path: str) -> int:
    with suppress(OSError):
        return Path(path).stat().st_size if path else 0
    return 0
