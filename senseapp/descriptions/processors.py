"""Processors that are simulated here: names and words. Files run on them as on the device, only slowly."""

from dataclasses import dataclass
from importlib.util import find_spec

from senseapp.core.errors import InvalidSpec
from senseapp.core.registry import Registry, object_at


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorDescription:
    """One simulated processor, which needs ``package``; the command ``added_by`` installs that.

    ``opens`` is ``module:name`` of a function that compiles the content of an ONNX file for it and returns a
    :class:`~senseapp.runtimes.open_file.OpenFile`; its argument ``context`` is where the compiled file is put.
    """

    name: str
    label: str
    opens: str
    package: str
    added_by: str

    @property
    def is_installed(self) -> bool:
        """Whether files can be run on it here."""
        return find_spec(self.package) is not None


PROCESSORS: Registry[ProcessorDescription] = Registry(
    "simulated processor", group="senseapp.processors", own=("senseapp.runtimes.qnn:QNN",)
)
"""All simulated processors, also those that are not installed here."""


def simulator_of(name: str) -> object:
    """Import and return what opens files on a simulated processor; InvalidSpec if there is none, or it is missing."""
    description = PROCESSORS.named(name)
    if not description.is_installed:
        raise InvalidSpec(f"{description.label} is not installed here. To add it: {description.added_by}")
    return object_at(description.opens)
