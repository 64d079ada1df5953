"""Files of the compressed model that other programs read without senseapp: state dicts, ``.pt2`` programs, ONNX."""

import copy
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import activations_out_of_place, nested_outputs, without_stack_traces
from senseapp.compressions.quantization.grid import IntegerWeight
from senseapp.core.errors import InvalidSpec, SenseError, first_line_of
from senseapp.core.files import replace_file, storage_errors
from senseapp.descriptions import Effect
from senseapp.networks.network import OUTPUTS, nesting_text
from senseapp.networks.onnx.difference import difference
from senseapp.networks.onnx.metadata import described
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.networks.onnx.write import with_weights
from senseapp.reconstruct.apply import AppliedModel
from senseapp.records.deployment import INTEGERS, ONNX, PROGRAM, SPARSE
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import ValidationResult

WRITTEN_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
_SCALE, _ZERO_POINT = ".scale", ".zero_point"


def write_compressed(
    applied: AppliedModel,
    path: Path,
    example: Tensor,
    *,
    uploaded: OpenedOnnx | None = None,
    told: Mapping[str, str] | None = None,
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Write the state dict to ``path``, next to it a small file of it, and the network if channels were removed.

    The state dict has the keys of the model; where shapes did not change, the same architecture loads it with
    ``strict=True``. The small file holds the same with zeros compressed, and quantized weights as integers; see
    :mod:`senseapp.records.deployment` for what reads it. A structurally pruned network no longer fits its architecture,
    so it is also written as a ``.pt2`` program and as ONNX, traced on images ``example``, (N, C, H, W). A network from
    an ``uploaded`` ONNX file is always written as that file, edited, with sentences on what changed. Return the files
    written, the state dict first, and sentences on those that could not be. ONNX files hold what is ``told`` of them.

    Raises InvalidSpec for a suffix that is not in :data:`WRITTEN_SUFFIXES`, StorageFailed if a file cannot be written.
    """
    check_suffix(path.suffix)
    state = _separate_state(applied.model)
    files = {path: _serialized(state, path.suffix)}
    small, notes = _small_file(applied, state, plain_bytes=len(files[path]))
    files |= {path.with_suffix(suffix): content for suffix, content in small.items()}
    for suffix, write in _network_writers(applied, example, uploaded).items():
        try:
            content = described(write(), told or {}) if suffix == ONNX.suffix else write()
            if uploaded is not None and suffix == ONNX.suffix:
                notes += difference(uploaded.content, content).sentences
            files[path.with_suffix(suffix)] = content
        except SenseError as error:
            notes += (str(error),)
    with storage_errors(f"the folder of {path.name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    for target, content in files.items():
        replace_file(target, content)
    return tuple(files), notes


def _network_writers(
    applied: AppliedModel, example: Tensor, uploaded: OpenedOnnx | None
) -> dict[str, Callable[[], bytes]]:
    """Return what writes the whole network, by suffix."""
    writers: dict[str, Callable[[], bytes]] = {}
    if applied.kept_channels:
        writers[PROGRAM.suffix] = partial(exported_program, applied.model, example)
        writers[ONNX.suffix] = partial(onnx_model, applied.model, example)
    if uploaded is not None:
        writers[ONNX.suffix] = partial(with_weights, uploaded, applied.model)
    return writers


def _separate_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the state dict in which no tensors share memory, in the default memory order."""
    return {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in model.state_dict().items()
    }


def _small_file(
    applied: AppliedModel, state: Mapping[str, Tensor], *, plain_bytes: int
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the small file by its suffix, and what it does not hold; or nothing, and why there is none."""
    integers, names = applied.integers, dict(_rounded(applied))
    by_name = {name: integers[layer] for name, layer in names.items() if layer in integers}
    left = [name for name in names if name not in by_name]
    notes: tuple[str, ...] = ()
    if left:
        notes = (
            f"{len(left)} quantized weights are no multiples of one scale per channel, so files hold them as float32 "
            f"(first: {left[0]}).",
        )
    if not by_name and not applied.reached_by(Effect.ZEROS):
        return {}, notes
    form = INTEGERS if by_name else SPARSE
    stored = {name: value for name, value in state.items() if name not in by_name}
    for name, weight in by_name.items():
        parts = {name: weight.values, name + _SCALE: weight.scale, name + _ZERO_POINT: weight.zero_point}
        stored |= {part: value.clone() for part, value in parts.items()}  # those of tied weights may share no memory
    levels: dict[str, dict[str, float]] = {}
    for entry in applied.reached:
        levels.setdefault(entry.compression, {}).update(dict.fromkeys(entry.members, entry.level))
    about = {"holds": form.title, "levels": levels, "reading": form.reader(f"FILE{form.suffix}")}
    metadata = {"senseapp": json.dumps(about)}  # one entry: safetensors writes several in any order
    # Level 9 takes five times as long for half a percent.
    content = gzip.compress(safetensors.torch.save(stored, metadata), compresslevel=6, mtime=0)
    if len(content) >= plain_bytes:
        return {}, (*notes, f"There is no file of {form.title}: it would be larger than the plain one.")
    return {form.suffix: content}, notes


def stored_integers(weights: Path, profile: ModelProfile) -> dict[str, IntegerWeight]:
    """Return, by layer of ``profile``, the integers in the small file beside the state dict ``weights``; {} without.

    Raises StorageFailed if the file cannot be read.
    """
    path = weights.with_suffix(INTEGERS.suffix)
    if not path.is_file():
        return {}
    with storage_errors(path.name):
        stored = safetensors.torch.load(gzip.decompress(path.read_bytes()))
    return {
        layer.name: IntegerWeight(
            values=stored[layer.parameter],
            scale=stored[layer.parameter + _SCALE],
            zero_point=stored[layer.parameter + _ZERO_POINT],
        )
        for layer in profile.layers
        if layer.parameter + _SCALE in stored
    }


def _rounded(applied: AppliedModel) -> Iterator[tuple[str, str]]:
    """Yield the name in the state dict and the layer of each quantized weight; tied ones under each name."""
    named = list(applied.model.named_parameters(remove_duplicate=False))
    members = {member for entry in applied.reached_by(Effect.BITS) for member in entry.members}
    done: set[str] = set()
    for layer in applied.after.layers:
        if layer.name in members:
            weight = applied.model.get_parameter(layer.parameter)
            for name in (name for name, parameter in named if parameter is weight and name not in done):
                done.add(name)
                yield name, layer.name


def with_file_sizes(validation: ValidationResult, files: Sequence[Path], dense: nn.Module) -> ValidationResult:
    """Return ``validation`` with the sizes of the files written, and of ``dense`` in the form of the first."""
    plain = files[0]
    with storage_errors(plain.name):
        sizes = {path.name.removeprefix(plain.stem): path.stat().st_size for path in files}
    before = len(_serialized(_separate_state(dense), plain.suffix))
    return replace(
        validation, files=sizes, sizes=validation.sizes | {"file_bytes": (float(before), float(sizes[plain.suffix]))}
    )


def check_suffix(suffix: str) -> None:
    """Raise InvalidSpec unless ``suffix`` is one of :data:`WRITTEN_SUFFIXES`."""
    if suffix not in WRITTEN_SUFFIXES:
        raise InvalidSpec(
            f"A checkpoint's name ends in one of {', '.join(WRITTEN_SUFFIXES)}, got {suffix or 'no suffix'!r}."
        )


def _serialized(state: Mapping[str, Tensor], suffix: str) -> bytes:
    if suffix == ".safetensors":
        return safetensors.torch.save(dict(state))
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def exported_program(model: nn.Module, example: Tensor) -> bytes:
    """Return ``model`` as a ``.pt2`` program for any number of images, or for one image if that fails."""
    buffer = io.BytesIO()
    with without_stack_traces():
        torch.export.save(_export(model, example), buffer)
    return buffer.getvalue()


def onnx_model(model: nn.Module, example: Tensor) -> bytes:
    """Return ``model`` as ONNX, for any number of images if torch can export it so."""
    return optimized(onnx_program(model, example))


def onnx_copy(model: nn.Module, example: Tensor) -> bytes:
    """Return :func:`onnx_model` of a copy on the CPU; device and memory order of ``model`` do not change."""
    with torch.no_grad():
        return onnx_model(copy.deepcopy(model).cpu(), example)


def onnx_program(model: nn.Module, example: Tensor) -> torch.onnx.ONNXProgram:
    """Return ``model`` as an ONNX program before constant folding, with each parameter under its own name."""
    try:
        with without_stack_traces():
            traced = _export(model, example)
            activations_out_of_place(traced)
            program = torch.onnx.export(traced, dynamo=True, verbose=False, optimize=False)
        if program is None:
            raise RuntimeError("nothing was exported")
        if (places := nested_outputs(traced)) != 0:  # what is no single tensor is nested again where the file runs
            program.model.metadata_props[OUTPUTS] = nesting_text(places)
        return program
    except SenseError:
        raise
    except Exception as error:
        raise _no_onnx(error) from error


def optimized(program: torch.onnx.ONNXProgram) -> bytes:
    """Return ``program`` as ONNX after constant folding, which changes it."""
    try:
        program.optimize()
        return bytes(program.model_proto.SerializeToString())
    except Exception as error:
        raise _no_onnx(error) from error


def _no_onnx(error: Exception) -> InvalidSpec:
    """Return the error for a failed export; the exporter raises exceptions of many packages."""
    return InvalidSpec(f"This network cannot be written as ONNX: {type(error).__name__}: {first_line_of(error)}.")


def _export(model: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    pair = torch.cat([example, example])[:2].contiguous()  # torch treats a batch of one as a fixed size
    plain = model.to(memory_format=torch.contiguous_format)
    try:
        return torch.export.export(plain, (pair,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception:  # a network that reads its batch size cannot be exported for any; one image always has its size
        try:
            return torch.export.export(plain, (pair[:1],))
        except Exception as error:  # as above
            raise InvalidSpec(
                f"This network cannot be exported by torch: {type(error).__name__}: {first_line_of(error)}."
            ) from error
