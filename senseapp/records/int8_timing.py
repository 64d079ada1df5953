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
        """Whether 8-bit numbers pay here, and about how much."""
        ratio = self.ratio
        about = f"about {ratio.times_text} of full precision, timed on a first file of this network."
        if ratio.high < 1:
            return f"8-bit numbers pay here: {about}"
        if not self.pays:
            return f"8-bit numbers do not pay here: {about} Such a file is smaller, and no quicker."
        return f"Whether 8-bit numbers pay here is not clear: {about}"

    @property
    def machine_sentence(self) -> str:
        """What this machine has for int8."""
        has = f"multiplies 8 bits by {self.products}" if self.products else "has no instructions for products of 8 bits"
        return f"{self.machine}: the processor {has}."


register(Int8Timing)
