"""Time of a network all in int8 on this machine, beside its time in float."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.core.codec import register
from senseapp.records.deployment import Median


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Timing:
    """Time of a call of a first file in int8, as a multiple of float's, before a file is searched for.

    Attributes:
        ratio: with its interval.
        machine: processor and runtime.
        products: what the processor computes int8 products with: ``VNNI``, ``AMX`` or nothing of its own.
    """

    ratio: Median
    machine: str
    products: str

    @property
    def pays(self) -> bool:
        """Whether int8 may be quicker: False where the whole interval says that it is not."""
        return self.ratio.low < 1

    @property
    def sentence(self) -> str:
        """Whether int8 pays here, and about how much."""
        ratio = self.ratio
        about = f"about {ratio.value:.2f} times the time of float ({ratio.low:.2f} to {ratio.high:.2f}), timed on a "
        about += "first file of this network."
        if ratio.high < 1:
            return f"Int8 pays here: {about}"
        if not self.pays:
            return f"Int8 does not pay here: {about} A file in int8 is smaller, and no quicker."
        return f"Whether int8 pays here is not clear: {about}"

    @property
    def machine_sentence(self) -> str:
        """What this machine has for int8."""
        has = f"multiplies 8 bits by {self.products}" if self.products else "has no instructions for products of 8 bits"
        return f"{self.machine}: the processor {has}."


register(Int8Timing)
