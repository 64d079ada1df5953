"""Read and decode the drawn pictures of any source in threads, with their annotations.

Pictures that cannot be decoded, or whose annotation cannot be used, are replaced by others.
"""

import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from senseapp.core.errors import InvalidDataset
from senseapp.core.texts import listed, plural, printable
from senseapp.data.annotations import Annotations
from senseapp.data.contents import Entry, PictureSource, Unreadable
from senseapp.data.decoding import Decoded, Remark, bits_note, is_tiff
from senseapp.data.images import allocate_rows, channel_mode, chosen_of, pixels_of, transform_of
from senseapp.data.picture_process import CPU_SECONDS, DECODERS, MOST_PROCESSES, TooSlow, decoded
from senseapp.networks.loaded import Preprocessing
from senseapp.tasks.annotations import PerImage

_REPLACEMENTS = 64  # read at once
_MOST_UNREADABLE = 1000  # beyond the readable ones, after which the set is no set of pictures
_NO_PICTURE = Image.new("L", (1, 1))  # in place of pixels that are cropped already
_REMARKS: dict[Remark, str] = {
    "animated": "taken from the first frame of an animation",
    "transparent": "shown without transparency",
    "rotated": "taken as stored: the camera's rotation mark is ignored, as networks are trained",
    "turned": "turned upright, as the camera's rotation mark says",
    "CMYK": "converted from printing colours (CMYK)",
}


@dataclass(slots=True)
class DrawnPictures:
    """Pictures that were read and prepared alike, by their index among the entries.

    Attributes:
        pixels: uint8 (M, C, H, W), in the order in which pictures were read.
        found: what the file of each of them holds, without its pixels, in the same order.
        unreadable: name and reason of each entry that could not be used.
    """

    pixels: torch.Tensor
    found: dict[int, Decoded] = field(default_factory=dict)
    unreadable: list[tuple[str, Unreadable]] = field(default_factory=list)
    _annotations: list[Any] = field(default_factory=list)
    _dense: torch.Tensor | None = None

    @property
    def rows(self) -> dict[int, int]:
        """Row of each picture."""
        return {index: row for row, index in enumerate(self.found)}

    @property
    def num_marked(self) -> int:
        """How many of the pictures have a rotation mark of their camera."""
        return sum(not {"rotated", "turned"}.isdisjoint(found.remarks) for found in self.found.values())

    @property
    def usual_size(self) -> tuple[int, int] | None:
        """The (width, height) of more than half of the pictures; None where they differ."""
        sizes = Counter(found.size for found in self.found.values())
        ((size, count),) = sizes.most_common(1) or [((0, 0), 0)]
        return size if 2 * count > sizes.total() else None

    def notes(self) -> Iterator[str]:
        """Yield one sentence for each kind of unusual picture, and one on those left out."""
        remarks = Counter(remark for found in self.found.values() for remark in found.remarks)
        yield from (f"{plural(remarks[each], 'picture')} {what}." for each, what in _REMARKS.items() if remarks[each])
        if used := [found.bits for found in self.found.values() if found.bits]:
            yield bits_note(max(used), len(used))
        if self.unreadable:
            names = listed(f"{printable(name)} ({reason})" for name, reason in self.unreadable)
            yield f"{plural(len(self.unreadable), 'file')} that cannot be used left out: {names}."

    def add(self, index: int, pixels: torch.Tensor, found: Decoded, annotation: Any = None) -> None:
        """Keep a picture, uint8 (C, H, W), what was ``found`` in its file, and its annotation; arrays are all alike."""
        row = len(self.found)
        if isinstance(annotation, np.ndarray):
            values = torch.from_numpy(np.ascontiguousarray(annotation))
            if self._dense is None:
                self._dense = allocate_rows(len(self.pixels), values.shape, values.dtype)
            if (values.shape, values.dtype) != (self._dense.shape[1:], self._dense.dtype):
                raise TypeError(f"Dense annotations must be alike, got {tuple(values.shape)} of {values.dtype}.")
            self._dense[row] = values
        self._annotations.append(annotation)
        self.pixels[row] = pixels
        self.found[index] = found

    def leave_out(self, name: str, reason: Unreadable, title: str) -> None:
        """Note that an entry cannot be used; raises InvalidDataset after several that are slow to decode."""
        self.unreadable.append((name, reason))
        _refuse_slow(self.unreadable, title)

    def targets(self, indices: Sequence[int]) -> PerImage:
        """Return the annotations of these pictures, all of which have one: a tensor, or a tuple of objects."""
        rows = self.rows
        if self._dense is not None:
            return chosen_of(self._dense, [rows[index] for index in indices])
        return tuple(self._annotations[rows[index]] for index in indices)

    def scale_alike(self) -> None:
        """Scale all pictures of 16 bits per channel by the bits that the brightest of them needs."""
        most = max(found.bits for found in self.found.values())
        for row, found in enumerate(self.found.values()):
            if found.bits:
                self.pixels[row] >>= most - found.bits


