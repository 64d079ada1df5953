"""Form of a weights file, detected from its content before it is read."""

import re
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

from senseapp.core.errors import InvalidCheckpoint, first_line_of
from senseapp.core.foreign_zip import ZIP_DAMAGE, ForeignZip, TooManyMembers
from senseapp.records.deployment import small_form

CHECKPOINT_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".safetensors")
RESAVE_ADVICE = (
    "Save only the weights where the model was made: torch.save(model.state_dict(), 'weights.pth'), "
    "or safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')."
)
MERGE_SHARDS = (
    "Put the parts together where the model was made (load them into it, then torch.save(model.state_dict(), "
    "'weights.pth')) and choose that file."
)
_EXAMPLE = "(torch.zeros(1, 3, 224, 224),)"
_PROGRAMS = (
    (
        ("constants.pkl", "code"),
        "a TorchScript archive",
        f"Export it as ONNX: model = torch.jit.load('{{name}}').eval(); torch.onnx.export(model, {_EXAMPLE}, "
        "'model.onnx', dynamo=False), with an example as large as its images.",
    ),
    (
        ("archive_format", "models"),
        "a program of torch.export (.pt2)",
        "Export it as ONNX: program = torch.export.load('{name}'); "
        "torch.onnx.export(program, dynamo=True).save('model.onnx').",
    ),
)
"""Members that tell an archive with a program in it, what it is called, and the two lines that export it."""
_PROGRAM_SUFFIX = ".pt2"
MAX_TENSORS = 30_000
"""No architecture has 3,000 weights; averaged copies and an optimizer add four more of each."""
_LEGACY_START = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # the number that torch.save wrote first until 2020
_TAR_MAGIC = slice(257, 262)  # POSIX.1-1988 (ustar)
_FOREIGN_KINDS: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"BZh", "a bzip2 archive: unpack it first"),
    (b"\xfd7zXZ", "an xz archive: unpack it first"),
    (b"7z\xbc\xaf", "a 7z archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first"),
    (b"\x89HDF", "an HDF5 file (Keras or TensorFlow), which holds no PyTorch weights"),
    (b"\x93NUMPY", "a NumPy array, which has no layer names"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"%PDF", "a PDF document"),
    (b"version https://git-lfs", "a Git LFS pointer, not the weights it stands for: run git lfs pull"),
)


_NO_WEIGHTS = {
    ".onnx": "is a whole network, not only weights. Choose “Your network (.onnx)” as its source (--model onnx).",
    ".tflite": "is for LiteRT; it can be checked but not analysed. Choose the network that it was made of, as ONNX or "
    "as weights, or convert it with tf2onnx.",
    ".index.json": f"lists which part of a checkpoint (a shard) holds which weight, and holds none. {MERGE_SHARDS}",
    ".json": "describes a network and holds no weights. Choose it together with the weights beside it "
    "(model.safetensors), or a zip of both.",
}
"""What files of other kinds are, by the end of their names."""


FileKind: TypeAlias = Literal["zip", "legacy", "safetensors"]
"""The three forms of PyTorch weights files."""


def refuse_program(path: Path) -> None:
    """Raise InvalidCheckpoint if the file at ``path`` is a program of torch, with the lines that export it as ONNX."""
    with path.open("rb") as file:
        if not file.read(2).startswith(b"PK"):
            return
    try:
        with closing(ForeignZip(path, most_members=MAX_TENSORS)) as archive:
            _refuse_program(path, archive)
    except ZIP_DAMAGE:
        return  # another kind of archive, or none


def _refuse_program(path: Path, archive: ForeignZip) -> None:
    inside = {part[1] for entry in archive.members if len(part := entry.filename.split("/")) > 1}
    for members, what, advice in _PROGRAMS:
        if not inside.isdisjoint(members):
            raise InvalidCheckpoint(
                f"{path.name} is {what}, a program rather than weights: its layers cannot be changed one by one. "
                + advice.format(name=path.name)
            )


def damaged(path: Path, error: Exception) -> InvalidCheckpoint:
    """Return the error for a file of a known kind that cannot be read, with the reason where senseapp found it."""
    reason = f" ({first_line_of(error, most=160)})" if isinstance(error, ValueError) else ""
    return InvalidCheckpoint(f"{path.name} was cut short or is damaged{reason}. Upload it again, or save it again.")


