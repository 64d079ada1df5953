"""Match of the rows of a report with layers: by name, or by order if names are lost.

A name belongs to the layer whose dotted name it holds, the longest of several, whether its parts are separated by dots,
slashes or underscores. A fused operation names several: its time is shared out among their layers by their
multiply-accumulates. Rows without such a name are assigned by order only if the report has as many products
(convolutions and linear layers) as the network calls layers, of fitting kinds and shapes at each place, and no name
speaks against it. Whatever is not a plain match is noted, and what is not matched is listed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from senseapp.core.errors import InvalidFile
from senseapp.core.texts import listed, plural
from senseapp.records.deployment import LayerTime, LayerTimes
from senseapp.records.profile import LayerProfile, ModelProfile
from senseapp.store.device_times.base import Report, ReportRow

_OF_NO_LAYER = ("Reformatting CopyNode", "{ForeignNode[")
"""Beginnings of TensorRT's names that hold those of layers without being theirs: a change of layout, and everything
between two layers in one row."""
_FUSED = re.compile(r"\|\||\s\+\s|[;,]")  # blanks beside it are removed later: a pattern of them takes quadratic time
_LONGEST_NAME = 2000  # characters that are looked at
_WORDS = re.compile(r"[A-Za-z0-9]+")
Parts = tuple[str, ...]
Kind = Literal["depthwise", "transposed", "conv", "linear"]


def matched(report: Report, profile: ModelProfile, level: float, shown: str) -> LayerTimes:
    """Return the times of the layers of ``profile`` at ``level`` in the report called ``shown``.

    Raises:
        InvalidFile: no row is of a layer; one sentence.
    """
    names = _Names(profile.layers)
    owners = [names.owners(row) for row in report.rows]
    by_order = _by_order(report, profile, owners)
    owners = [own or ((by_order[place],) if place in by_order else ()) for place, own in enumerate(owners)]
    seconds: defaultdict[str, float] = defaultdict(float)
    macs = {layer.name: layer.macs for layer in profile.layers}
    for row, own in zip(report.rows, owners, strict=True):
        for layer, share in _shares(own, macs):
            seconds[layer] += share * row.seconds
    unmatched = [row for row, own in zip(report.rows, owners, strict=True) if not own]
    if not seconds:
        named = f": it names {listed(row.name for row in unmatched)}" if unmatched else ""
        raise InvalidFile(f"{shown} has no time of any layer of this network{named}.")
    other = sum(row.seconds for row in unmatched)
    if report.whole_seconds is not None:
        other = max(0.0, report.whole_seconds - sum(seconds.values()))
    return LayerTimes(
        times=tuple(LayerTime(layer=layer, level=level, seconds=spent) for layer, spent in seconds.items()),
        other_seconds=other,
        source=shown,
        unmatched=tuple(dict.fromkeys(row.name for row in unmatched)),
        notes=(
            *report.notes,
            *_notes(report, owners, by_order, shown),
            *_misses(unmatched, profile.layers, seconds, shown),
        ),
    )


# ---- by name


class _Names:
    """The layers of a network, found in names of other programs by their parts."""

    def __init__(self, layers: Sequence[LayerProfile]) -> None:
        self._exact = {layer.name for layer in layers}
        self._layers: dict[Parts, str] = {}  # empty where several layers have these parts
        for name in self._exact:
            parts = tuple(_WORDS.findall(name))
            self._layers[parts] = "" if parts in self._layers else name
        self._depth = max(map(len, self._layers), default=0)

    def owners(self, row: ReportRow) -> tuple[str, ...]:
        """Return the layers that a row names, each once."""
        if row.name.startswith(_OF_NO_LAYER):
            return ()
        parts = row.modules or _FUSED.split(row.name[:_LONGEST_NAME])
        return tuple(dict.fromkeys(own for part in parts if (own := self._owner(part))))

    def _owner(self, text: str) -> str:
        text = text.strip("[] \t\r\n")
        if text in self._exact:
            return text
        found = (self._layers.get(parts, "") for parts in self._parts(text))
        return max((own for own in found if own and _may_stand_in(text, own)), key=len, default="")

    def _parts(self, text: str) -> Iterator[Parts]:
        """Yield every sequence of parts of ``text`` that is no longer than the name of a layer."""
        words = _WORDS.findall(text)
        for first in range(len(words)):
            for length in range(1, min(self._depth, len(words) - first) + 1):
                yield tuple(words[first : first + length])


def _may_stand_in(text: str, layer: str) -> bool:
    """Return whether a name may mean ``layer``: one of digits alone stands in many names, and only in paths for it."""
    return re.search("[A-Za-z]", layer) is not None or f"/{layer}/" in f"/{text.strip('/')}/"


# ---- by order


def _by_order(report: Report, profile: ModelProfile, owners: Sequence[tuple[str, ...]]) -> dict[int, str]:
    """Return the layer of each row without a name of one, by place; empty where the order does not fit."""
    products = [place for place, row in enumerate(report.rows) if owners[place] or kind_of(row.kind) is not None]
    calls = _calls(profile)
    unnamed = [place for place in products if not owners[place]]
    if not unnamed or not report.in_order or len(products) != len(calls):
        return {}
    for place, layer in zip(products, calls, strict=True):
        row, own = report.rows[place], owners[place]
        if own and own != (layer.name,):
            return {}
        if not own and not (_fits(kind_of(row.kind), layer) and _fits_shape(row.output_shape, layer)):
            return {}
    return {place: layer.name for place, layer in zip(products, calls, strict=True) if not owners[place]}


def _calls(profile: ModelProfile) -> list[LayerProfile]:
    """Return the layers as the network calls them, one that is called twice twice."""
    layers = {layer.name: layer for layer in profile.layers}
    flow = [layers[node.name] for node in profile.flow if node.kind == "layer" and node.name in layers]
    return flow or sorted((layer for layer in layers.values() if layer.runs), key=lambda layer: layer.order)


def kind_of(operator: str) -> Kind | None:
    """Return the kind of product of an operator's name; None if it is none with weights.

    >>> [kind_of(name) for name in ("DEPTHWISE_CONV_2D", "Convolution (NHWC, F32) IGEMM", "FULLY_CONNECTED", "Add")]
    ['depthwise', 'conv', 'linear', None]
    """
    text = re.sub(r"[^a-z0-9]", "", operator.lower())
    if "depthwiseconv" in text or "dwconv" in text:
        return "depthwise"
    if "convtranspose" in text or "transposeconv" in text or "deconv" in text or "convolutionbackprop" in text:
        return "transposed"
    if re.search("conv(?!ert)", text):
        return "conv"
    is_linear = re.search("fullyconnected|gemm|matmul|innerproduct|addmm|(?<!bi)(?<!non)linear", text)
    return "linear" if is_linear and "batch" not in text else None


def _fits(kind: Kind | None, layer: LayerProfile) -> bool:
    """Return whether a layer may run as a product of that kind; tools compute 1 × 1 as either, depthwise as both."""
    kernel = layer.weight_shape[2:]
    if "Transpose" in layer.layer_type:
        return kind == "transposed"
    if not kernel or all(size == 1 for size in kernel):
        return kind in ("conv", "linear")
    is_depthwise = layer.weight_shape[1] == 1 and layer.weight_shape[0] > 1 and layer.input_shape[:1] != (1,)
    return kind == "conv" or (kind == "depthwise" and is_depthwise)


def _fits_shape(shape: Sequence[int], layer: LayerProfile) -> bool:
    """Return whether an output has the height and width of the layer's, in either order of memory; unknown ones do."""
    own = layer.output_shape
    if not shape or not own or len(shape) != len(own) or "Linear" in layer.layer_type:
        return True
    return tuple(shape[1:]) == own[1:] or tuple(shape[:-1]) == own[1:]


