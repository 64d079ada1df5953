"""How OpenVINO makes integers of values: a multiplication and an addition, before it rounds.

Values from low to high become integers from 0 by x · 255 / (high − low) − low · 255 / (high − low), each constant in
float32, so the shift is not always a whole number. onnxruntime divides by the step and adds one.

Source: OpenVINO, ``plugins/intel_cpu/src/dnnl_postops_composer.cpp`` (``updateOptimizedFormula``), ``common/snippets/
src/pass/fq_decomposition.cpp`` (``getScalesAndShifts``), ``common/low_precision_transformations/src/add.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
ONE = np.asarray(1, np.float32)
_LITTLE = np.float32(1e-5)  # of a range; a shift by less is left out


@dataclass(frozen=True, slots=True)
class ScaleShift:
    """What a tensor is multiplied by, one value or one for each channel, and what is added then."""

    scales: Floats
    shift: Floats

    def then(self, other: ScaleShift) -> ScaleShift:
        """Return both, one after the other, as one; ``other`` is the same for all channels."""
        return ScaleShift(self.scales * other.scales, self.shift * other.scales + other.shift)

    def without_little(self, size: Floats) -> ScaleShift:
        """Return the same without a shift that is little beside the ``size`` of a range."""
        return self if abs(self.shift) >= _LITTLE * size else ScaleShift(self.scales, np.zeros_like(self.shift))


@dataclass(frozen=True, slots=True)
class Integers:
    """What integers from ``least`` to ``most`` stand for: values that are ``step`` apart, 0 at ``zero``."""

    step: np.float32
    zero: np.float32
    least: np.float32
    most: np.float32

    @property
    def count(self) -> np.float32:
        """Of steps."""
        return self.most - self.least

    def scale_shift(self, unit: Floats) -> ScaleShift:
        """Return how values in steps of ``unit``, or of each channel's, become integers in a kernel of a product.

        The least one becomes 0.
        """
        low, high = ((end - self.zero) * self.step / unit for end in (self.least, self.most))
        shifts = -low * self.count / (high - low)  # equal but for what float32 rounds: the first one counts
        return ScaleShift(np.asarray(self.count / (high - low), np.float32), np.reshape(shifts, -1)[0])

    def scale_shift_of_floats(self, unit: Floats) -> ScaleShift:
        """Return the same for a kernel that OpenVINO generates for what it computes in float."""
        low, high = ((end - self.zero) * self.step / unit for end in (self.least, self.most))
        rate = np.asarray(self.count / (high - low), np.float32)
        return ScaleShift(rate, np.asarray(-low * rate))

    def scale_shift_of_addend(self, other: Integers | None) -> ScaleShift:
        """Return how integers, counted from 0, become what is added to another tensor.

        That is in steps of ``other``, less its zero point; in values where the other tensor has no integers.
        """
        zero, unit = self.zero, ONE
        if other is not None:
            zero, unit = zero + other.zero * other.step / self.step, np.asarray(other.step)
        low, high = ((end - zero) * (self.step / unit) for end in (self.least, self.most))
        return ScaleShift(np.asarray((high - low) / self.count, np.float32), np.asarray(low))