def read_drawn(
    source: PictureSource,
    entries: Sequence[Entry],
    order: Sequence[int],
    wanted: int,
    preprocessing: Preprocessing,
    *,
    upright: bool = False,
    annotations: Annotations | None = None,
) -> DrawnPictures:
    """Read the first ``wanted`` of ``entries[order]`` that are pictures, on request turned as their cameras say.

    Where there are ``annotations``, all ``entries`` have one, and it is read with its picture.

    Returns:
        At least ``wanted`` pictures, prepared by ``preprocessing``, unless there are fewer.

    Raises InvalidDataset if none can be read, or very many cannot.
    """
    drawn = DrawnPictures(allocate_rows(min(len(order), wanted + _REPLACEMENTS), preprocessing.input_shape))
    preparation = _Preparation(source, preprocessing, upright, annotations)
    taken, size = 0, wanted
    while len(drawn.found) < wanted and taken < len(order):
        try:
            preparation.read(entries, order[taken : taken + size], drawn)
        finally:
            DECODERS.rest()
        if len(drawn.unreadable) > wanted + _MOST_UNREADABLE:
            break
        taken += size
        size = max(wanted - len(drawn.found), _REPLACEMENTS)
    if not drawn.found or len(drawn.unreadable) > len(drawn.found) + _MOST_UNREADABLE:
        first = listed(f"{name} ({reason})" for name, reason in drawn.unreadable)
        beside, remedy = "", "Export them again as JPEG or PNG."
        if annotations is not None:
            one, several = annotations.reader.words
            beside, remedy = f" with its {one}", f"Mend them, or choose to measure without {several}."
        raise InvalidDataset(
            f"{plural(len(drawn.unreadable), 'file')} in {source.title} cannot be used as a picture{beside}: {first}. "
            f"{remedy}"
        )
    drawn.scale_alike()
    return drawn


def require_readable(source: PictureSource, entries: Sequence[Entry]) -> None:
    """Raise InvalidDataset unless a picture can be decoded: the first usually can, else up to 200 are tried."""
    refused: list[tuple[str, Unreadable]] = []
    for entry in entries[:: -(-len(entries) // 200) or 1]:  # spread over a set, to see whether any can be decoded
        try:
            _require_decodable(source.read(entry), foreign=source.foreign)
            return
        except Unreadable as reason:
            refused.append((printable(entry.name), reason))
            _refuse_slow(refused, source.title)
    if not refused:
        return
    of_all = "" if len(refused) == len(entries) else f", of {len(entries):,},"
    raise InvalidDataset(
        f"The pictures in {source.title} cannot be read: {plural(len(refused), 'file')}{of_all} tried and none is a "
        f"picture, the first {refused[0][0]} ({refused[0][1]}). Open one of them in an image viewer, export them again "
        "as JPEG or PNG, and bring them once more."
    )


def _require_decodable(file: bytes, *, foreign: bool) -> None:
    """Raise Unreadable for what is no picture; a TIFF file that is no colour picture may have other channels."""
    try:
        decoded(file, "RGB", foreign=foreign)
    except TooSlow:
        raise
    except Unreadable:
        if not is_tiff(file):
            raise
        decoded(file, "bands", foreign=foreign)


@dataclass(slots=True)
class _Preparation:
    """Reads pictures with their annotations in the order given, and decodes them in threads."""

    source: PictureSource
    preprocessing: Preprocessing
    upright: bool
    annotations: Annotations | None

    def read(self, entries: Sequence[Entry], indices: Sequence[int], drawn: DrawnPictures) -> None:
        """Add the entries at ``indices`` to ``drawn``, reading only a little ahead of what is decoded."""
        pending: deque[tuple[int, int, Future[tuple[torch.Tensor, Decoded, Any]]]] = deque()

        def take() -> None:
            index, _, future = pending.popleft()
            try:
                drawn.add(index, *future.result())
            except Unreadable as reason:
                drawn.leave_out(entries[index].name, reason, self.source.title)

        pool = ThreadPoolExecutor(min(MOST_PROCESSES, os.cpu_count() or 1), "decode")
        try:
            for index in indices:
                name = entries[index].name
                try:
                    file = self.source.read(entries[index])
                    beside = self.annotations.file_of(name, self.source) if self.annotations is not None else b""
                except Unreadable as reason:
                    drawn.leave_out(name, reason, self.source.title)
                    continue
                pending.append((index, len(file) + len(beside), pool.submit(self._prepared, name, file, beside)))
                # enough that no thread waits for the disk, and no more in memory than some photos of a phone
                while len(pending) > 16 or sum(size for _, size, _ in pending) > 32_000_000:
                    take()
            while pending:
                take()
        finally:
            pool.shutdown(cancel_futures=True)  # of a source that was refused, what waits is not decoded any more

    def _prepared(self, name: str, file: bytes, beside: bytes) -> tuple[torch.Tensor, Decoded, Any]:
        foreign = self.source.foreign
        pixels, found = read_picture(file, self.preprocessing, upright=self.upright, foreign=foreign)
        if self.annotations is None or found.geometry is None:
            return pixels, found, None
        return pixels, found, self.annotations.placed(name, beside, found.geometry, foreign=foreign)


def read_picture(
    file: bytes, preprocessing: Preprocessing, *, upright: bool, foreign: bool
) -> tuple[torch.Tensor, Decoded]:
    """Return the pixels of a picture, uint8 (C, H, W), and what its file holds; Unreadable where it cannot be used."""
    mode, channels = channel_mode(preprocessing), preprocessing.input_shape[0]
    found = decoded(file, mode, transform_of(preprocessing, upright=upright), foreign=foreign)
    bands = (found.picture, *found.more)
    if mode == "bands" and len(bands) != channels:
        raise Unreadable(f"{plural(len(bands), 'channel')}, and the model takes {channels}")
    return pixels_of(bands), replace(found, picture=_NO_PICTURE, more=())


def _refuse_slow(unreadable: Sequence[tuple[str, Unreadable]], title: str) -> None:
    """Refuse a source once several of its pictures took more time to decode than any ordinary one does."""
    slow = [printable(name) for name, reason in unreadable if isinstance(reason, TooSlow)]
    if len(slow) > 1:  # one picture may meet a busy machine; two are hostile
        raise InvalidDataset(
            f"{len(slow)} pictures in {title} take more than {CPU_SECONDS:.0f} s each to decode, which no ordinary "
            f"picture does, so no more of them were read: {listed(slow)}. Leave them out, or export them again as JPEG "
            "or PNG."
        )
