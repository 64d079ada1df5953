"""A runtime from outside: everything that an engineer writes for a new one.

Its file is a line of JSON and a program of torch, compressed; in int8, weights lie on a grid of 8 bits. Its time is
made up: so much for each byte of the file.
"""

from __future__ import annotations

import copy
import io
import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidSpec
from senseapp.descriptions.runtimes import RuntimeDescription
from senseapp.networks.loaded import Preprocessing
from senseapp.networks.network import Network
from senseapp.reconstruct.write import exported_program
from senseapp.records.deployment import Conversion, LayerTime, LayerTimes
from senseapp.runtimes.base import Exporter, Int8Node, Quantizer, Runtime, RuntimeNetwork

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
)
_HEAD = b"TOY "
_STEPS = 127
_SECONDS_OF_A_BYTE = 1e-9


def packed(program: bytes, head: Mapping[str, object]) -> bytes:
    return _HEAD + json.dumps(head).encode() + b"\n" + zlib.compress(program)


def unpacked(content: bytes) -> tuple[dict[str, list[str]], torch.export.ExportedProgram]:
    if not content.startswith(_HEAD):
        raise InvalidSpec("The toy runtime cannot open this network: it is no toy file.")
    head, _, program = content.removeprefix(_HEAD).partition(b"\n")
    return json.loads(head), torch.export.load(io.BytesIO(zlib.decompress(program)))


class ToyFile(RuntimeNetwork):
    """An open file."""

    runtime_label = TOY.label

    def __init__(self, content: bytes) -> None:
        self.num_bytes = len(content)
        self._module = unpacked(content)[1].module()

    @property
    def output_names(self) -> tuple[str, ...]:
        return ("scores",)

    def run(self, batch: Tensor) -> object:
        with torch.inference_mode():
            return self._module(batch.cpu().contiguous())


class ToyExporter(Exporter):
    """Writes programs of torch."""

    def write(self, model: nn.Module) -> bytes:
        return packed(exported_program(copy.deepcopy(model).cpu(), self.example), {})


class ToyQuantizer(Quantizer):
    """Rounds weights to 127 steps of one size for each tensor; a node is called like its weight."""

    def __init__(self, network: bytes) -> None:
        self.network = network
        self._weights = _weights(network)

    def write(self, *, but: Collection[str] = ()) -> bytes:
        head, program = unpacked(self.network)
        for name in self._weights:
            if name not in but:
                program.state_dict[name] = _rounded(self._weights[name])
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        return packed(buffer.getvalue(), head)

    def nodes(self, content: bytes) -> list[Int8Node]:
        changed = [name for name, each in _weights(content).items() if not torch.equal(each, self._weights[name])]
        return [Int8Node(name=name, readers=(after,)) for name, after in zip(changed, (*changed[1:], ""), strict=True)]


def _weights(content: bytes) -> dict[str, Tensor]:
    return {name: each for name, each in unpacked(content)[1].state_dict.items() if each.dim() > 1}


def _rounded(weight: Tensor) -> nn.Parameter:
    scale = weight.detach().abs().max() / _STEPS
    return nn.Parameter((weight.detach() / scale).round() * scale, requires_grad=False)


class ToyRuntime(Runtime):
    """Runs programs of torch."""

    description = TOY
    int8_note = "Toys round weights only."

    def exporter(self, model: nn.Module, example: Tensor) -> Exporter:
        return ToyExporter(model, example)

    def open(self, content: bytes, *, threads: int | None = None) -> ToyFile:
        return ToyFile(content)

    def machine(self) -> str:
        return "a made-up processor, toy runtime 1.0"

    def described(self, content: bytes, *, preprocessing: Preprocessing | None, class_names: Sequence[str]) -> bytes:
        head, _, program = content.removeprefix(_HEAD).partition(b"\n")
        return _HEAD + json.dumps(json.loads(head) | {"classes": list(class_names)}).encode() + b"\n" + program

    def class_names(self, content: bytes) -> tuple[str, ...]:
        return tuple(unpacked(content)[0].get("classes", []))

    def layers_of_nodes(self, content: bytes, layers: Collection[str]) -> dict[str, str]:
        owners = {name: name.rpartition(".")[0] for name in _weights(content)}
        return {node: layer for node, layer in owners.items() if layer in layers}

    @contextmanager
    def quantizer(self, content: bytes, calibration: Sequence[Tensor]) -> Iterator[Quantizer]:
        yield ToyQuantizer(content)

    def times(self, networks: Sequence[Network], images: Tensor, *, turns: int = 41) -> list[list[float]]:
        return [[network.num_bytes * _SECONDS_OF_A_BYTE * len(images)] * turns for network in networks]

    def time_layers(
        self, content: bytes, int8: bytes, owners: Mapping[str, str], *, threads: int = 1, batch: int = 1
    ) -> LayerTimes:
        layers = list(dict.fromkeys(owners.values()))
        times = {32.0: len(content), 8.0: len(int8)}
        return LayerTimes(
            times=tuple(
                LayerTime(layer=layer, level=level, seconds=_SECONDS_OF_A_BYTE * size / len(layers))
                for layer in layers
                for level, size in times.items()
            ),
            conversions=tuple(Conversion(first=one, second=other, seconds=0.0) for one, other in pairwise(layers)),
            source=f"measured on {self.machine()}",
            measured_here=True,
        )


OPERATIONS = ToyRuntime()
