"""Descriptions of runtimes: names, files, and the words for pages, reports and commands."""

from dataclasses import dataclass, field
from importlib.util import find_spec

from senseapp.core.errors import InvalidSpec
from senseapp.core.registry import Registry, object_at


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeDescription:
    """One program that runs networks from files.

    Attributes:
        name: in settings, files and on the command line.
        label: the name people see.
        file_title: what its files are called: ``ONNX``.
        suffix: of its files, with the dot.
        operations: ``module:name`` of its :class:`~senseapp.runtimes.base.Runtime`; it may load torch.
        package: that must be importable for it; empty where senseapp itself depends on it.
        added_by: the command that installs ``package``.
        has_int8: whether it computes in int8, so that its quantizer can be asked for such files.
        has_int8_ends: whether inputs and outputs of such files can be int8, too, or activations have 16 bits.
        opened_by: what else opens its files.
        runs_on: where its files run, for a sentence: ``on phones, servers and in browsers``.
        loading: Python that opens the file ``{name}``.
        running: Python that runs it on ``images``.
        converters: quantizers that take which parts of a file stay in float, for a sentence.
        on_device: commands that time the file ``{name}`` on the device that it is for, and write a report.
        warm_up: modules that take long to load, for a process that has nothing else to do.
    """

    name: str
    label: str
    file_title: str
    suffix: str
    operations: str
    package: str = ""
    added_by: str = ""
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
    def is_installed(self) -> bool:
        """Whether its files can be run here, and not only what was measured of them be shown."""
        return bool(self.operations) and (not self.package or find_spec(self.package) is not None)

    @property
    def file_words(self) -> str:
        """What one of its files is called in a sentence: ``ONNX file``."""
        return self.file_title if self.file_title.endswith("file") else f"{self.file_title} file"

    @property
    def how_to_add(self) -> str:
        """How it is added where it is not installed, in a sentence."""
        return f"{self.label} is not installed here. To add it: {self.added_by}"

    @property
    def is_absent(self) -> str:
        """That it is not installed, in a sentence for those who do not install programs."""
        where = f" {self.runs_on}" if self.runs_on else ""
        return f"Files that run{where} ({self.label}) are not set up on this computer."

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


def operations_of(name: str) -> object:
    """Import and return the operations of a runtime.

    Raises:
        InvalidSpec: there is none of that name, or it is not installed; the message says which there are, or how it is
            added.
    """
    description = RUNTIMES.named(name)
    if not description.is_installed:
        raise InvalidSpec(description.how_to_add)
    return object_at(description.operations)
