"""Interface of target formats, and the checks that all of them share."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from senseapp.core.errors import InvalidSchedule
from senseapp.descriptions import Effect, get, names
from senseapp.records.profile import LayerProfile, ModelProfile
from senseapp.records.schedule import Schedule, check_schedule

NOTES = "_notes"
"""The key of the notes in files that are JSON; there only where there are some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """A target format: its reader, its limitations, and how it is written.

    Attributes:
        name: what ``--format`` takes; people see ``title``.
        reader: one line on which tool reads it, and how.
        usage: the lines that apply the file, complete but for what the reader has: a ``model``, and ``images`` of one
            batch; ``FILE`` stands for its name, ``STEM`` for that without its last suffix, and ``RUN`` for the run.
        usage_of_bits: the same for a schedule of bits, where other lines are needed.
        suffix: of the file name, with its dot; unique, so that a zip holds one file per format.
        compressions: the names of those that the format can express; None for any.
        render: writes a checked schedule with notes; None if the file needs the network itself (Model Explorer).
        reaches: whether the tool can compress a layer; others are left out of the file, which says so.
        out_of_reach: what the others are, in a sentence.
        differs: a sentence for every file on what the tool does otherwise than it was measured.
        mixes: whether one file can hold several compressions at once.
        is_retired: whether its tool is no longer developed; pages offer it to experts.
    """

    name: str
    title: str
    reader: str
    suffix: str
    usage: str
    usage_of_bits: str = ""
    render: Callable[[Schedule, ModelProfile, Sequence[str]], str] | None
    compressions: tuple[str, ...] | None = None
    mixes: bool = False
    reaches: Callable[[LayerProfile], bool] = lambda layer: True
    out_of_reach: str = ""
    differs: str = ""
    is_retired: bool = False

    def mismatch(self, schedule: Schedule) -> str:
        """Return why this format has no words for what ``schedule`` compresses, as one sentence; empty if it has."""
        used = {entry.compression for entry in schedule.entries} - {"none"}
        held = names() if self.compressions is None else self.compressions
        if unsupported := sorted(used - set(held)):
            return (
                f"{self.title} files hold {' and '.join(held)} targets, but this schedule contains "
                f"{' and '.join(unsupported)}. Choose another format."
            )
        if len(used) > 1 and not self.mixes:
            return (
                f"A {self.title} file holds one compression, but this schedule contains {' and '.join(sorted(used))}. "
                "Choose JSON, CSV or YAML."
            )
        return ""

    def refusal(self, schedule: Schedule) -> str:
        """Return why this format cannot hold ``schedule`` without more, as one sentence; empty if it can."""
        needed = f"A {self.title} file needs the network itself."
        return self.mismatch(schedule) or (needed if self.render is None else "")

    def write(self, schedule: Schedule, profile: ModelProfile) -> str:
        """Return the text of the file.

        Raises InvalidSchedule if the schedule belongs to another model, is out of range, or cannot be expressed.
        """
        check_schedule(schedule, profile)
        refusal = self.refusal(schedule)
        if refusal or self.render is None:
            raise InvalidSchedule(refusal)
        missed = self._missed(schedule, profile)
        kept = [tuple(member for member in entry.members if member not in missed) for entry in schedule.entries]
        entries = [replace(entry, members=members) for entry, members in zip(schedule.entries, kept, strict=True)]
        reached = replace(schedule, entries=tuple(entries)) if missed else schedule
        if missed and all(entry.compression == "none" or not entry.members for entry in reached.entries):
            raise InvalidSchedule(f"{self.title} cannot take {self.out_of_reach}, and all of these layers are.")
        return self.render(reached, profile, self.notes(schedule, profile))

    def notes(self, schedule: Schedule, profile: ModelProfile) -> tuple[str, ...]:
        """Return the limitations of the file of a checked ``schedule``, and the layers that the tool does not support.

        They stand in the file, and belong beside it wherever it is offered.
        """
        found = [*schedule.file_notes, *([self.differs] if self.differs else [])]
        if missed := self._missed(schedule, profile):
            found.append(f"Left out, as {self.title} cannot take {self.out_of_reach}: {', '.join(missed)}.")
        return tuple(found)

    def lines(self, schedule: Schedule, file_name: str, *, run: str = "RUN") -> str:
        """Return the lines that apply the file called ``file_name``, which holds ``schedule`` of the run ``run``.

        ``run`` is what the command line takes for the run: its id, or its folder; followed by ``--run`` and a second
        one where the schedule was made from two.
        """
        usage = self.usage_of_bits if self.usage_of_bits and bits_of(schedule) else self.usage
        stem = str(PurePath(file_name).with_suffix(""))
        return usage.replace("--run RUN", f"--run {run}").replace("FILE", file_name).replace("STEM", stem)

    def _missed(self, schedule: Schedule, profile: ModelProfile) -> list[str]:
        layers = levels_by_layer(schedule, *Effect)
        return [layer.name for layer in profile.layers if layer.name in layers and not self.reaches(layer)]


def has_own_weight(layer: LayerProfile) -> bool:
    """Whether the weight is the ``weight`` of the module; the joint projection of attention is not."""
    return layer.parameter == f"{layer.name}.weight"


def is_image_layer(layer: LayerProfile) -> bool:
    """Whether it is a linear layer or a convolution over two dimensions, transposed ones left out."""
    return has_own_weight(layer) and len(layer.weight_shape) in (2, 4) and layer.channel_axis == 0


def json_text(values: object) -> str:
    """Return ``values`` as the indented JSON of a file."""
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def noted(values: Mapping[str, object], notes: Sequence[str]) -> str:
    """Return ``values`` as the JSON of a file that begins with its notes, where there are some."""
    return json_text(({NOTES: list(notes)} if notes else {}) | dict(values))


def comments(notes: Sequence[str]) -> str:
    """Return ``notes`` as the comments that a YAML file begins with, one line each whatever layers are called."""
    return "".join(f"# {' '.join(note.split())}\n" for note in notes)


def fractions_by_layer(schedule: Schedule) -> dict[str, float]:
    """Return the fraction of every layer that loses weights or channels, group members included."""
    return levels_by_layer(schedule, Effect.ZEROS, Effect.CHANNELS)


def bits_of(schedule: Schedule) -> dict[str, int]:
    """Return the bits of every layer whose weights have fewer."""
    return {layer: int(level) for layer, level in levels_by_layer(schedule, Effect.BITS).items()}


def levels_by_layer(schedule: Schedule, *effects: Effect) -> dict[str, float]:
    """Return the level of every layer whose compression has one of ``effects``, group members included."""
    return {
        member: entry.level
        for entry in schedule.entries
        if entry.compression != "none" and get(entry.compression).effect in effects
        for member in entry.members
    }
