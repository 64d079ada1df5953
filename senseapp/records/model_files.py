"""The forms in which a compressed model is written: what people call each, and the Python that reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One form of a compressed model.

    Attributes:
        reading: Python that binds its state dict to ``weights``, with ``{name}`` for the file's name; empty where
            the suffix says how it is read.
    """

    suffix: str
    title: str
    reading: str = ""

    @property
    def label(self) -> str:
        """What stands before its size."""
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
ONNX = ModelFile(suffix=".onnx", title="network as ONNX")

MODEL_FILES = (CHECKPOINT, SPARSE, INTEGERS, PROGRAM, ONNX)
"""The plain checkpoint first, which the same architecture loads with ``strict=True``."""


def model_file(name: str) -> ModelFile:
    """Return the form of the file called ``name``, one of :data:`MODEL_FILES`.

    >>> model_file("compressed.int.safetensors.gz").title
    'weights as integers'
    """
    return small_form(name) or next(form for form in MODEL_FILES if name.endswith(form.suffix))


def small_form(name: str) -> ModelFile | None:
    """Return the small form that the file called ``name`` has; None for the others, which many programs read."""
    return next((form for form in (SPARSE, INTEGERS) if name.endswith(form.suffix)), None)
