"""Requests about uploaded files, answered in killable worker processes.

The file is opened, parsed and examined there, never in the server: one that keeps a library busy indefinitely, or
exhausts the memory, ends only that process, and its user gets one sentence. Answers are JSON records.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from senseapp.compressions.sparsity import SparsityGranularity
from senseapp.core.codec import decode, encode, register
from senseapp.records.inputs import ImageSurvey, MatchReport, OnnxReport, PreviewReport
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import DataSpec
from senseapp.server.image_report import preview_images
from senseapp.server.model_cards import (
    CheckpointReport,
    ModelCard,
    compare_checkpoint,
    examine_onnx_file,
    find_pruning_groups,
    identify_checkpoint,
    load_card,
)
from senseapp.server.process.requester import (
    BYTES_PER_SECOND,
    COPIES,
    OPEN_BYTES,
    OPEN_SECONDS,
    ModelRequest,
    RunRequest,
    WorkerRequest,
    num_bytes,
)
from senseapp.server.run_files import UnpackedRun, unpack_run_file
from senseapp.server.run_requests import (
    Couplings,
    FindCouplings,
    GraphWritten,
    ReadSchedule,
    ReadTimes,
    ShowPictures,
    SolveSchedule,
    Thumbnails,
    TryPicture,
    WriteGraph,
)
from senseapp.server.session import load_engine
from senseapp.store.distiller import read_distiller_csv
from senseapp.tasks import task_named

_PREVIEW_SECONDS = 600.0  # includes a possible search for the preprocessing
_DOWNLOAD_SECONDS = 3600.0  # of an image set on a slow connection; one that stalls is given up after a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The members of each group of layers that pruning couples."""

    groups: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifyCheckpoint(WorkerRequest[CheckpointReport]):
    """Request for the architectures that a checkpoint may belong to."""

    answer_type: ClassVar[type[Any]] = CheckpointReport
    path: str
    network: str = ""

    @property
    def subject(self) -> str:
        """The file's name."""
        return Path(self.path).name

    @property
    def seconds(self) -> float:
        """Limit from the size of the file."""
        return OPEN_SECONDS + num_bytes(self.path) / BYTES_PER_SECOND

    @property
    def memory_bytes(self) -> float:
        """Limit from the size of the file."""
        return OPEN_BYTES + COPIES * num_bytes(self.path)

    def answer(self) -> CheckpointReport:
        """Read the file and compare it with all known architectures."""
        return identify_checkpoint(self.path, network=self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareCheckpoint(ModelRequest[MatchReport]):
    """Request to compare a checkpoint with one architecture, name by name."""

    answer_type: ClassVar[type[Any]] = MatchReport

    def answer(self) -> MatchReport:
        """Build the architecture and compare."""
        return compare_checkpoint(self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamineOnnx(ModelRequest[OnnxReport]):
    """Request for the input, the outputs and the changes of an ONNX file."""

    answer_type: ClassVar[type[Any]] = OnnxReport

    @property
    def subject(self) -> str:
        """The file's name."""
        return Path(self.model.checkpoint).name

    def answer(self) -> OnnxReport:
        """Read the file, and compare its network with onnxruntime."""
        return examine_onnx_file(self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeModel(ModelRequest[ModelCard]):
    """Request for the layers of a model and their costs."""

    answer_type: ClassVar[type[Any]] = ModelCard

    def answer(self) -> ModelCard:
        """Load the model and run it once."""
        return load_card(self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindGroups(RunRequest[Groups]):
    """Request for the layers that a run of pruning couples."""

    answer_type: ClassVar[type[Any]] = Groups
    passes: ClassVar[int] = 2

    def answer(self) -> Groups:
        """Load the model and find its groups."""
        return Groups(groups=find_pruning_groups(self.spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyImages(WorkerRequest[ImageSurvey]):
    """Request for the content of a folder, an archive or an image set."""

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
        """Limit from the size of the archive, and for a possible download of a set."""
        return _DOWNLOAD_SECONDS if self.data.name else OPEN_SECONDS + num_bytes(self.data.path) / BYTES_PER_SECOND

    def answer(self) -> ImageSurvey:
        """List the content, and decode a picture."""
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
class PreviewImages(RunRequest[PreviewReport]):
    """Request for some images as the model gets them, with its predictions."""

    answer_type: ClassVar[type[Any]] = PreviewReport
    num_images: int | None
    data_roots: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Limit that includes a search for the preprocessing."""
        return _PREVIEW_SECONDS

    def answer(self) -> PreviewReport:
        """Load model and images, and run the model on them."""
        return preview_images(self.spec, num_images=self.num_images, data_roots=tuple(map(Path, self.data_roots)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable(WorkerRequest[RunResult]):
    """Request for the content of another tool's sensitivity table."""

    answer_type: ClassVar[type[Any]] = RunResult
    content: bytes
    title: str
    granularity: SparsityGranularity
    profile: ModelProfile | None

    def answer(self) -> RunResult:
        """Read the table."""
        return read_distiller_csv(self.content, title=self.title, granularity=self.granularity, profile=self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackRunFile(WorkerRequest[UnpackedRun]):
    """Request to check a run file and write its valid content to an empty folder."""

    answer_type: ClassVar[type[Any]] = UnpackedRun
    path: str
    folder: str
    most_bytes: int

    @property
    def seconds(self) -> float:
        """Limit from the size of the file."""
        return OPEN_SECONDS + num_bytes(self.path) / BYTES_PER_SECOND

    def answer(self) -> UnpackedRun:
        """Check the file, and write its content."""
        with Path(self.path).open("rb") as stream:
            return unpack_run_file(stream, Path(self.folder), most_bytes=self.most_bytes)


REQUESTS: dict[str, type[Any]] = {
    kind.__name__: register(kind)
    for kind in (
        *(IdentifyCheckpoint, CompareCheckpoint, ExamineOnnx, DescribeModel, FindGroups),
        *(SurveyImages, PreviewImages, ReadTable, ReadSchedule, SolveSchedule),
        *(ReadTimes, UnpackRunFile, TryPicture, ShowPictures, FindCouplings, WriteGraph),
    )
}
"""Request types by their name in messages."""

for _kind in (
    CheckpointReport,
    MatchReport,
    OnnxReport,
    Groups,
    ImageSurvey,
    PreviewReport,
    UnpackedRun,
    Thumbnails,
    Couplings,
    GraphWritten,
):
    register(_kind)


def answer_here(payload: dict[str, Any]) -> dict[str, Any]:
    """Answer an encoded request (:func:`senseapp.core.codec.encode`), and return the encoded answer."""
    request: WorkerRequest[Any] = decode(payload, REQUESTS[payload["type"]])
    return encode(request.answer())
