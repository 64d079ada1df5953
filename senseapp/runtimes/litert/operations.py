"""LiteRT as a :class:`~senseapp.runtimes.base.Runtime`: networks of torch become files of one image a call."""

import copy
import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import litert_torch
import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import nested_outputs
from senseapp.compressions.quantization.grid import IntegerWeight
from senseapp.networks.network import OUTPUTS, nesting_text
from senseapp.networks.onnx.metadata import CLASSES
from senseapp.records.executed import ExecutedNode
from senseapp.runtimes.base import Exporter, Runtime
from senseapp.runtimes.call_times import processor
from senseapp.runtimes.litert import LITERT
from senseapp.runtimes.litert.file import BORDERS, layers_of, operators, parsed, texts, with_texts
from senseapp.runtimes.litert.model import LiteRtFile
from senseapp.runtimes.litert.quantizer import LiteRtQuantizer, recipes_of, with_stored_weights
from senseapp.runtimes.onnxruntime.int8 import ONLY_WEIGHTED
from senseapp.runtimes.quantizers import DefaultInt8, Fitting, Quantizer, library_call

_STATIC = "litert-quantizer, static_wi8_ai{}, min-max"


def _converted(example: Tensor, model: nn.Module) -> bytes:
    """Return ``model`` as a LiteRT file of one image a call."""
    private = copy.deepcopy(model).cpu().to(memory_format=torch.contiguous_format).eval()
    with library_call("This network cannot be written for LiteRT"), tempfile.TemporaryDirectory() as folder:
        with torch.no_grad():
            places = nested_outputs(torch.export.export(private, (example,)))
            path = Path(folder) / "network.tflite"
            litert_torch.convert(private, (example,)).export(str(path))
        content = path.read_bytes()
    return content if places == 0 else with_texts(content, {OUTPUTS: nesting_text(places).encode()})


class LiteRt(Runtime):
    """LiteRT on the processor of this computer, whose times are not those of a phone."""

    description = LITERT
    kit_package = "ai-edge-litert"
    int8_note = (
        "Times are of LiteRT on this computer, not of a phone: measure there with LiteRT's benchmark_model. Weights "
        "have 8 bits and a scale for each channel."
    )

    def exporter(self, model: nn.Module, example: Tensor) -> Exporter:
        """Return what converts networks; they are refused where the converter has no operator for a part."""
        return partial(_converted, example[:1].contiguous())

    def open(self, content: bytes, *, threads: int | None = None) -> LiteRtFile:
        """Open a LiteRT file; raises InvalidSpec where LiteRT cannot."""
        found = self.as_it_is(content, threads=threads)
        found.of_any_program = False
        return found

    def as_it_is(self, content: bytes, *, threads: int | None = None) -> LiteRtFile:
        """Open a LiteRT file of any program."""
        return LiteRtFile(content, threads=threads)

    def machine(self) -> str:
        """Return the processor and the version of LiteRT."""
        return f"{processor()}, LiteRT {version('ai-edge-litert')}"

    def layers_of_nodes(self, content: bytes, layers: Collection[str]) -> dict[str, str]:
        """Return the layer of each product, by the paths of modules that the converter leaves in names."""
        return layers_of(content, layers)

    # ---- what files hold beside the network

    def format_version(self, content: bytes) -> int:
        """Return the version of the file's schema."""
        return int(parsed(content).version)

    def described(self, content: bytes, told: Mapping[str, str]) -> bytes:
        """Return the file with these texts in its metadata."""
        return with_texts(content, {name: text.encode() for name, text in told.items()}) if told else content

    def class_names(self, content: bytes) -> tuple[str, ...]:
        """Return the class names in the file's metadata."""
        return tuple(json.loads(texts(content).get(CLASSES, b"[]")))

    def executed(self, content: bytes) -> tuple[ExecutedNode, ...]:
        """Return the operators of a file, which LiteRT executes as they are."""
        return tuple(
            ExecutedNode(name=each.name, kind=each.kind, in_integers=each.in_integers, macs=each.macs)
            for each in operators(content)
            if each.kind not in BORDERS
        )

    def recipes(self, content: bytes) -> dict[str, str]:
        """Return the recipe of LiteRT's quantizer."""
        return recipes_of(content)

    def with_quantized_weights(self, content: bytes, integers: Mapping[str, IntegerWeight]) -> tuple[bytes, int]:
        """Return the file with weights as integers of 8 or 4 bits, which LiteRT makes float."""
        return with_stored_weights(content, integers)

    # ---- int8

    def quantizer(self, content: bytes, calibration: Sequence[Tensor]) -> Quantizer:
        """Return a quantizer of a float file by LiteRT's own."""
        return LiteRtQuantizer(content, Fitting(batches=calibration))

    def fitted_quantizer(self, content: bytes, fitting: Fitting) -> Quantizer:
        """Return the same with fitted ranges, weights and biases."""
        found = LiteRtQuantizer(content, fitting)
        found.fit()
        return found

    def default_int8(self, content: bytes, fitting: Fitting) -> DefaultInt8:
        """Return the file of the quantizer's static recipe."""
        quantizer, setting = LiteRtQuantizer(content, fitting), _STATIC.format(fitting.activation_bits)
        quantizer.in_float = ()
        notes = tuple(each for each in quantizer.notes if each != ONLY_WEIGHTED)
        return DefaultInt8(content=quantizer.write(), setting=setting, notes=notes)


OPERATIONS = LiteRt()
