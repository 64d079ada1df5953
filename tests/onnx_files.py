"""Exports of small networks, for the tests of ONNX files as a source of networks."""

import io
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn


def exported(
    module: nn.Module,
    *,
    side: int = 16,
    channels: int = 3,
    batch: int | None = None,
    free_size: bool = False,
    opset: int | None = None,
) -> bytes:
    """Return ``module`` as torch's older exporter writes it, norms unfolded; for any number of images, or ``batch``."""
    axes = {} if batch else {0: "batch"}
    axes |= {2: "height", 3: "width"} if free_size else {}
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            (torch.zeros(batch or 1, channels, side, side),),
            file,
            dynamo=False,
            input_names=["images"],
            output_names=["scores"],
            dynamic_axes={"images": axes} | ({} if batch else {"scores": {0: "batch"}}),
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            opset_version=opset,
        )
    return file.getvalue()


def newly_exported(module: nn.Module, *, side: int = 16, free: bool = False, optimize: bool = True) -> bytes:
    """Return ``module`` as torch's newer exporter writes it, for one image, or ``free`` for any number.

    ``optimize`` folds norms into weights.
    """
    file = io.BytesIO()
    shapes = ({0: torch.export.Dim("images", min=1, max=64)},) if free else None
    images = torch.zeros(2 if free else 1, 3, side, side)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(), (images,), dynamo=True, verbose=False, optimize=optimize, dynamic_shapes=shapes
        )
    assert program is not None
    program.save(file)
    return file.getvalue()


def fixed_to(content: bytes, batch: int, width: int) -> bytes:
    """Return the network in ``content``, of one output (N, width), for ``batch`` images and no other number.

    The image at place i has i added to all its scores, which no softmax shows; of a batch of one the first is taken.
    """
    model = onnx.load_from_string(content)
    places = np.repeat(np.arange(batch, dtype=np.float32)[:, None], width, axis=1)
    model.graph.initializer.append(numpy_helper.from_array(places, "places"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "first"))
    scores = model.graph.output[0].name
    if batch == 1:
        model.graph.node.append(helper.make_node("Gather", [scores, "first"], ["sum"], name="gather"))
    else:
        model.graph.node.append(helper.make_node("Add", [scores, "places"], ["sum"], name="add"))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, (batch, width)))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    return bytes(model.SerializeToString())


def write_export(path: Path, module: nn.Module, **how: int | bool) -> Path:
    """Write :func:`exported` to ``path`` and return it."""
    path.write_bytes(exported(module, **how))  # type: ignore[arg-type]
    return path