def kind_of(path: Path) -> FileKind:
    """Return the form of the file at ``path``, by its content.

    Raises InvalidCheckpoint if it is missing, empty, of another suffix or form, or names too many tensors.
    """
    if not path.is_file():
        raise InvalidCheckpoint(f"There is no checkpoint file named {path.name}. Upload it again.")
    if (small := small_form(path.name)) is not None:
        raise InvalidCheckpoint(
            f"{path.name} holds {small.title}, which is not read here. Choose the plain checkpoint that was written "
            "beside it."
        )
    for ending, said in _NO_WEIGHTS.items():
        if path.name.lower().endswith(ending):
            raise InvalidCheckpoint(f"{path.name} {said}")
    if path.suffix.lower() not in (*CHECKPOINT_SUFFIXES, _PROGRAM_SUFFIX):
        raise InvalidCheckpoint(
            f"A checkpoint ends in one of {', '.join(CHECKPOINT_SUFFIXES)}, got {path.name}. "
            "Choose the weights file, or rename it if it is one."
        )
    size = path.stat().st_size
    if size == 0:
        raise InvalidCheckpoint(f"{path.name} is empty (0 bytes). Upload it again.")
    with path.open("rb") as file:
        head = file.read(4096)  # a page: holds every signature, and enough of a text to tell that it is one
    kind = _kind_by_magic(head, size)
    if kind is None:
        raise InvalidCheckpoint(f"{path.name} is {_describe(head)}. {RESAVE_ADVICE}")
    if path.suffix.lower() == ".safetensors" and kind != "safetensors":
        raise InvalidCheckpoint(
            f"{path.name} ends in .safetensors but was written by torch.save. Rename it to end in .pth."
        )
    if kind == "safetensors":
        _check_header(path)
    return kind


def _kind_by_magic(head: bytes, size: int) -> FileKind | None:
    if head.startswith(b"PK"):
        return "zip"
    if _LEGACY_START in head[:32]:
        return "legacy"
    header_bytes = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and 2 <= header_bytes <= min(size - 8, 100_000_000):  # the limit of the safetensors library
        return "safetensors"
    return None


def foreign_kind(head: bytes) -> str:
    """Return the kind of file that begins with ``head``; empty if it is unknown."""
    return next((description for magic, description in _FOREIGN_KINDS if head.startswith(magic)), "")


def _describe(head: bytes) -> str:
    if kind := foreign_kind(head):
        return kind
    if head[_TAR_MAGIC] == b"ustar":
        return "a tar archive, a form that PyTorch has not written since 2017 and that cannot be read safely"
    if head[8:9] == b"{":
        return "a safetensors file that was cut short, or is damaged: upload it again"
    if head[:1] == b"\x80":
        return "a pickle that torch.save did not write, or that was cut short"
    if not head.strip(b"\0"):
        return "not a checkpoint: it starts with zeros only"
    if is_text(head):
        return "a text file, not weights"
    return "not a file that PyTorch or safetensors wrote, or it is damaged"


def is_text(head: bytes) -> bool:
    """Return whether ``head`` is text in UTF-8."""
    try:
        head[:-4].decode("utf-8")  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return all(byte in b"\t\n\r" or 32 <= byte < 127 or byte >= 128 for byte in head)


@contextmanager
def opened_archive(path: Path) -> Iterator[tuple[ForeignZip, zipfile.ZipInfo]]:
    """Yield an archive that torch.save wrote and the entry of its pickle, with no more bytes than the file has.

    Raises InvalidCheckpoint if it is truncated, TorchScript, another program's archive, or a decompression bomb.
    """
    try:
        archive = ForeignZip(path, most_members=MAX_TENSORS)
    except TooManyMembers as error:
        raise InvalidCheckpoint(
            f"{path.name} holds more than {MAX_TENSORS:,} entries, the most that a checkpoint has. {RESAVE_ADVICE}"
        ) from error
    except ZIP_DAMAGE as error:
        raise damaged(path, error) from error
    with closing(archive):
        _refuse_program(path, archive)
        compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.members)
        if compressed or archive.total_bytes > path.stat().st_size:
            raise InvalidCheckpoint(
                f"{path.name} is a compressed archive, or its entries overlap; torch.save writes neither. "
                "If it is a zip around a checkpoint, unpack it and choose the file inside. " + RESAVE_ADVICE
            )
        names = [entry.filename for entry in archive.members]
        pickles = [each for each in archive.members if re.fullmatch("[^/]+/data.pkl", each.filename)]
        if len(set(names)) < len(names) or len(pickles) != 1:
            raise InvalidCheckpoint(f"{path.name} is a zip archive that torch.save did not write. {RESAVE_ADVICE}")
        yield archive, pickles[0]


def _check_header(path: Path) -> None:
    """Require that a safetensors file names no more tensors than a network has."""
    with path.open("rb") as file:
        header = file.read(int.from_bytes(file.read(8), "little"))
    if (count := header.count(b'"data_offsets"')) > MAX_TENSORS:
        raise InvalidCheckpoint(
            f"{path.name} names {count:,} tensors; a checkpoint has at most {MAX_TENSORS:,}. {RESAVE_ADVICE}"
        )
