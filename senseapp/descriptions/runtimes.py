"""Descriptions of runtimes and of simulated processors: names, files, and words for pages, reports and commands."""

from dataclasses import dataclass, field
from importlib.util import find_spec

from senseapp.core.errors import InvalidSpec
from senseapp.core.registry import Registry, object_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that networks run in, which may have to be installed.

    Attributes:
        name, label: in settings, files and on the command line; the name people see.
        operations: ``module:name`` of what runs files in it; it may load torch.
        package, added_by: what must be importable for it, if senseapp itself does not depend on it, and the command
            that installs that.
    """

    name: str
    label: str
    operations: str
    package: str = ""
    added_by: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether its files can be run here, and not only what was measured of them be shown."""
        return bool(self.operations) and (not self.package or find_spec(self.package) is not None)

    @property
    def how_to_add(self) -> str:
        """How it is added where it is not installed, in a sentence."""
        return f"{self.label} is not installed here. To add it: {self.added_by}"

    def check_installed(self) -> None:
        """Raise InvalidSpec, with how it is added, if it is not installed here."""
        if not self.is_installed:
            raise InvalidSpec(self.how_to_add)

    def load(self) -> object:
        """Import and return its operations; InvalidSpec if it is not installed here."""
        self.check_installed()
        return object_at(self.operations)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorDescription(Program):
    """A processor that is simulated here: files run on it as on the device, only slowly.

    Its operations are a function that compiles the content of an ONNX file for it and returns a
    :class:`~senseapp.runtimes.open_file.OpenFile`; the argument ``context`` is where the compiled file is put.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeDescription(Program):
    """One program that runs networks from files; its operations are a :class:`~senseapp.runtimes.base.Runtime`.

    Attributes:
        file_title: what its files are called: ``.onnx file``.
        suffix: of its files, with the dot.
        has_int8, has_int8_ends: whether it computes in int8, so that its quantizer can be asked for such files, and
            whether their inputs and outputs can be int8, too, or their activations have 16 bits.
        opened_by: what else opens its files.
        runs_on: where its files run, for a sentence: ``on phones, servers and in browsers``.
        loading, running: Python that opens the file ``{name}``, and that runs it on ``images``.
        converters: quantizers that take which parts of a file stay in float, for a sentence.
        on_device: commands that time the file ``{name}`` on the device that it is for, and write a report.
        warm_up: modules that take long to load, for a process that has nothing else to do.
    """

    file_title: str
    suffix: str
    has_int8: bool = False
    has_int8_ends: bool = False
    opened_by: str = ""
    runs_on: str = ""
    loading: str = ""
    running: str = ""
    converters: str = ""
    on_device: str = ""
    warm_up: tuple[str, ...] = field(default=())

    @property
    def file_words(self) -> str:
        """What one of its files is called in a sentence: ``.onnx file``."""
        return self.file_title if self.file_title.endswith("file") else f"{self.file_title} file"

    @property
    def is_absent(self) -> str:
        """That it is not installed, in a sentence for those who do not install programs."""
        where = f", which run {self.runs_on}," if self.runs_on else ""
        return f"{self.label} files{where} cannot be made: that is not set up on this computer."

    @property
    def own_quantizer(self) -> str:
        """What else writes files in int8 for it, and is compared with."""
        return f"{self.label}'s own quantizer"

    def own_title(self, setting: str) -> str:
        """Return the name of the file of its own quantizer in a setting; records of earlier versions have ""."""
        return f"{self.label}'s {setting or 'own default, per tensor'}"


RUNTIMES: Registry[RuntimeDescription] = Registry(
    "runtime",
    group="senseapp.runtimes",
    own=(
        "senseapp.runtimes.onnxruntime:ONNXRUNTIME",
        "senseapp.runtimes.openvino:OPENVINO",
        "senseapp.runtimes.litert:LITERT",
    ),
)
"""All runtimes, in the order in which they are offered, also those that are not installed here."""


def installed_runtimes() -> tuple[RuntimeDescription, ...]:
    """Return the runtimes whose files can be run here."""
    return tuple(each for each in RUNTIMES.values() if each.is_installed)


def runtime_of_file(name: str) -> RuntimeDescription | None:
    """Return the first installed runtime whose files end as ``name`` does; None for weights."""
    return next((each for each in installed_runtimes() if name.lower().endswith(each.suffix)), None)


def usual_runtime() -> str:
    """Return the name of the default runtime, also of records that name none: the first."""
    return next(iter(RUNTIMES))


def runtime_words(name: str) -> RuntimeDescription:
    """Return the description of a runtime; for one that is not installed, a description with its name alone."""
    if name in RUNTIMES:
        return RUNTIMES[name]
    return RuntimeDescription(name=name, label=name, file_title=name, suffix="", operations="", opened_by=name)


PROCESSORS: Registry[ProcessorDescription] = Registry(
    "simulated processor", group="senseapp.processors", own=("senseapp.runtimes.qnn:QNN",)
)
"""All simulated processors, also those that are not installed here."""
