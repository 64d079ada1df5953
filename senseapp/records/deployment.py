"""Files of a compressed model: their forms, the one that a runtime runs with its figures, and times of its layers."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, Self, get_args

from senseapp.core.errors import InvalidSpec, check_choice
from senseapp.descriptions import LevelScale
from senseapp.descriptions.runtimes import RuntimeDescription, runtime_words, usual_runtime
from senseapp.descriptions.targets import USUAL_TARGET, target_of_file
from senseapp.metrics import MetricChange
from senseapp.records.executed import IntegerShare
from senseapp.records.profile import ModelProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One form of a compressed model.

    ``reading`` is Python that binds its state dict to ``weights``, with ``{name}`` for the file's name; empty where the
    suffix says how it is read.
    """

    suffix: str
    title: str
    reading: str = ""

    @property
    def label(self) -> str:
        """Label before its size."""
        return self.title[0].upper() + self.title[1:]

    def reader(self, name: str) -> str:
        """Return the Python that reads the file called ``name``."""
        return self.reading.replace("{name}", name)


CHECKPOINT = ModelFile(suffix=".safetensors", title="weights")
SPARSE = ModelFile(
    suffix=".sparse.safetensors.gz",
    title="weights with zeros compressed",
    reading='import gzip, safetensors.torch\nweights = safetensors.torch.load(gzip.open("{name}").read())\n',
)
INTEGERS = ModelFile(
    suffix=".int.safetensors.gz",
    title="weights as integers",
    reading="import gzip, safetensors.torch\n"
    'stored = safetensors.torch.load(gzip.open("{name}").read())\n'
    'weights = {k: (v.float() - stored[k + ".zero_point"]) * stored[k + ".scale"] if k + ".scale" in stored else v '
    'for k, v in stored.items() if k.rpartition(".")[0] not in stored}\n',
)
PROGRAM = ModelFile(suffix=".pt2", title="network as .pt2")
ONNX = ModelFile(suffix=".onnx", title="network as .onnx")

MODEL_FILES = (CHECKPOINT, SPARSE, INTEGERS, PROGRAM, ONNX)
"""The plain checkpoint first, which the same architecture loads with ``strict=True``."""


def model_file(name: str) -> ModelFile:
    """Return the form of the file called ``name``, one of :data:`MODEL_FILES`.

    >>> model_file("compressed.int.safetensors.gz").title
    'weights as integers'
    """
    return next(form for form in MODEL_FILES if name.endswith(form.suffix))


def small_form(name: str) -> ModelFile | None:
    """Return the small form that the file called ``name`` has; None for the others, which many programs read."""
    return next((form for form in (SPARSE, INTEGERS) if name.endswith(form.suffix)), None)


FLOAT, INT8 = "(float)", "(int8)"
"""Stand for a neighbour that is always one or the other: the input and the output, and additions between layers."""
INT8_BITS = 8  # as its name says; files hold weights of fewer bits in as many
MILLISECONDS = "ms"
"""What :attr:`~senseapp.records.schedule.Schedule.achieved` calls the time of one call of the whole network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Of one layer at one level: a fraction or bits; 0 or 32 as it is."""

    layer: str
    level: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Cost of a border between two neighbours, one in int8 and the other in float."""

    first: str
    second: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Times of the layers of one network, with ``other_seconds`` that no layer takes.

    ``source`` is the name of a file, or a processor and its runtime; ``unmatched`` names in it are of no layer.
    """

    times: tuple[LayerTime, ...]
    other_seconds: float = 0.0
    conversions: tuple[Conversion, ...] = ()
    source: str = ""
    unmatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def layers(self) -> set[str]:
        """Return the layers with a time."""
        return {each.layer for each in self.times}

    def untimed(self, profile: ModelProfile) -> tuple[str, ...]:
        """Return the layers of ``profile`` that run and have no time."""
        known = self.layers()
        return tuple(layer.name for layer in profile.layers if layer.runs and layer.name not in known)

    def seconds(self, layer: str, level: float, scale: LevelScale) -> float:
        """Return the time of ``layer`` at ``level``: at the nearest level as gentle or gentler that has one.

        Bits below the fewest are stored in those, and what lies between two widths takes the time of the wider. A
        layer without times takes none.
        """
        own = {scale.untouched if each.level == 0 else each.level: each.seconds for each in self.times
               if each.layer == layer}  # fmt: skip
        gentler = [each for each in own if scale.strength(each) <= scale.strength(level)]
        return own[max(gentler, key=scale.strength)] if gentler else max(own.values(), default=0.0)

    def whole(self, levels: Mapping[str, float], scale: LevelScale, *, int8: Collection[str]) -> float:
        """Return the seconds of the network with layers at ``levels``, others as they are, and those of ``int8`` so."""
        own = sum(self.seconds(layer, levels.get(layer, scale.untouched), scale) for layer in self.layers())
        inside = {INT8, *int8} if int8 else {}
        crossed = sum(each.seconds for each in self.conversions if (each.first in inside) != (each.second in inside))
        return own + crossed + self.other_seconds


