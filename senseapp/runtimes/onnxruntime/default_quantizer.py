"""The best int8 file of onnxruntime's own quantizer, over the usual settings of quantize_static."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from onnxruntime.quantization import CalibrationMethod, QuantType
from torch import Tensor

from senseapp.core.steps import SEPARATOR, Trying
from senseapp.core.texts import plural
from senseapp.runtimes.onnx_network import saturates
from senseapp.runtimes.onnxruntime.int8 import quantized
from senseapp.runtimes.onnxruntime.rounding.ranges import AT_ONCE, rounded_tensors, tensors_of
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from senseapp.runtimes.quantizers import DefaultInt8

Method = Literal["minmax", "entropy", "percentile"]
_METHODS: dict[Method, tuple[CalibrationMethod, str]] = {
    "minmax": (CalibrationMethod.MinMax, "min-max"),
    "entropy": (CalibrationMethod.Entropy, "entropy"),
    "percentile": (CalibrationMethod.Percentile, "99.999th percentile"),
}
_ONE_BATCH_AT_A_TIME = {"CalibStridedMinMax": 1, "CalibTensorRangeSymmetric": False}
"""Histograms are added up batch by batch; else the quantizer holds every tensor of every image in memory."""
_HISTOGRAM_VALUES = 2**28  # of all tensors and images: about ten seconds of numpy
_LEAST_HISTOGRAM_IMAGES = 8  # a histogram of fewer says too little
_SETTINGS = 7  # that are usually tried
_CLEARLY_LESS = 0.95  # of the damage of unsigned activations, which slower signed ones must do to be the best
_NO_HISTOGRAMS = (
    "Entropy and percentile calibration by onnxruntime's own quantizer were not tried: with so many activations they "
    "would take minutes."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultSetting:
    """One setting of ``quantize_static``; weights are signed, activations have a scale and a zero point.

    Attributes:
        per_channel: a scale of weights for each output channel rather than one for the tensor.
        signed: int8 rather than uint8 activations.
        method: how ranges of activations are calibrated.
        reduce_range: 7 bits for weights, which its documentation advises for processors without VNNI.
        images: that ranges are calibrated on, where these are not all; 0 for all.
    """

    per_channel: bool = True
    signed: bool = False
    method: Method = "minmax"
    reduce_range: bool = False
    images: int = 0

    @property
    def words(self) -> str:
        """The setting for people."""
        parts = (
            "quantize_static",
            "per channel" if self.per_channel else "per tensor",
            f"{'signed' if self.signed else 'unsigned'} activations",
            *(("7-bit weights",) if self.reduce_range else ()),
            _METHODS[self.method][1] + (f" on {plural(self.images, 'image')}" if self.images else ""),
        )
        return ", ".join(parts)


def best_default(
    network: bytes,
    batches: Sequence[Tensor],
    *,
    damage_of: Callable[[bytes], float],
    reduce_range: bool = False,
    trying: Trying = lambda _setting: nullcontext(),
    progress: Callable[[str], None] = lambda _sentence: None,
    has_time: Callable[[], bool] = lambda: True,
) -> DefaultInt8 | None:
    """Return the file of onnxruntime's own quantizer in the setting that does least harm; None where none can be made.

    Scales by channel and by tensor are tried with signed and unsigned activations; in the best of these four, other
    calibrations, and then the other number of bits for weights. These have 8 first, but 7 on a processor on which 8
    saturate, as that would decide between the other settings. With ``reduce_range`` all have 7. Signed activations are
    the best only with clearly less harm: on EfficientNet-Lite0 both did the same, and signed ones took half as long
    again or more on a processor with VNNI.

    Ranges come from ``batches``, (N, C, H, W); those of histograms from as many of their images as take some seconds.
    ``damage_of`` judges, on other images; a setting that fails is left out where ``trying`` takes its error. After the
    first, settings are tried while one ``has_time``.
    """
    with tempfile.TemporaryDirectory() as folder:
        search = _DefaultSearch(_DefaultFiles(network, batches, Path(folder)), damage_of, trying, progress, has_time)
        first = DefaultSetting(reduce_range=reduce_range or saturates(RuntimeModel))
        for per_channel in (True, False):
            search.tried(*(replace(first, per_channel=per_channel, signed=signed) for signed in (False, True)))
        if search.best is None:
            return None
        images = search.files.histogram_images(search.best[1])
        if images and has_time():
            best = replace(search.best[0], images=0 if images == sum(map(len, batches)) else images)
            search.tried(replace(best, method="entropy"), replace(best, method="percentile"))
        if not reduce_range:
            search.tried(replace(search.best[0], reduce_range=not first.reduce_range))
        setting, content = search.best
        skipped = () if images else (_NO_HISTOGRAMS,)
        return DefaultInt8(content=content, setting=setting.words, notes=(_tried(search.count), *skipped))


def _tried(count: int) -> str:
    return (
        f"onnxruntime's own quantizer was tried in {plural(count, 'setting')}, on the images that choose; the best of "
        "them is shown."
    )


class _DefaultFiles:
    """Files of onnxruntime's quantizer for one network; ranges are calibrated once for each method."""

    def __init__(self, network: bytes, batches: Sequence[Tensor], folder: Path) -> None:
        self._content, self._batches, self._folder = network, batches, folder
        self._network = folder / "float.onnx"
        self._network.write_bytes(network)
        size = RuntimeModel(network).fixed_batch or AT_ONCE
        self._few = [part for batch in batches for part in torch.split(batch, size)]

    def histogram_images(self, file: bytes) -> int:
        """Return how many images histograms are made of, given an int8 ``file``; 0 where these would be too few."""
        first = next(tensors_of(self._content, self._few[:1], rounded_tensors(file)))
        values = sum(each.numel() for each in first.values()) / len(self._few[0])
        images = sum(map(len, self._batches))
        most = int(_HISTOGRAM_VALUES / max(values, 1))
        return min(images, most) if most >= _LEAST_HISTOGRAM_IMAGES else 0

    def write(self, setting: DefaultSetting) -> bytes:
        """Return the file of one setting."""
        is_histogram = setting.method != "minmax"
        batches = _first(self._few, setting.images) if is_histogram else self._batches
        return quantized(
            self._network,
            self._folder / "int8.onnx",
            batches,
            calibration_cache_path=self._folder / f"{setting.method}.json",
            calibrate_method=_METHODS[setting.method][0],
            activation_type=QuantType.QInt8 if setting.signed else QuantType.QUInt8,
            per_channel=setting.per_channel,
            reduce_range=setting.reduce_range,
            extra_options=_ONE_BATCH_AT_A_TIME if is_histogram else {},
        )


def _first(batches: Sequence[Tensor], images: int) -> list[Tensor]:
    """Return the first batches that have at least so many images together; all for 0."""
    found, count = [], 0
    for batch in batches:
        if images and count >= images:
            break
        found.append(batch)
        count += len(batch)
    return found


@dataclass
class _DefaultSearch:
    files: _DefaultFiles
    damage_of: Callable[[bytes], float]
    trying: Trying
    progress: Callable[[str], None]
    has_time: Callable[[], bool]
    best: tuple[DefaultSetting, bytes] | None = None
    least: float = float("inf")
    count: int = 0

    def tried(self, *settings: DefaultSetting) -> None:
        """Measure these settings; the best so far stays."""
        for setting in settings:
            if self.best is not None and not self.has_time():
                return
            self.progress(f"{self.count} of about {_SETTINGS}{SEPARATOR}{setting.words}")
            with self.trying(f"onnxruntime's own quantizer, {setting.words}"):
                content = self.files.write(setting)
                damage = self.damage_of(content)
                self.count += 1
                slower = self.best is not None and setting.signed and not self.best[0].signed
                if self.best is None or damage < (_CLEARLY_LESS if slower else 1) * self.least:
                    self.best, self.least = (setting, content), damage
