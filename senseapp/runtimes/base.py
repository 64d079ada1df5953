"""Interface of runtimes: write a network as a file, open it, time it, and make a quantizer of it.

The search for nodes to keep in float, times as a budget and the proof on the file know runtimes only from here and
from :mod:`~senseapp.runtimes.quantizers`. A new one is a :class:`~senseapp.descriptions.runtimes.RuntimeDescription`
that names a :class:`Runtime`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from senseapp.compressions.quantization.grid import IntegerWeight
from senseapp.core.errors import InvalidSpec
from senseapp.descriptions import DENSE_BITS
from senseapp.descriptions.runtimes import RUNTIMES, RuntimeDescription
from senseapp.networks.network import Network
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.records.deployment import INT8_BITS, LayerTime, LayerTimes, OperatorTime
from senseapp.records.executed import ExecutedNode
from senseapp.runtimes.call_times import TURNS, quick_seconds, times, usual_input
from senseapp.runtimes.quantizers import DefaultInt8, Fitting, Quantizer

if TYPE_CHECKING:
    from senseapp.runtimes.open_file import OpenFile


Exporter = Callable[[nn.Module], bytes]
"""Writes networks of one architecture as float files; raises InvalidSpec for those that cannot be written."""


class Runtime(ABC):
    """A runtime on this machine. What only int8 needs is refused unless its description says that it has it.

    Every int8 file of it has the :attr:`int8_note`. A deployment kit installs the :attr:`kit_package`, where there are
    kits. Where it :attr:`may_saturate`, its kernels differ between processors with and without VNNI.
    """

    description: RuntimeDescription
    int8_note: str = ""
    kit_package: str = ""
    may_saturate: bool = False

    # ---- files and networks

    @abstractmethod
    def exporter(self, model: nn.Module, example: Tensor) -> Exporter:
        """Return what writes ``model``, the uncompressed network, and compressed copies of it.

        Images ``example``, (N, C, H, W), are on the processor; what files have in common is found once.
        """

    @abstractmethod
    def open(self, content: bytes, *, threads: int | None = None) -> Network:
        """Open a file: on ``threads``, which times are taken on, or where only outputs count as many as torch has.

        Raises InvalidSpec if the runtime cannot open it.
        """

    def as_it_is(self, content: bytes, *, threads: int | None = None) -> OpenFile:
        """Open a file of any program, whatever its layout, for a check.

        Raises InvalidInput if the runtime cannot open it, or it does not take one batch of images.
        """
        raise InvalidSpec(f"Files of {self.description.label} are not checked here.")

    @abstractmethod
    def machine(self) -> str:
        """Return the processor and the runtime, for people: ``AMD EPYC without VNNI, onnxruntime 1.32.0``."""

    def layers_of_nodes(self, content: bytes, layers: Collection[str]) -> dict[str, str]:
        """Return the layer, one of ``layers``, that each node of a float file belongs to, where one does."""
        return {}

    # ---- what files hold beside the network

    def format_version(self, content: bytes) -> int:
        """Check a file that is delivered, and return the version of its format; 0 where it has none."""
        return 0

    def described(self, content: bytes, told: Mapping[str, str]) -> bytes:
        """Return a file that holds texts about itself, by name as of :func:`.told_of`, where its format has these."""
        return content

    def class_names(self, content: bytes) -> tuple[str, ...]:
        """Return the class names that a file of :meth:`described` carries; empty where it has none."""
        return ()

    def kit(self, name: str) -> dict[str, str]:
        """Return a script and a notebook that run the file called ``name``."""
        if not self.kit_package:
            return {}
        script = resources.files("senseapp.runtimes").joinpath("predict.py").read_text("utf-8")
        notebook = _notebook(name, self.description.name, self.kit_package)
        return {"predict.py": script, "predict.ipynb": json.dumps(notebook, indent=1)}

    def recipes(self, content: bytes) -> dict[str, str]:
        """Return which nodes of an int8 file compute in float in the words of converters: texts by name of file."""
        return {}

    def with_quantized_weights(self, content: bytes, integers: Mapping[str, IntegerWeight]) -> tuple[bytes, int]:
        """Return a float file that computes the same, and of how many nodes it stores the weights as integers.

        ``integers`` are those of the layers of nodes with rounded weights, by node.
        """
        return content, 0

    def input_words(self, shape: Sequence[int]) -> str:
        """Return the description of a file's input, for images of ``shape`` (C, H, W)."""
        return f"images, float32, is (N, {', '.join(map(str, shape))})"

    def changes(self, content: bytes) -> tuple[str, ...]:
        """Return in sentences what differs between the uploaded file and ``content``; none for other networks."""
        return ()

    # ---- uploaded files

    def for_file(self, opened: OpenedOnnx) -> Runtime:
        """Return the runtime for a network that came from an ONNX file; one that edits that file where this can."""
        return self

    def in_place(self, network: bytes, file: bytes) -> bytes:
        """Return an int8 ``file`` of a quantizer of ``network`` as it is delivered."""
        return file

    # ---- int8

    def quantizer(self, content: bytes, calibration: Sequence[Tensor]) -> Quantizer:
        """Return a quantizer of a float file whose ranges are the least and largest values on ``calibration``."""
        raise InvalidSpec(f"{self.description.label} has no files in int8 here. Choose a file in float.")

    def fitted_quantizer(self, content: bytes, fitting: Fitting) -> Quantizer:
        """Return a quantizer of a float file that does as little harm as this runtime knows how to do."""
        return self.quantizer(content, fitting.batches)

    def default_int8(self, content: bytes, fitting: Fitting) -> DefaultInt8 | None:
        """Return the file of the runtime's own quantizer in its usual setting; None without one.

        It is what our files are compared with.
        """
        return None

    def on_other_processors(self, content: bytes) -> OpenFile | None:
        """Return an int8 file as processors of the other kind compute it: with VNNI if this one has none, else without.

        On those without, sums of products of 8 bits saturate. None where both compute alike.

        Raises UnsupportedModel if it cannot be computed so.
        """
        return None

    # ---- times

    def times(self, networks: Sequence[Network], images: Tensor, *, turns: int = TURNS) -> list[list[float]]:
        """Return, for each network, the seconds of ``turns`` calls on ``images``, as ``call_times`` takes them."""
        return times(networks, images, turns=turns)

    def time_layers(
        self, content: bytes, quantizer: Quantizer | None, owners: Mapping[str, str], threads: int = 1, batch: int = 1
    ) -> LayerTimes:
        """Return the times of layers of a float file in float, and in int8 with what a border between both costs.

        ``quantizer`` writes the same network in int8; None times it in float alone. ``owners`` has the layer that a
        node belongs to, for the nodes of layers. Without a profile, times of files are shared by the
        multiply-accumulates of :meth:`executed`.

        Raises InvalidSpec if none of them can be timed.
        """
        macs = Counter[str]()
        for node in self.executed(content):
            if node.name in owners:
                macs[owners[node.name]] += node.macs + 1  # what is no product takes time too
        if not macs:
            raise InvalidSpec(f"No layer of this {self.description.label} file can be timed.")
        files = {DENSE_BITS: content} | ({} if quantizer is None else {float(INT8_BITS): quantizer.write()})
        networks = [self.as_it_is(file, threads=threads) for file in files.values()]
        shape = [size or batch for size in (networks[0].fixed_batch, *networks[0].facts.image_shape)]
        calls = self.times(networks, torch.from_numpy(usual_input(shape, np.float32)))
        times = [
            LayerTime(layer=layer, level=level, seconds=quick_seconds(call) * part / macs.total())
            for level, call in zip(files, calls, strict=True)
            for layer, part in macs.items()
        ]
        return LayerTimes(times=tuple(times), source=f"{self.machine()}, shared by multiply-accumulates")

    def operators(self, content: bytes, *, threads: int = 1, batch: int = 1) -> tuple[OperatorTime, ...]:
        """Return the time of a call of a file by kind of operator; empty if the runtime does not report it."""
        return ()

    def executed(self, content: bytes) -> tuple[ExecutedNode, ...]:
        """Return the nodes that the runtime executes in a call of a file; empty if it does not report them."""
        return ()


def runtime_named(name: str) -> Runtime:
    """Return the runtime of that name; raise InvalidSpec, with the names there are, if there is none."""
    return cast(Runtime, RUNTIMES.named(name).load())


def runtime_for(name: str, uploaded: OpenedOnnx | None) -> Runtime:
    """Return the runtime of that name for a network, from an ``uploaded`` ONNX file or none."""
    runtime = runtime_named(name)
    return runtime if uploaded is None else runtime.for_file(uploaded)


def _notebook(name: str, runtime: str, package: str) -> dict[str, Any]:
    call = f'predict("{name}", "picture.jpg", "{runtime}")  # path of a picture of yours'
    about = f"# {name}\n\nRuns the network on a picture. Put this beside `{name}` and `predict.py`."
    code = {"install": f"%pip install -q {package} numpy pillow",
            "predict": f"from predict import predict\n\n{call}"}  # fmt: skip
    cells: list[dict[str, Any]] = [{"id": "about", "cell_type": "markdown", "metadata": {}, "source": about}]
    shared: dict[str, Any] = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells += [{"id": each, "source": source, **shared} for each, source in code.items()]
    return {"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