INT8_ENDS = (
    "Inputs and outputs are int8: value = scale × (integer − zero point). Scale and zero point of each are its entry "
    "“quantization” in network.get_input_details() and network.get_output_details()."
)
DeployKind = Literal["quickest", "mixed", "int8", "float"]
"""As little in float as a limit on changed answers takes, int8 but where it does harm, all of it in int8, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploySettings:
    """How a network is written and timed.

    Attributes:
        most_changed: of ``quickest``, the share of answers that may differ from the original's.
        most_time: of ``mixed``, as a multiple of the time of all-int8.
        threads, batch: of the calls whose time is taken: threads of the runtime, and images of a call.
        reduce_range: 7 bits for all weights, for runtimes that saturate where onnxruntime and OpenVINO do not.
        int8_ends: int8 inputs and outputs, as microcontrollers and some NPUs want them; float32 otherwise.
        activation_bits: of ``int8``: 8, or 16 for NPUs.
    """

    kind: DeployKind = "mixed"
    most_changed: float = 0.01
    most_time: float = 1.3
    threads: int = 1
    batch: int = 1
    reduce_range: bool = False
    int8_ends: bool = False
    activation_bits: int = INT8_BITS
    runtime: str = field(default_factory=usual_runtime)

    def __post_init__(self) -> None:
        check_choice("A file is", self.kind, get_args(DeployKind))
        if not self.most_time >= 1 or self.threads < 1 or self.batch < 1:
            raise InvalidSpec("Time is at least 1 times that of all-int8, threads and batch at least 1.")
        if not 0 <= self.most_changed < 1:
            raise InvalidSpec(f"At least 0 and less than 1 of the answers may change, got {self.most_changed}.")
        if self.int8_ends and (self.kind == "float" or not runtime_words(self.runtime).has_int8_ends):
            raise InvalidSpec(
                "Only int8 files for LiteRT can have int8 inputs and outputs. Choose such a file, or float inputs and "
                "outputs."
            )
        wide = self.activation_bits == 16 and not self.int8_ends and runtime_words(self.runtime).has_int8_ends
        if self.activation_bits != INT8_BITS and not (wide and self.kind == "int8"):
            raise InvalidSpec(
                "Only LiteRT files all in int8, with float inputs and outputs, have 16-bit activations. Choose 8 bits."
            )


WHILE_BUSY = ", while the computer was busy"
_WIDEST_TIMES = 1.5  # ratio of the ends of an interval: beyond it, other programs decided the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Median:
    """A median, and its 95 % interval from the order of the values, which assumes nothing of how they are spread.

    Source: Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2 (the binomial interval of a quantile).
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the median of ``values``, at least one.

        >>> Median.of(range(41))
        Median(value=20, low=13, high=27)
        """
        ordered, count = sorted(values), len(values)
        outside = max(round(count / 2 - 0.98 * math.sqrt(count)) - 1, 0)  # of a binomial quantile, nearly normal
        return cls(value=statistics.median(ordered), low=ordered[outside], high=ordered[-1 - outside])

    @property
    def times_text(self) -> str:
        """A ratio of times as text, with its interval; a wide one comes from other programs, which is said.

        >>> Median(value=0.36, low=0.34, high=0.4).times_text
        '0.36 × the time (0.34 to 0.40)'
        >>> Median(value=1.0, low=0.34, high=1.03).times_text
        '1.00 × the time (0.34 to 1.03), while the computer was busy'
        """
        busy = WHILE_BUSY if self.high > _WIDEST_TIMES * self.low else ""
        return f"{self.value:.2f} × the time ({self.low:.2f} to {self.high:.2f}){busy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFigures:
    """What one file does in its runtime.

    Attributes:
        changes: of every metric against the original in the runtime, image by image.
        seconds, time_ratio: of one call, and its ratio to the original's, call by call.
        score_threshold: from which answers count, chosen for this file; None for tasks without.
        busy: whether more programs wanted to run than the machine has processors for, when its calls were timed.
    """

    changes: tuple[MetricChange, ...]
    seconds: Median
    time_ratio: Median
    file_bytes: int
    score_threshold: float | None = None
    busy: bool = False


def thresholds_text(figures: Mapping[str, RuntimeFigures]) -> str:
    """Return the thresholds of scores of the file and of the original in a sentence; empty where there are none."""
    file, original = (figures[name].score_threshold for name in ("file", "original"))
    if file is None or original is None:
        return ""
    return (
        f"Detections count from a score of {file:.3f} on in the file, and of {original:.3f} in the original: the best "
        "F1 on the calibration images."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """Time of all operators of one kind, called the same in float and in int8 (``Conv``), in a call of one file.

    One that ``is_border`` only takes values from float to int8 or back, or to another order of memory.
    """

    kind: str
    calls: int
    seconds: float
    is_border: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorShare(OperatorTime):
    """The same beside the original's float file; 0 in the file that has none."""

    original_calls: int
    original_seconds: float