# ---- shares and notes


def _shares(owners: Sequence[str], macs: Mapping[str, int]) -> list[tuple[str, float]]:
    """Return the layers of a row with their shares of its time, by multiply-accumulates."""
    total = sum(macs[own] for own in owners)
    return [(own, macs[own] / total if total else 1 / len(owners)) for own in owners]


def _notes(report: Report, owners: Sequence[tuple[str, ...]], by_order: Mapping[int, str], shown: str) -> Iterator[str]:
    """Yield how rows were assigned where that was no plain match."""
    if by_order:
        rows = plural(len(by_order), "row")
        yield f"{rows} of {shown} name no layer: they were assigned in order, which fits in number and kind."
    if fused := [row.name for row, own in zip(report.rows, owners, strict=True) if len(own) > 1]:
        rows = plural(len(fused), "row")
        yield f"{rows} of {shown} are of several layers, and shared out by their multiplications: {listed(fused)}."


def _misses(
    unmatched: Sequence[ReportRow], layers: Iterable[LayerProfile], timed: Iterable[str], shown: str
) -> Iterator[str]:
    """Yield which rows are of no layer, and which layers have no time."""
    known = set(timed)
    if unmatched:
        rows, spent = plural(len(unmatched), "row"), 1000 * sum(row.seconds for row in unmatched)
        yield f"{rows} of {shown} of no layer, {spent:.3g} ms together: {listed(row.name for row in unmatched)}."
    if missing := [layer.name for layer in layers if layer.runs and layer.name not in known]:
        yield f"{plural(len(missing), 'layer')} without a time in {shown}: {listed(missing)}."
