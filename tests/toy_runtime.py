"""A runtime from outside: everything that an engineer writes for a new one.

Its file is a line of JSON, a program of torch and weights, compressed; in int8, weights lie on a grid of 8 bits. Its
time is made up: so much for each byte of the file.
"""

from __future__ import annotations

import copy
import io
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.func import functional_call

from senseapp.core.errors import InvalidSpec
from senseapp.descriptions.runtimes import RuntimeDescription
from senseapp.networks.network import Network
from senseapp.networks.onnx.metadata import CLASSES
from senseapp.reconstruct.write import exported_program
from senseapp.records.deployment import Conversion, LayerTime, LayerTimes
from senseapp.runtimes.base import Exporter, Runtime
from senseapp.runtimes.quantizers import Quantizer

TOY = RuntimeDescription(
    name="toyrt",
    label="Toy runtime",
    file_title="Toy",
    suffix=".toy",
    operations="tests.toy_runtime:OPERATIONS",
    has_int8=True,
    opened_by="the toy runtime of a test",
    runs_on="in tests",
    loading='import toy; network = toy.open("{name}")',
    running="scores = network(images)",
    on_device="toyprof {name} > report.txt",
)
_HEAD = b"TOY "
_STEPS = 127
_SECONDS_OF_A_BYTE = 1e-9


def packed(program: bytes, weights: Mapping[str, Tensor], classes: Sequence[str] = ()) -> bytes:
    """Return a file of a compressed program whose own weights do not count."""
    head = json.dumps({"classes": list(classes), "program": len(program)}).encode()
    return _HEAD + head + b"\n" + program + zlib.compress(safetensors.torch.save(dict(weights)))


def unpacked(content: bytes) -> tuple[bytes, dict[str, Tensor], list[str]]:
    """Return the program, the weights and the class names of a file."""
    if not content.startswith(_HEAD):
        raise InvalidSpec("The toy runtime cannot open this network: it is no toy file.")
    written, _, rest = content.removeprefix(_HEAD).partition(b"\n")
    head = json.loads(written)
    program, weights = rest[: head["program"]], rest[head["program"] :]
    return program, safetensors.torch.load(zlib.decompress(weights)), head["classes"]


@lru_cache(maxsize=2)
def _module_of(program: bytes) -> nn.Module:
    return torch.export.load(io.BytesIO(zlib.decompress(program))).module()


class ToyFile:
    """An open file."""

    fixed_batch = None

    def __init__(self, content: bytes) -> None:
        self.num_bytes = len(content)
        program, self.weights, _ = unpacked(content)
        self._module = _module_of(program)

    def run(self, batch: Tensor) -> object:
        with torch.inference_mode():
            return functional_call(self._module, self.weights, (batch.cpu().contiguous(),))


def written(model: nn.Module, *, example: Tensor) -> bytes:
    """Return a network as a file, whose weights lie beside the program."""
    private = copy.deepcopy(model).cpu()
    weights = {
        name: each.detach().clone(memory_format=torch.contiguous_format) for name, each in private.named_parameters()
    }
    with torch.no_grad():
        for parameter in private.parameters():
            parameter.zero_()
    return packed(zlib.compress(exported_program(private, example)), weights)


class ToyQuantizer(Quantizer):
    """Rounds weights to 127 steps of one size for each tensor; a node is called like its weight."""

    def __init__(self, network: bytes) -> None:
        self.network = network
        self._program, self._weights, _ = unpacked(network)

    def write(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        left = {*but, *weights_only}
        rounded = {
            name: _rounded(each) if each.dim() > 1 and name not in left else each
            for name, each in self._weights.items()
        }
        return packed(self._program, rounded)

    def nodes(self, content: bytes) -> list[str]:
        found = unpacked(content)[1]
        return [name for name, each in self._weights.items() if not torch.equal(each, found[name])]


def _rounded(weight: Tensor) -> Tensor:
    scale = weight.abs().max() / _STEPS
    return (weight / scale).round() * scale


class ToyRuntime(Runtime):
    """Runs programs of torch."""

    description = TOY
    int8_note = "Toys round weights only."

    def exporter(self, model: nn.Module, example: Tensor) -> Exporter:
        return partial(written, example=example)

    def open(self, content: bytes, *, threads: int | None = None) -> ToyFile:
        return ToyFile(content)

    def described(self, content: bytes, told: Mapping[str, str]) -> bytes:
        program, weights, _ = unpacked(content)
        return packed(program, weights, json.loads(told.get(CLASSES, "[]")))  # they are in the head of a file

    def class_names(self, content: bytes) -> tuple[str, ...]:
        return tuple(unpacked(content)[2])

    def machine(self) -> str:
        return "a made-up processor, toy runtime 1.0"

    def layers_of_nodes(self, content: bytes, layers: Collection[str]) -> dict[str, str]:
        owners = {name: name.rpartition(".")[0] for name, each in unpacked(content)[1].items() if each.dim() > 1}
        return {node: layer for node, layer in owners.items() if layer in layers}

    def quantizer(self, content: bytes, calibration: Sequence[Tensor]) -> Quantizer:
        return ToyQuantizer(content)

    def times(self, networks: Sequence[Network], images: Tensor, *, turns: int = 41) -> list[list[float]]:
        return [[network.num_bytes * _SECONDS_OF_A_BYTE * len(images)] * turns for network in networks]

    def time_layers(
        self, content: bytes, quantizer: Quantizer, owners: Mapping[str, str], *, threads: int = 1, batch: int = 1
    ) -> LayerTimes:
        layers = list(dict.fromkeys(owners.values()))
        times = {32.0: len(content), 8.0: len(quantizer.write())}
        return LayerTimes(
            times=tuple(
                LayerTime(layer=layer, level=level, seconds=_SECONDS_OF_A_BYTE * size / len(layers))
                for layer in layers
                for level, size in times.items()
            ),
            conversions=tuple(Conversion(first=one, second=other, seconds=0.0) for one, other in pairwise(layers)),
            source=f"measured on {self.machine()}",
        )


OPERATIONS = ToyRuntime()
