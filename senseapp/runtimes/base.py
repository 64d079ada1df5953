"""Interface of runtimes: write a network as a file, open it, time it, and quantize with a precision per node.

The search for nodes to keep in float, times as a budget and the proof on the file know runtimes only from here. A new
one is a :class:`~senseapp.descriptions.runtimes.RuntimeDescription` that names a :class:`Runtime`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.errors import InvalidSpec
from senseapp.core.process import quiet
from senseapp.core.steps import OptionalSteps
from senseapp.descriptions.runtimes import RuntimeDescription, operations_of
from senseapp.metrics import MetricChange
from senseapp.networks.loaded import Preprocessing
from senseapp.networks.network import Abilities, Network, in_calls
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.records.calibration import TensorCoverage
from senseapp.records.check import Parting
from senseapp.records.deployment import LayerTimes, Median, OperatorTime
from senseapp.records.layer_findings import LayerRounding, RoundingSettings
from senseapp.records.probe import GlueKind, LayerShape, ProbedCosts

if TYPE_CHECKING:
    from senseapp.runtimes.foreign import ForeignFile

TURNS = 41
"""How often each network runs for its time: enough that the interval of its median leaves out the slow quarter."""
COMPARING_TURNS = 21
"""Where only the ratio of two times counts."""
_LEAST_TURNS, _LONG_SECONDS = 7, 4.0  # of a timing, which ends after the former where it has taken the latter
_QUICK = 0.1  # the share of calls that are quicker than those that the interval of a ratio takes into account


class RuntimeNetwork(ABC):
    """A file that is open in a runtime; a :class:`~senseapp.networks.network.Network`."""

    runtime_label: str

    @property
    def abilities(self) -> Abilities:
        """A file only runs."""
        a_file = f"A file that is open in {self.runtime_label}"
        return Abilities(
            gradients=f"{a_file} has no gradients.",
            replay=f"{a_file} runs as a whole.",
            structural_pruning=f"{a_file} keeps its channels.",
            weight_updates=f"{a_file} keeps its weights.",
        )

    @property
    def fixed_batch(self) -> int | None:
        """Images that each call must have; None for any number."""
        return None

    @property
    @abstractmethod
    def output_names(self) -> tuple[str, ...]:
        """Of the tensors in what :meth:`run` returns, in their order."""

    @abstractmethod
    def run(self, batch: Tensor) -> object:
        """Return the raw output for images (N, C, H, W), nested as the network's own."""


class Exporter(ABC):
    """Writes networks of one architecture as float files; what they have in common is found once.

    Args:
        model: the uncompressed network, which stays as it is.
        example: images that it takes, (N, C, H, W), on the processor.
    """

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self.model, self.example = model, example

    @abstractmethod
    def write(self, model: nn.Module) -> bytes:
        """Return ``model``, the network or a compressed copy of it; raises InvalidSpec where it cannot be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Node:
    """A node of a file that computes in int8.

    Attributes:
        name: of the node.
        elementwise: whether it adds or multiplies tensors, without weights.
        has_weights: whether it multiplies with weights.
        readers: the nodes in int8 that read what it computes, with which it shares a border.
    """

    name: str
    elementwise: bool = False
    has_weights: bool = False
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingCause:
    """Why 8 bits of a tensor do harm.

    Attributes:
        node: that makes the tensor, or joins or reads it.
        tensor: as the float network calls it.
        lost: how much is lost, from 0 for nothing to 1 for all values.
        sentence: for people.
    """

    node: str
    tensor: str
    lost: float
    sentence: str


class Quantizer(ABC):
    """Writes one float network in int8, any of its nodes in float.

    Attributes:
        network: the float file that it writes; the same in float as the one it was given.
        notes: sentences on how its files were made.
    """

    network: bytes
    notes: tuple[str, ...] = ()

    @abstractmethod
    def write(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        """Return the network with every node in int8 that can be, ``but`` not these, which stay in float.

        Of ``weights_only`` the weights are those of the int8 file, stored in 8 bits, and all else is computed in float.
        """

    @abstractmethod
    def nodes(self, content: bytes) -> list[Int8Node]:
        """Return the nodes of a file of this quantizer that compute in int8, in order."""

    def causes(self, nodes: Collection[str] | None = None) -> Sequence[RoundingCause]:
        """Return why int8 harms what ``nodes``, or all, compute: what loses most first; empty where that is unknown."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedNode:
    """A node of somebody's quantized file that computes; ``weights_known``: its float weights were found."""

    name: str
    op: str
    weights_known: bool = True


