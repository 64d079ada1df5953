"""Write the compressed model to files that other programs read without senseapp."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from senseapp.errors import InvalidSpec, SenseError
from senseapp.store.disk import replace_file, storage_errors
from senseapp.validation.apply import AppliedModel

__all__ = [
    "CHECKPOINT_SUFFIXES",
    "check_suffix",
    "exported_program",
    "onnx_model",
    "state_dict_bytes",
    "write_compressed",
]

CHECKPOINT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")


def write_compressed(applied: AppliedModel, path: Path, example: Tensor) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Write the state dict to ``path``, and beside it, where channels were removed, the whole network.

    The state dict has the keys of the model; where shapes did not change, the same architecture loads it with
    ``strict=True``. A structurally pruned network no longer fits its architecture, so it is also written as a
    ``.pt2`` program and as ONNX.

    Args:
        applied: the compressed model.
        path: ends in one of :data:`CHECKPOINT_SUFFIXES`.
        example: images (N, C, H, W) that the network takes.

    Returns:
        The files written, and sentences on those that could not be.

    Raises:
        InvalidSpec: the suffix names no form that is known.
        StorageFailed: a file cannot be written.
    """
    files, notes = {path: state_dict_bytes(applied.model, path.suffix)}, []
    if any(entry.compression == "pruning" for entry in applied.reached):
        writers: dict[str, Callable[[nn.Module, Tensor], bytes]] = {".pt2": exported_program, ".onnx": onnx_model}
        for suffix, write in writers.items():
            try:
                files[path.with_suffix(suffix)] = write(applied.model, example)
            except SenseError as error:
                notes.append(str(error))
    with storage_errors(f"the folder of {path.name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    for target, content in files.items():
        replace_file(target, content)
    return tuple(files), tuple(notes)


def check_suffix(suffix: str) -> None:
    """Require that ``suffix`` is one of :data:`CHECKPOINT_SUFFIXES`.

    Raises:
        InvalidSpec: it is not.
    """
    if suffix not in CHECKPOINT_SUFFIXES:
        raise InvalidSpec(
            f"A checkpoint's name ends in one of {', '.join(CHECKPOINT_SUFFIXES)}, got {suffix or 'no suffix'!r}."
        )


def state_dict_bytes(model: nn.Module, suffix: str) -> bytes:
    """Return the plain state dict of ``model`` in the form that ``suffix`` names.

    Raises:
        InvalidSpec: the suffix names no form that is known.
    """
    check_suffix(suffix)
    # Copies: safetensors takes neither tensors that share memory nor other memory orders.
    state = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in model.state_dict().items()
    }
    if suffix == ".safetensors":
        return safetensors.torch.save(state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def exported_program(model: nn.Module, example: Tensor) -> bytes:
    """Return ``model`` as a ``.pt2`` program that takes any number of images, or only one where that fails.

    Raises:
        InvalidSpec: torch cannot export this network.
    """
    buffer = io.BytesIO()
    torch.export.save(_export(model, example), buffer)
    return buffer.getvalue()


def onnx_model(model: nn.Module, example: Tensor) -> bytes:
    """Return ``model`` as ONNX; the number of images is free where torch can export it so.

    Raises:
        InvalidSpec: torch cannot export this network.
    """
    try:
        program = torch.onnx.export(_export(model, example), dynamo=True, verbose=False)
        if program is None:
            raise RuntimeError("nothing was exported")
        return bytes(program.model_proto.SerializeToString())
    except SenseError:
        raise
    except Exception as error:  # the exporter raises errors of many packages
        raise InvalidSpec(f"This network cannot be written as ONNX: {_first_line(error)}") from error


def _export(model: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    pair = torch.cat([example, example])[:2].contiguous()  # torch takes one image for a fixed number
    plain = model.to(memory_format=torch.contiguous_format)
    try:
        return torch.export.export(plain, (pair,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception:  # a network that reads its batch size cannot be exported for any; one image always has its size
        try:
            return torch.export.export(plain, (pair[:1],))
        except Exception as error:  # as above
            raise InvalidSpec(f"This network cannot be exported by torch: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"