def operator_shares(original: Sequence[OperatorTime], file: Sequence[OperatorTime]) -> tuple[OperatorShare, ...]:
    """Return the operators of two files side by side, those that take longest in either first."""
    before, after = ({each.kind: each for each in times} for times in (original, file))
    shares = []
    for kind in dict.fromkeys((*before, *after)):
        none = OperatorTime(kind=kind, calls=0, seconds=0.0, is_border=(before.get(kind) or after[kind]).is_border)
        one, other = before.get(kind, none), after.get(kind, none)
        shares.append(OperatorShare(**asdict(other), original_calls=one.calls, original_seconds=one.seconds))
    return tuple(sorted(shares, key=lambda each: -max(each.original_seconds, each.seconds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Times of the file, and of the original in float, in another runtime on the same machine.

    They are multiples of those in the runtime that the files are for, with which it took turns.
    """

    runtime: str
    file: Median
    original: Median


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Measurements of a file in its runtime and of its competitors, in one run.

    Attributes:
        figures: of ``file``; of ``original``, the uncompressed network in float; of ``int8``, the same network as the
            file with all of it in int8; of ``default``, that by the best of the runtime's own settings. A float
            file has the first two only.
        simulated: the changes that the schedule's simulation in torch has on the same images; empty without one.
        in_float: layers, or operations of none, that were left in float since int8 harms them.
        opset: of ONNX the operator set; 0 where the file's format has no version.
        batch: the images of a call, None for any number.
        images: how many it was measured on; none of them chose ranges or layers.
        preparation: how a picture becomes an input, in one sentence.
        findings: sentences; the first says what the file does, the others what speaks against it.
        computes_in_float: whether no part of the file computes in int8.
        own_setting: of the runtime's quantizer for ``default``; empty where there is no such file.
        operators: where the time of a call goes, in the original and in the file; empty for files in float, and where
            the runtime does not say it.
        elsewhere: times in other runtimes that open the file here; its answers in them are not measured.
        integers: what the runtime computes in integers; None of files in float, and where it does not say it.
    """

    settings: DeploySettings
    figures: Mapping[str, RuntimeFigures]
    simulated: tuple[MetricChange, ...]
    in_float: tuple[str, ...]
    opset: int
    batch: int | None
    images: int
    preparation: str
    machine: str
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    computes_in_float: bool = False
    own_setting: str = ""
    operators: tuple[OperatorShare, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    integers: IntegerShare | None = None

    @property
    def runtime(self) -> RuntimeDescription:
        """The runtime that the file is for, in words; of one that is not installed here, what its name says."""
        return runtime_words(self.settings.runtime)

    @property
    def own_title(self) -> str:
        """Name of the file of the runtime's own quantizer."""
        return self.runtime.own_title(self.own_setting)

    def readme(self, name: str, target: str = USUAL_TARGET) -> str:
        """Return how the file called ``name`` is loaded, given a picture, run, and its scores are read, a line each.

        A last line says what was measured where, for files for a ``target`` that is not this computer.
        """
        there = target_of_file(self.settings.runtime, target)
        loading = (there.loading or self.runtime.loading).replace("{name}", name)
        lines = [f"Load: {loading}", f"Prepare: {self.preparation}", f"Run: {self.runtime.running}"]
        ends = INT8_ENDS if INT8_ENDS in self.notes else ""
        return "\n".join((*lines, *filter(None, [ends, thresholds_text(self.figures), there.measured]), ""))
