"""The values of one tensor on its quantization grid, and how much each part of the grid matters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from senseapp.core.codec import register
from senseapp.records.spec import HistogramSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationHistogram:
    """A histogram whose bins divide the cells of a quantization grid.

    A cell holds all values that are rounded to one grid point; it is cut into ``sub_bins`` bins of equal width. Values
    beyond the grid are counted in the outermost bin, and in ``clamped``. Places on the grid are counted in steps from
    its first point.

    Attributes:
        cells: grid points.
        zero_cell: the cell of value 0; of one-sided activations the first.
        scale: value of one step; NaN where each channel has its own.
        low, high: the tensor's true range.
        counts: values in each bin, (cells × sub_bins,).
        gradient_sums: sum of the objective's gradient over the values in each bin, same length. Activations:
            over all images. Weights: of the gradient summed over the images.
        gradient_magnitudes: sum of the gradient's magnitude over the values in each bin.
        place_sums: sum of the places of the values in each cell, (cells,); clamped ones count at the end.
        zeros: values that are rounded to 0; per channel, each on its own grid.
        clamped: values beyond the grid.
        notes: sentences a person should read.
    """

    spec: HistogramSpec
    cells: int
    sub_bins: int
    zero_cell: int
    scale: float
    low: float
    high: float
    counts: tuple[float, ...]
    gradient_sums: tuple[float, ...]
    gradient_magnitudes: tuple[float, ...]
    place_sums: tuple[float, ...]
    zeros: float
    clamped: float
    num_images: int
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """Values seen."""
        return sum(self.counts)

    @property
    def cell_counts(self) -> tuple[float, ...]:
        """Values that are rounded to each grid point."""
        return tuple(sum(self._cell(self.counts, cell)) for cell in range(self.cells))

    @property
    def zero_share(self) -> float:
        """Share of the values that become 0."""
        return self.zeros / self.total

    @property
    def clamped_share(self) -> float:
        """Share of the values beyond the grid."""
        return self.clamped / self.total

    @property
    def centroids(self) -> tuple[float, ...]:
        """Mean place of the values of each cell, in steps; NaN for empty cells."""
        return tuple(
            place / count if count else math.nan for place, count in zip(self.place_sums, self.cell_counts, strict=True)
        )

    @property
    def profile(self) -> tuple[float, ...]:
        """Mean distribution inside a cell, (sub_bins,), summing to 1; the cell of 0 is left out where others hold any.

        Flat means that rounding errors are spread evenly, which is what error estimates assume.
        """
        others = [self._cell(self.counts, cell) for cell in range(self.cells) if cell != self.zero_cell]
        totals = [sum(column) for column in zip(*others, strict=True)]
        if not any(totals):
            totals = list(self._cell(self.counts, self.zero_cell))
        return tuple(value / sum(totals) for value in totals)

    def value_at(self, place: float) -> float:
        """Return the value of a place on the grid; NaN where each channel has its own scale."""
        return (place - self.zero_cell) * self.scale

    def _cell(self, bins: tuple[float, ...], cell: int) -> tuple[float, ...]:
        return bins[cell * self.sub_bins : (cell + 1) * self.sub_bins]


register(QuantizationHistogram)