class QuantizedFile(ABC):
    """A quantized file of any quantizer, whose nodes can be put back in float one by one."""

    @property
    @abstractmethod
    def nodes(self) -> tuple[QuantizedNode, ...]:
        """The nodes that are quantized, in order."""

    @abstractmethod
    def restored(self, names: Collection[str]) -> bytes:
        """Return the file with the nodes ``names`` in float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeights:
    """A float file whose quantized weights are stored in few bits, and sentences on how they are."""

    content: bytes
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Images that a quantizer is fitted to, and the judge of its files.

    Attributes:
        batches: images (N, C, H, W) that ranges and weights are fitted to.
        damage_of: how far a network is from the float one, on other images.
        damages_of: the same on parts of these images, by which a gain is told from chance.
        reduce_range: whether weights get 7 bits.
        weights_are_free: whether they may be changed before they are rounded; not where they lie on a grid.
        integers: by node, those of its layer's weight, which are kept where the runtime's kernels can have them.
        steps: are told, and take the errors of what is optional.
    """

    batches: Sequence[Tensor]
    damage_of: Callable[[Network], float]
    damages_of: Callable[[Network], Sequence[float]]
    reduce_range: bool = False
    weights_are_free: bool = True
    integers: Mapping[str, IntegerWeight] = field(default_factory=dict)
    steps: OptionalSteps = field(default_factory=OptionalSteps)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnInt8:
    """The file of a runtime's own quantizer in the best of its usual settings.

    Attributes:
        setting: in words, after the runtime's name: ``quantize_static, per channel, unsigned activations, min-max``.
        notes: sentences on how it was found.
    """

    content: bytes
    setting: str
    notes: tuple[str, ...] = ()


