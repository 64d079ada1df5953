"""What is known of a network's outputs and inputs: layouts as settings, and the reading of a run with its evidence."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Self

from senseapp.core.codec import decode
from senseapp.core.errors import InvalidFile, InvalidSpec
from senseapp.core.foreign_values import BadValue, read_json
from senseapp.core.texts import printable
from senseapp.tasks.class_numbers import Background

Fit = Literal["", "crop", "letterbox", "corner", "stretch"]
ChannelOrder = Literal["", "rgb", "bgr"]
Evidence = Literal["file", "graph", "library", "family", "fit", "labels", "images", "person", "assumed"]
EVIDENCE_WORDS: Mapping[str, str] = {
    "file": "the file says so",
    "graph": "the file normalises its images itself",
    "library": "it comes with the network",
    "family": "networks of this family are usually trained so",
    "fit": "nothing else fits",
    "labels": "it suits the labels best",
    "images": "the answers to the images are surest and most consistent",
    "person": "chosen by a person",
    "assumed": "only assumed",
}
"""How a part of a reading is known, in words."""
PART_TITLES: Mapping[str, str] = {"task": "Task", "layout": "Outputs", "preparation": "Images", "classes": "Classes"}
"""What the parts of a reading are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualInput:
    """How the networks of a family take pictures.

    Attributes:
        family: its name, for people.
        values: from 0 to 1 (``shares``), from 0 to 255 (``bytes``), or less mean and std of ``imagenet``.
        channel_order: ``rgb`` or ``bgr``; empty where members of the family differ.
        fit: of the pictures.
    """

    family: str
    values: Literal["shares", "bytes", "imagenet"] = "shares"
    channel_order: str = "rgb"
    fit: str = "letterbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputReader(ABC):
    """A layout of raw outputs, which makes of each of a network what its task reads; it can be pickled.

    Attributes:
        name: of the layout; the key has all that differs from the defaults.
        num_classes: a background included; 0 where the output itself tells.
        background: the class that stands for no object.
    """

    name: str
    num_classes: int = 0
    background: Background = "unknown"

    @property
    def usual_input(self) -> UsualInput | None:
        """How networks with such outputs take pictures; None where they differ in that."""
        return None

    @property
    @abstractmethod
    def words(self) -> str:
        """The layout, as part of a sentence."""

    @abstractmethod
    def __call__(self, model_output: object) -> object:
        """Return what the task reads of a raw output."""

    @property
    def key(self) -> str:
        """The layout as a setting, in one line of JSON.

        >>> from senseapp.tasks.detection.heads.layout import HeadLayout
        >>> HeadLayout(name="grid", num_classes=4, strides=(8, 16), has_object=True).key
        '{"name":"grid","num_classes":4,"has_object":true,"strides":[8,16]}'
        """
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        usual = {each.name: each.default for each in fields(self)}
        return json.dumps({name: value for name, value in told.items() if value != usual[name]}, separators=(",", ":"))

    @classmethod
    def from_key(cls, key: str) -> Self:
        """Return the layout of a key; raises InvalidSpec where it is none of this task."""
        try:
            if len(key) > 400:
                raise BadValue("too long")
            return decode({"type": cls.__name__, "version": 1, "data": read_json(key)}, cls)
        except (BadValue, InvalidFile):
            raise InvalidSpec(
                f"The layout {key[:80]!r} is none that outputs of this task can have. Take one that the reading of the "
                "file lists, or leave it out."
            ) from None


def class_map_words(class_map: Sequence[tuple[str, int]]) -> str:
    """Return the first labels with their outputs.

    >>> class_map_words([("cat", 0), ("dog", 1)])
    'cat → 0, dog → 1'
    """
    shown = ", ".join(f"{printable(label)} → {output}" for label, output in class_map[:6])
    return shown + (" and others" if len(class_map) > 6 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the outputs, the images and the class numbers of a run are read, and how each of these is known.

    It can be given to another run, and :func:`~senseapp.records.spec.with_reading` applies it.

    Attributes:
        task: one of :data:`senseapp.tasks.TASKS`.
        outputs: of an ONNX file, the values that are read.
        layout: of these, as :attr:`OutputReader.key` has it; empty where the task reads them without one.
        input_shape: of one image, (C, H, W).
        mean, std, crop_pct, fit, channel_order: as :class:`~senseapp.networks.loaded.Preprocessing`.
        class_map: (label as written, output), where labels were matched to outputs by measuring or by a person.
        evidence: (part, how it is known): of ``task``, ``layout``, ``preparation`` and ``classes``.
        words: (part, what is read, in words).
    """

    task: str
    outputs: tuple[str, ...] = ()
    layout: str = ""
    input_shape: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    crop_pct: float = 1.0
    fit: Fit = "crop"
    channel_order: ChannelOrder = "rgb"
    class_map: tuple[tuple[str, int], ...] = ()
    evidence: tuple[tuple[str, Evidence], ...] = ()
    words: tuple[tuple[str, str], ...] = ()

    @property
    def facts(self) -> dict[str, str]:
        """Each part in words, with how it is known, by its title."""
        known = dict(self.evidence)
        return {
            PART_TITLES[part]: f"{said} ({EVIDENCE_WORDS[known[part]]})"
            for part, said in self.words
            if part in PART_TITLES and known.get(part) in EVIDENCE_WORDS
        }

    def __post_init__(self) -> None:
        numbers = (*self.mean, *self.std, self.crop_pct)
        if not all(map(math.isfinite, numbers)) or any(each <= 0 for each in (*self.std, self.crop_pct)):
            raise InvalidSpec(f"A reading has finite means, and shares and std above 0, got {numbers}.")

    @property
    def sentences(self) -> tuple[str, ...]:
        """The same as sentences."""
        return tuple(f"{title}: {said}." for title, said in self.facts.items())

    def differences(self, other: Self) -> tuple[str, ...]:
        """Return the names of the parts in which two readings differ."""
        parts = {
            "task": ("task",),
            "layout": ("outputs", "layout"),
            "preparation": ("input_shape", "mean", "std", "crop_pct", "fit", "channel_order"),
            "classes": ("class_map",),
        }
        return tuple(
            part for part, names in parts.items() if any(getattr(self, name) != getattr(other, name) for name in names)
        )
