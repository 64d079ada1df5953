"""The bytes of an uploaded ONNX file: one file, or a zip or folder of it and the files with its weights or settings.

Exporters write weights of large networks beside the graph (``model.onnx.data``). A graph names such a file, and it is
looked up among those that came with it: never on the disk, and never beyond its end.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path, PurePosixPath

from google.protobuf.message import DecodeError
from onnx import ModelProto, StringStringEntryProto, TensorProto, helper

from senseapp.core.errors import InvalidCheckpoint
from senseapp.core.foreign_zip import MOST_UNPACKED, ZIP_DAMAGE, ForeignZip, TooManyMembers
from senseapp.core.texts import listed, printable_text
from senseapp.networks.checkpoints.weights_file import damaged, refuse_program
from senseapp.networks.onnx.graph import tensors_in
from senseapp.networks.onnx.metadata import LONGEST_NAMES, PADDLEX

MOST_BYTES = 2**31 - 1  # of one protobuf message
_MOST_MEMBERS = 10_000  # some exporters write a file for each tensor
_LEAST_UNPACKED = 1 << 20  # bytes that a small archive of text may become beyond that
_SUFFIX = ".onnx"
_Reader = Callable[[], bytes]


def read_file(path: Path) -> bytes:
    """Return the bytes of the ONNX file at ``path``; of a zip or folder, with the weights of its other files inside.

    Raises:
        InvalidCheckpoint: there is none, it is empty, damaged or too large, or it is a program of torch; the message
            says how to export one as ONNX.
    """
    if path.is_dir():
        return _of_folder(path)
    if not path.is_file():
        raise InvalidCheckpoint(f"There is no ONNX file named {path.name}. Check its path, or upload it again.")
    if path.stat().st_size == 0:
        raise InvalidCheckpoint(f"{path.name} is empty (0 bytes). Upload it again.")
    refuse_program(path)
    if path.suffix.lower() == ".zip":
        return _of_archive(path)
    _check_size(path.stat().st_size, path.name)
    return path.read_bytes()


def _check_size(size: int, name: str) -> None:
    if size > MOST_BYTES:
        raise InvalidCheckpoint(f"{name} is larger than 2 GB, the most that one ONNX file can hold.")


def _of_folder(folder: Path) -> bytes:
    try:
        files = {each.name: each for each in folder.iterdir() if each.is_file()}
        _check_size(sum(each.stat().st_size for each in files.values()), folder.name)
        return _joined({name: each.read_bytes for name, each in files.items()}, folder.name)
    except OSError as error:
        raise InvalidCheckpoint(f"The folder {folder.name} cannot be read ({error.strerror}).") from error


def _of_archive(path: Path) -> bytes:
    try:
        with closing(ForeignZip(path, most_members=_MOST_MEMBERS)) as archive:
            _check_size(archive.total_bytes, path.name)
            if archive.total_bytes > MOST_UNPACKED * path.stat().st_size + _LEAST_UNPACKED:
                raise InvalidCheckpoint(
                    f"{path.name} would unpack to more than {MOST_UNPACKED} times its size. Pack its files without "
                    "compression."
                )
            members = {each.filename: each for each in archive.members if not each.is_dir()}
            return _joined({name: partial(archive.read, each) for name, each in members.items()}, path.name)
    except TooManyMembers as error:
        raise InvalidCheckpoint(
            f"{path.name} holds more than {_MOST_MEMBERS:,} files; a network is one {_SUFFIX} file and those with "
            "its weights."
        ) from error
    except ZIP_DAMAGE as error:
        raise damaged(path, error) from error


def _joined(files: Mapping[str, _Reader], of: str) -> bytes:
    """Return the one ONNX file among ``files`` with all weights inside."""
    graphs = [name for name in files if PurePosixPath(name).suffix.lower() == _SUFFIX]
    if len(graphs) != 1:
        held = listed(sorted(map(printable_text, graphs or files))) or "nothing"
        what = f"several {_SUFFIX} files" if graphs else f"no {_SUFFIX} file"
        raise InvalidCheckpoint(
            f"{of} holds {what} ({held}). A network is one {_SUFFIX} file and those with its weights."
        )
    content = files[graphs[0]]()
    folder = graphs[0][: graphs[0].rfind("/") + 1]
    beside = {name.removeprefix(folder): each for name, each in files.items() if name.startswith(folder)}
    content = with_weights_inside(content, beside)
    if PADDLEX in beside:  # a message ends in more entries of its lists
        told = beside[PADDLEX]()[:LONGEST_NAMES].decode("utf-8", "replace")
        content += ModelProto(metadata_props=[StringStringEntryProto(key=PADDLEX, value=told)]).SerializeToString()
    return content


def with_weights_inside(content: bytes, files: Mapping[str, _Reader]) -> bytes:
    """Return an ONNX file with the numbers of other ``files`` inside, by the names that its graph may have for them.

    Raises InvalidCheckpoint if a tensor is in a file that did not come along, or beyond the end of one.
    """
    try:
        model: ModelProto = ModelProto.FromString(content)
    except DecodeError:
        return content  # refused by its reader
    outside = [each for each in tensors_in(model) if each.data_location == TensorProto.EXTERNAL]
    read: dict[str, bytes] = {}
    size = len(content)
    for tensor in outside:
        place = {entry.key: entry.value for entry in tensor.external_data}
        name = place.get("location", "").removeprefix("./")
        if name not in files:
            raise InvalidCheckpoint(
                f"The weights of “{tensor.name}” are in the file “{printable_text(name)[:200]}”, which did not come "
                "along. Choose it together with the ONNX file, or a zip of both."
            )
        if name not in read:
            read[name] = files[name]()
        numbers = _numbers(tensor, place, read[name])
        size += len(numbers)
        _check_size(size, "The network with its weights")
        tensor.raw_data = numbers
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    return bytes(model.SerializeToString()) if outside else content


def with_weights_beside(path: Path) -> bytes:
    """Return an ONNX file with the weights of other files in its folder inside.

    For files of the person who runs the command: an uploaded file has nothing beside it. Raises InvalidCheckpoint as
    :func:`with_weights_inside` does.
    """
    return with_weights_inside(path.read_bytes(), {each.name: each.read_bytes for each in path.parent.iterdir()})


def _numbers(tensor: TensorProto, place: Mapping[str, str], content: bytes) -> bytes:
    """Return the bytes of ``tensor`` in the ``content`` of a file, at the place that the graph says."""
    try:
        start = int(place.get("offset", 0))
        itemsize = int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
        length = int(place["length"]) if "length" in place else math.prod(tensor.dims) * itemsize
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidCheckpoint(f"The file does not say where the weights of “{tensor.name}” are.") from error
    if start < 0 or length < 0 or start + length > len(content):
        raise InvalidCheckpoint(
            f"The weights of “{tensor.name}” lie beyond the end of their file, which was cut short or is another one."
        )
    return content[start : start + length]