class Runtime(ABC):
    """A runtime on this machine. What only int8 needs is refused unless its description says that it has it.

    Attributes:
        description: its name, its files and its words.
        int8_note: a sentence on every int8 file of it.
        remedy_note: a sentence behind the causes of what 8 bits harm, on a remedy that is missing.
    """

    description: RuntimeDescription
    int8_note: str = ""
    remedy_note: str = ""

    # ---- files and networks

    @abstractmethod
    def exporter(self, model: nn.Module, example: Tensor) -> Exporter:
        """Return what writes ``model`` and compressed copies of it, traced on images ``example``, (N, C, H, W)."""

    @abstractmethod
    def open(self, content: bytes, *, threads: int | None = None) -> RuntimeNetwork:
        """Open a file: on ``threads``, which times are taken on, or where only outputs count as many as torch has.

        Raises:
            InvalidSpec: the runtime cannot open it.
        """

    @abstractmethod
    def machine(self) -> str:
        """Return the processor and the runtime, for people: ``AMD EPYC without VNNI, onnxruntime 1.32.0``."""

    def size(self, content: bytes) -> int:
        """Return the bytes of a file on disk."""
        return len(content)

    def checked(self, content: bytes) -> int:
        """Check a file that is delivered, and return the version of its format; 0 where it has none."""
        return 0

    def described(self, content: bytes, *, preprocessing: Preprocessing | None, class_names: Sequence[str]) -> bytes:
        """Return a file with what a program needs to run it on pictures, where its format holds that."""
        return content

    def class_names(self, content: bytes) -> tuple[str, ...]:
        """Return the class names that a file of :meth:`described` carries; empty where it has none."""
        return ()

    def kit(self, name: str) -> dict[str, str]:
        """Return files, by name, that run the file called ``name`` on a picture; not for edited uploaded files."""
        return {}

    def layers_of_nodes(self, content: bytes, layers: Collection[str]) -> dict[str, str]:
        """Return the layer, one of ``layers``, that each node of a float file belongs to, where one does."""
        return {}

    def with_quantized_weights(
        self, content: bytes, nodes: Collection[str], integers: Mapping[str, IntegerWeight]
    ) -> QuantizedWeights:
        """Return a float file that computes the same, with weights stored in few bits.

        ``nodes`` have rounded weights; ``integers`` are those of their layers, by node, where they are known.
        """
        return QuantizedWeights(content=content)

    def half_zero(self, content: bytes) -> bytes | None:
        """Return a float file with the smaller half of each weight at zero, to time it; None if it is not needed."""
        return None

    def input_words(self, shape: Sequence[int]) -> str:
        """Return the description of a file's input, for images of ``shape`` (C, H, W)."""
        return f"images, float32, is (N, {', '.join(map(str, shape))})"

    # ---- files of other programs

    def foreign(self, content: bytes, *, threads: int | None = None) -> ForeignFile:
        """Open a file that any program wrote, and run it as it is; see :meth:`open` for ``threads``.

        Raises:
            InvalidInput: it is no file of this runtime, cannot be opened, or takes other things than images.
        """
        raise InvalidSpec(f"Files of other programs are not run in {self.description.label} here.")

    def whole(self, path: Path) -> bytes:
        """Return the content of a file of this person's own disk, with parts that lie beside it; may raise OSError."""
        return path.read_bytes()

    def parting(
        self, reference: bytes, candidate: bytes, images: tuple[Tensor, Tensor], *, progress: Callable[[str], None]
    ) -> Parting | None:
        """Return how far tensors inside of two files differ, on ``images`` as each takes them; None where unknown."""
        return None

    # ---- uploaded files

    def for_file(self, opened: OpenedOnnx) -> Runtime:
        """Return the runtime for a network that came from an ONNX file; one that edits that file where this can."""
        return self

    def changes(self, content: bytes) -> tuple[str, ...]:
        """Return in sentences what differs between the uploaded file and ``content``; none for other networks."""
        return ()

    def in_place(self, network: bytes, file: bytes) -> bytes:
        """Return an int8 ``file`` of a quantizer of ``network`` as it is delivered."""
        return file

    # ---- int8

    def quantizer(self, content: bytes, calibration: Sequence[Tensor]) -> AbstractContextManager[Quantizer]:
        """Return a quantizer of a float file whose ranges are the least and largest values on ``calibration``."""
        raise self._no_int8()

    def fitted_quantizer(self, content: bytes, fitting: Fitting) -> AbstractContextManager[Quantizer]:
        """Return a quantizer of a float file that does as little harm as this runtime knows how to do."""
        return self.quantizer(content, fitting.batches)

    def own_int8(self, content: bytes, fitting: Fitting) -> OwnInt8 | None:
        """Return the file of the runtime's own quantizer in the usual setting that does least harm; None without one.

        It is what our files are compared with.
        """
        return None

    def coverage(
        self, content: bytes, int8: bytes, calibration: Sequence[Tensor], others: Sequence[Tensor]
    ) -> list[TensorCoverage]:
        """Return how far what an ``int8`` file rounds lies on ``others`` beyond its range on ``calibration``.

        ``content`` is the network in float. Empty where the runtime cannot tell.
        """
        return []

    def quantized_file(self, content: bytes, reference: bytes) -> QuantizedFile:
        """Return a quantized file that was made of the float file ``reference``, for a look at its nodes.

        Raises:
            InvalidSpec: none of its nodes can be put back in float.
        """
        raise self._no_int8()

    def roundings(
        self,
        content: bytes,
        batches: Sequence[Tensor],
        settings: RoundingSettings,
        *,
        layers: Collection[str],
        change_of: Callable[[Network], MetricChange],
        progress: Callable[[str], None],
    ) -> Iterator[LayerRounding]:
        """Yield what rounding the parts of each node that multiplies with weights does alone.

        Ranges and weights are fitted to ``batches``; ``change_of`` measures a network, on other images. A node is
        called as the one of ``layers`` that it belongs to.
        """
        raise self._no_int8()

    def _no_int8(self) -> InvalidSpec:
        return InvalidSpec(f"{self.description.label} has no files in int8 here. Choose a file in float.")

    # ---- times

    def times(self, networks: Sequence[Network], images: Tensor, *, turns: int = TURNS) -> list[list[float]]:
        """Return, for each network, the seconds of ``turns`` calls on ``images``; see :func:`times`."""
        return times(networks, images, turns=turns)

    def time_layers(
        self, content: bytes, quantizer: Quantizer, owners: Mapping[str, str], *, threads: int = 1, batch: int = 1
    ) -> LayerTimes:
        """Return the times of layers of a float file in float and in int8, and what a border between both costs.

        ``quantizer`` writes the same network in int8; ``owners`` has the layer that a node belongs to, for the nodes of
        layers.

        Raises:
            InvalidSpec: none of them can be timed.
        """
        raise InvalidSpec(f"Layers cannot be timed in {self.description.label} here.")

    def probe(self, layers: Sequence[LayerShape], glue: Sequence[GlueKind], *, threads: int = 1) -> ProbedCosts:
        """Return the times of layers of these shapes, each alone, and of operations between layers, one image a call.

        It takes seconds and needs no network; shapes that it cannot time are left out.

        Raises:
            InvalidSpec: this runtime cannot be probed.
        """
        raise InvalidSpec(f"What int8 gains in {self.description.label} is not known before a file is made.")

    def operators(self, content: bytes, *, threads: int = 1, batch: int = 1) -> tuple[OperatorTime, ...]:
        """Return the time of a call of a file by kind of operator; empty if the runtime does not report it."""
        return ()

    def time_products(
        self, content: bytes, owners: Mapping[str, str], *, threads: int = 1, batch: int = 1
    ) -> tuple[dict[str, tuple[float, int]], float]:
        """Return the seconds of each layer of a float file with the values that it computes; and of the rest.

        Raises:
            InvalidSpec: none of ``owners``, layers by node, can be timed.
        """
        raise InvalidSpec(f"Layers cannot be timed in {self.description.label} here.")


