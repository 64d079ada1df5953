"""Requests about finished runs: schedules, times of layers, pictures, and answers to an uploaded picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from senseapp.core.process import PROCESS_CACHE, without_collection
from senseapp.descriptions import CompressionConfig
from senseapp.records.answers import PictureAnswers
from senseapp.records.deployment import LayerTimes
from senseapp.records.profile import CoupledGroup, ModelProfile
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.server.outputs import write_graph
from senseapp.server.process.requester import (
    BYTES_PER_SECOND,
    AnswerT_co,
    ModelRequest,
    RunRequest,
    WorkerRequest,
    model_bytes,
    model_seconds,
    num_bytes,
)
from senseapp.server.session import load_engine
from senseapp.store.layer_times import read_layer_times
from senseapp.store.run_folder import RunFolder
from senseapp.tasks import task_named

_SOLVE_SECONDS, _SOLVE_BYTES = 60.0, 2e9  # four times what the largest imported run takes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSchedule(WorkerRequest[Schedule]):
    """Request for the content of a schedule file."""

    answer_type: ClassVar[type[Any]] = Schedule
    content: bytes
    profile: ModelProfile

    def answer(self) -> Schedule:
        """Read the file."""
        from senseapp.formats.plain import read_schedule  # loads yaml, which other requests do not need

        return read_schedule(self.content, self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveSchedule(WorkerRequest[Schedule]):
    """Request for the least damaging levels under a budget, for a run of very many layers in ``folder``."""

    answer_type: ClassVar[type[Any]] = Schedule
    needs_engine: ClassVar[bool] = False
    folder: str
    budget: ResourceBudget
    method: str
    limits: Limits
    gamma: float
    groups: tuple[CoupledGroup, ...] = ()

    @property
    def subject(self) -> str:
        """Name of the request."""
        return "The schedule of this run"

    @property
    def seconds(self) -> float:
        """Limit; the largest imported run takes 15 s."""
        return _SOLVE_SECONDS

    @property
    def memory_bytes(self) -> float:
        """Limit; the largest imported run takes 0.5 GB."""
        return _SOLVE_BYTES

    def answer(self) -> Schedule:
        """Read the run's results and solve; results stay in memory for the next request, as reading takes longest."""
        from senseapp.solve.trade_off import schedule_for  # loads scipy's solvers

        key = "result", self.folder
        result = PROCESS_CACHE.take(key) or RunFolder(Path(self.folder)).load_result()
        try:
            with without_collection():
                return schedule_for(
                    result,
                    self.budget,
                    method=self.method,
                    limits=self.limits,
                    gamma=self.gamma,
                    groups=self.groups,
                )
        finally:
            PROCESS_CACHE.leave(key, result)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfFinishedRun(ModelRequest[AnswerT_co]):
    """Request that loads the model of the finished run in ``folder``, and traces it."""

    passes: ClassVar[int] = 2
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Couplings:
    """The layers that pruning shrinks together."""

    groups: tuple[CoupledGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCouplings(_OfFinishedRun[Couplings]):
    """Request for the layers of a run that pruning shrinks together."""

    answer_type: ClassVar[type[Any]] = Couplings

    def answer(self) -> Couplings:
        """Load the model and trace its channels."""
        load_engine()
        from senseapp.networks.sources.load import load_model
        from senseapp.prove.strongest import couplings_of

        result = RunFolder(Path(self.folder)).load_result()
        return Couplings(groups=couplings_of(load_model(self.model).module, result))


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphWritten:
    """The graph of a run is in its folder, and has so many nodes of layers."""

    num_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteGraph(_OfFinishedRun[GraphWritten]):
    """Request to write the graph of a run into its folder."""

    answer_type: ClassVar[type[Any]] = GraphWritten

    def answer(self) -> GraphWritten:
        """Load the model, export it and write the files."""
        nodes = write_graph(RunFolder(Path(self.folder)), self.model)
        return GraphWritten(num_nodes=sum(map(len, nodes.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTimes(WorkerRequest[LayerTimes]):
    """Request for times of layers in another program's file; ``level`` is that of a profiled network."""

    answer_type: ClassVar[type[Any]] = LayerTimes
    content: bytes
    name: str
    profile: ModelProfile
    compression: CompressionConfig
    level: float | None

    def answer(self) -> LayerTimes:
        """Read the file."""
        return read_layer_times(self.content, self.profile, self.compression.scale, name=self.name, level=self.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumbnail:
    """One picture as the network gets it, as PNG."""

    name: str
    png: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumbnails:
    """Pictures of a run by their names."""

    pictures: tuple[Thumbnail, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowPictures(RunRequest[Thumbnails]):
    """Request for some pictures of a run as its network gets them."""

    answer_type: ClassVar[type[Any]] = Thumbnails
    names: tuple[str, ...]
    data_roots: tuple[str, ...]

    @property
    def subject(self) -> str:
        """The images of the run."""
        return "The images of this run"

    @property
    def seconds(self) -> float:
        """Limit for loading the model and reading the pictures from their archive."""
        return model_seconds(self.network) + num_bytes(self.spec.data.path) / BYTES_PER_SECOND

    def answer(self) -> Thumbnails:
        """Read the pictures again."""
        load_engine()
        from senseapp.data.images import effective_preprocessing  # torch loads on first use
        from senseapp.data.load import load_named
        from senseapp.data.pictures import png_of, preview
        from senseapp.networks.sources.load import load_model

        model = load_model(self.spec.model)
        images = load_named(
            self.spec.data,
            model.preprocessing,
            self.names,
            num_classes=model.num_classes,
            task=task_named(self.spec.model.task),
            data_roots=tuple(map(Path, self.data_roots)),
        )
        if images.indicative:  # noise
            return Thumbnails(pictures=())
        how = effective_preprocessing(self.spec.data, model.preprocessing)
        shown = preview(images, how, count=len(images))
        return Thumbnails(
            pictures=tuple(
                Thumbnail(name=images.names[index], png=png_of(picture))
                for index, picture in zip(shown.indices, shown.pictures, strict=True)
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TryPicture(RunRequest[PictureAnswers]):
    """What do the original network of a run and its files for runtimes answer to one uploaded picture?

    ``files`` are (name, path, runtime) of each.
    """

    answer_type: ClassVar[type[Any]] = PictureAnswers
    picture: str
    files: tuple[tuple[str, str, str], ...]

    @property
    def subject(self) -> str:
        """The name of the picture."""
        return Path(self.picture).name

    @property
    def seconds(self) -> float:
        """Limit for loading the model and opening the files."""
        return model_seconds(self.network, *(path for _, path, _ in self.files))

    @property
    def memory_bytes(self) -> float:
        """Limit from the sizes of checkpoint and files."""
        return model_bytes(self.network, *(path for _, path, _ in self.files))

    def answer(self) -> PictureAnswers:
        """Prepare the picture and run all networks on it."""
        load_engine()
        from senseapp.prove.try_picture import picture_answers  # torch loads on first use

        return picture_answers(
            self.spec, Path(self.picture), [(name, Path(path), runtime) for name, path, runtime in self.files]
        )
