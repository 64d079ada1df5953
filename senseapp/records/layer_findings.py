"""Findings on a layer (values on their quantization grid, why it is fragile), nodes of a file, and int8 here."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from senseapp.core.texts import first_names, plural
from senseapp.metrics import METRICS, MetricChange
from senseapp.records.deployment import Median
from senseapp.records.measurement import RunResult, Status
from senseapp.records.spec import HistogramSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationHistogram:
    """A histogram whose bins divide the cells of a quantization grid.

    A cell holds all values that are rounded to one grid point; it is cut into ``sub_bins`` bins of equal width. Values
    beyond the grid are counted in the outermost bin, and in ``clamped``. Places on the grid are counted in steps from
    its first point.

    Attributes:
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
        counts = np.reshape(self.counts, (self.cells, self.sub_bins)).sum(1).tolist()
        pairs = zip(self.place_sums, counts, strict=True)
        return tuple(place / count if count else math.nan for place, count in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that stands out, in a sentence with its figure; ``times`` is how far, above 1."""

    kind: Literal["scaled channel", "outlier weight", "outlier input"]
    sentence: str
    times: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change of how the layer is compressed, and what the layer alone loses with it."""

    label: str
    change: MetricChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Findings on one layer at one level, the one that stands out most first; empty where nothing does.

    ``change`` is what the layer alone loses as the run compressed it; ``remedies`` were measured on the same images,
    the best comes first.
    """

    layer: str
    level: float
    findings: tuple[Finding, ...]
    change: MetricChange
    remedies: tuple[Remedy, ...]


def shares_of_damage(result: RunResult, layer: str, metric: str) -> dict[float, float]:
    """Return by level the share of ``layer`` in what all layers lose alone; levels at which none loses are left out."""
    found = {}
    for level in result.compression.scale.sorted(result.levels):
        losses = {
            item.layer: max(0.0, change.delta)
            for item in result.at(level)
            if item.status is Status.MEASURED and (change := item.change(metric)) is not None
        }
        total = sum(losses.values())
        if total > 0 and layer in losses:
            found[level] = losses[layer] / total
    return found


# ---- effect of the rounding of each node on the outputs of a quantized file


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDamage:
    """One node of a quantized file, and the damage of the file ``without`` its rounding: with it alone in float.

    Its ``weights_known`` were found in the float file; else only its inputs were put back.
    """

    name: str
    op: str
    without: float
    weights_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedNodesReport:
    """The damage of a quantized file beside its float file, and of it without the rounding of each node.

    ``metric`` is that of damage to the float file's answers: ``whole`` of the file, ``rest`` with every node in
    float, as of weights that were changed. Nodes are in the order of the file.
    """

    reference: str
    candidate: str
    metric: str
    images: int
    whole: float
    rest: float
    nodes: tuple[NodeDamage, ...]
    notes: tuple[str, ...] = ()

    def recovered(self, node: NodeDamage) -> float:
        """Return how much less damage there is with ``node`` in float; negative where there is more."""
        return self.whole - node.without

    @property
    def ranked(self) -> tuple[NodeDamage, ...]:
        """The nodes, those first that recover most."""
        return tuple(sorted(self.nodes, key=lambda node: node.without))

    @property
    def verdict(self) -> str:
        """One or two sentences: how good the file is, and which nodes are to blame."""
        label = METRICS[self.metric].label
        good = f"{label} of {self.candidate} is {self.whole:.4g} on {plural(self.images, 'image')}"
        blamed = [node for node in self.ranked if self.recovered(node) > self.whole / len(self.nodes)]
        if self.whole <= 0 or not blamed:
            return f"{good}; no node stands out."
        parts = first_names([f"{node.name} ({self.recovered(node) / self.whole:.0%})" for node in blamed])
        return f"{good}. Back in float alone, these recover most of it: {parts}."


# ---- time of a network all in int8 on this machine, beside its time in float


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Timing:
    """Time of a call of a first file in int8, as a multiple of float's, before a file is searched for.

    The processor computes ``products`` of int8 with ``VNNI``, ``AMX`` or nothing of its own.
    """

    ratio: Median
    machine: str
    products: str

    @property
    def pays(self) -> bool:
        """Whether int8 may be quicker: False where the whole interval says that it is not."""
        return self.ratio.low < 1