def runtime_named(name: str) -> Runtime:
    """Return the runtime of that name; raise InvalidSpec, with the names there are, if there is none."""
    return cast(Runtime, operations_of(name))


def runtime_for(name: str, uploaded: OpenedOnnx | None) -> Runtime:
    """Return the runtime of that name for a network, from an ``uploaded`` ONNX file or none."""
    runtime = runtime_named(name)
    return runtime if uploaded is None else runtime.for_file(uploaded)


def times(networks: Sequence[Network], images: Tensor, *, turns: int = TURNS) -> list[list[float]]:
    """Return, for each network, the seconds of ``turns`` calls on ``images``.

    The networks take turns, so that turn *i* of one was made beside turn *i* of the others, and whatever else the
    machine does meets them alike. Long calls, whose times vary less, have fewer turns.
    """
    seconds: list[list[float]] = [[] for _ in networks]
    with quiet():
        for turn in range(turns + 1):
            if turn > _LEAST_TURNS and sum(map(sum, seconds)) > _LONG_SECONDS:
                break
            for network, spent in zip(networks, seconds, strict=True):
                started = time.perf_counter()
                for part in in_calls(network, images):
                    network.run(part)
                if turn:  # the first call prepares kernels
                    spent.append(time.perf_counter() - started)
    return seconds


def ratio(seconds: Sequence[float], to: Sequence[float]) -> Median:
    """Return the median of the ratios, turn by turn, of ``seconds`` to those of another of :meth:`Runtime.times`.

    On a busy machine both wait alike, which brings ratios closer to 1 than when nothing else runs. The quickest calls
    wait least, so the interval includes their ratio.
    """
    found = Median.of([one / other for one, other in zip(seconds, to, strict=True)])
    quick = quick_seconds(seconds) / quick_seconds(to)
    return replace(found, low=min(found.low, quick), high=max(found.high, quick))


def quick_seconds(seconds: Sequence[float]) -> float:
    """Return what one of the quickest calls took."""
    return sorted(seconds)[int(_QUICK * len(seconds))]
