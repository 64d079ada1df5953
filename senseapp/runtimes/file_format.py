"""What the files of a runtime hold beside the network: words, preprocessing, weights in few bits, a kit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.networks.loaded import Preprocessing


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeights:
    """A float file whose quantized weights are stored in few bits, and sentences on how they are."""

    content: bytes
    notes: tuple[str, ...] = ()


class FileFormat:
    """The format of a runtime's files; this one holds the network alone."""

    def version(self, content: bytes) -> int:
        """Check a file that is delivered, and return the version of its format; 0 where it has none."""
        return 0

    def described(
        self,
        content: bytes,
        *,
        preprocessing: Preprocessing | None,
        class_names: Sequence[str],
        thresholds: tuple[float, float] | None = None,
    ) -> bytes:
        """Return a file with what a program needs to run it on pictures, where its format holds that.

        ``thresholds`` are those of the scores of the file and of the original.
        """
        return content

    def class_names(self, content: bytes) -> tuple[str, ...]:
        """Return the class names that a file of :meth:`described` carries; empty where it has none."""
        return ()

    def kit(self, name: str) -> dict[str, str]:
        """Return files, by name, that run the file called ``name`` on a picture; not for edited uploaded files."""
        return {}

    def with_quantized_weights(
        self, content: bytes, nodes: Collection[str], integers: Mapping[str, IntegerWeight]
    ) -> QuantizedWeights:
        """Return a float file that computes the same, with weights stored in few bits.

        ``nodes`` have rounded weights; ``integers`` are those of their layers, by node, where they are known.
        """
        return QuantizedWeights(content=content)

    def input_words(self, shape: Sequence[int]) -> str:
        """Return the description of a file's input, for images of ``shape`` (C, H, W)."""
        return f"images, float32, is (N, {', '.join(map(str, shape))})"

    def changes(self, content: bytes) -> tuple[str, ...]:
        """Return in sentences what differs between the uploaded file and ``content``; none for other networks."""
        return ()
