"""Read and decode the drawn pictures of any source in threads, with their annotations.

Pictures that cannot be decoded, or whose annotation cannot be used, are replaced by others.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from PIL import Image

from senseapp.core.errors import InvalidDataset
from senseapp.core.texts import listed, plural, printable
from senseapp.data.annotations import Annotations
from senseapp.data.channels import is_tiff
from senseapp.data.contents import Entry, PictureSource, Unreadable
from senseapp.data.decoding import ChannelMode, Decoded, PixelSemaphore, decoded_picture
from senseapp.data.drawn_pictures import DrawnPictures
from senseapp.data.geometry import EvalTransform
from senseapp.data.images import channel_mode, pixels_of, transform_of
from senseapp.data.per_image import allocate_rows
from senseapp.data.picture_process import CPU_SECONDS, DECODERS, TooSlow
from senseapp.networks.loaded import Preprocessing

PIXELS_IN_FLIGHT = 24_000_000
"""Decoded at the same time: two photos of a phone, 4 bytes per pixel in Pillow."""
_REPLACEMENTS = 64  # read at once: a gzipped archive is unpacked from its start for each round
_MOST_UNREADABLE = 1000  # beyond the readable ones, after which the set is no set of pictures
_NO_PICTURE = Image.new("L", (1, 1))  # in place of pixels that are cropped already


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

    Raises:
        InvalidDataset: none can be read, or very many cannot.
    """
    room = min(len(order), wanted + _REPLACEMENTS)
    drawn = DrawnPictures(allocate_rows(room, preprocessing.input_shape))
    taken, size = 0, wanted
    while len(drawn.rows) < wanted and taken < len(order):
        batch = order[taken : taken + size]
        try:
            in_order = sorted(batch, key=lambda index: entries[index].position)
            _read_batch(source, entries, in_order, preprocessing, drawn, upright=upright, annotations=annotations)
        finally:
            DECODERS.rest()
        if len(drawn.unreadable) > wanted + _MOST_UNREADABLE:
            break
        taken += size
        size = max(wanted - len(drawn.rows), _REPLACEMENTS)
    if not drawn.rows or len(drawn.unreadable) > len(drawn.rows) + _MOST_UNREADABLE:
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
    """Require that a picture can be decoded; the first usually can, else up to 200 from the whole set are tried.

    Raises:
        InvalidDataset: none of them can.
    """
    budget, slow = PixelSemaphore(PIXELS_IN_FLIGHT), _SlowPictures(source.title)
    in_order = sorted(entries, key=lambda entry: entry.position)
    tried = in_order[:: -(-len(in_order) // 200) or 1]  # spread over a set, to see whether any can be decoded
    refused = []
    for entry in tried:
        try:
            if _can_be_decoded(source.read(entry), budget, foreign=source.foreign):
                return
        except Unreadable as reason:
            slow.count(entry, reason)
            refused.append(f"{printable(entry.name)} ({reason})")
    if not tried:
        return
    of_all = "" if len(tried) == len(entries) else f", of {len(entries):,},"
    raise InvalidDataset(
        f"The pictures in {source.title} cannot be read: {plural(len(tried), 'file')}{of_all} tried and none is a "
        f"picture, the first {refused[0]}. Open one of them in an image viewer, export them again as JPEG or PNG, and "
        "bring them once more."
    )


def _can_be_decoded(file: bytes, budget: PixelSemaphore, *, foreign: bool) -> bool:
    """Return True, or raise Unreadable; a TIFF file that is no colour picture may have other channels."""
    try:
        with _decoded(file, "RGB", budget, foreign=foreign):
            return True
    except TooSlow:
        raise
    except Unreadable:
        if not is_tiff(file):
            raise
        with _decoded(file, "bands", budget, foreign=foreign):
            return True


def _read_batch(
    source: PictureSource,
    entries: Sequence[Entry],
    indices: Sequence[int],
    preprocessing: Preprocessing,
    drawn: DrawnPictures,
    *,
    upright: bool,
    annotations: Annotations | None,
) -> None:
    """Read entries in the order given and decode them in threads; results come in the same order.

    Annotations are read afterwards, in an order of their own: an archive is read in one sweep forward.
    """
    budget = PixelSemaphore(PIXELS_IN_FLIGHT)
    prepare = partial(
        read_picture,
        mode=channel_mode(preprocessing),
        channels=preprocessing.input_shape[0],
        transform=transform_of(preprocessing, upright=upright),
        budget=budget,
        foreign=source.foreign,
    )
    slow = _SlowPictures(source.title)
    # large pictures of more threads would wait for PIXELS_IN_FLIGHT
    pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "decode")
    try:
        pictures = ((index, entries[index]) for index in indices)
        for index, outcome in _in_flight(source, pictures, lambda _, file: pool.submit(prepare, file)):
            if isinstance(outcome, Unreadable):
                slow.count(entries[index], outcome)
                drawn.leave_out(index, entries[index].name, str(outcome))
            else:
                drawn.add(index, *outcome)
        if annotations is None:
            return
        kept = [index for index in indices if index in drawn.rows]
        for index, placed in _placed(source, entries, kept, annotations, drawn, pool, budget):
            if isinstance(placed, Unreadable):
                slow.count(entries[index], placed)
                drawn.leave_out(index, entries[index].name, str(placed))
            else:
                drawn.annotate(index, placed, dense=annotations.reader.dense)
    finally:
        pool.shutdown(cancel_futures=True)  # of a source that was refused, what waits is not decoded any more


def _placed(
    source: PictureSource,
    entries: Sequence[Entry],
    indices: Sequence[int],
    annotations: Annotations,
    drawn: DrawnPictures,
    pool: ThreadPoolExecutor,
    budget: PixelSemaphore,
) -> Iterator[tuple[int, Any]]:
    """Yield the annotation of each picture where its pixels lie, or why it cannot be used."""
    geometries = {index: geometry for index in indices if (geometry := drawn.found[index].geometry) is not None}
    files = {}
    for index, geometry in geometries.items():
        file = annotations.file_of(entries[index].name)
        if file is None:
            yield index, annotations.parsed(entries[index].name, geometry)
        else:
            files[index] = file

    def submit(index: int, content: bytes) -> Future[Any]:
        return pool.submit(annotations.read, content, geometries[index], budget, foreign=source.foreign)

    yield from _in_flight(source, sorted(files.items(), key=lambda item: item[1].position), submit)


Outcome: TypeAlias = tuple[torch.Tensor, Decoded] | Unreadable
"""Pixels of a picture, uint8 (C, H, W), with what its file holds; or why it cannot be used."""
OutcomeT = TypeVar("OutcomeT")


def _in_flight(
    source: PictureSource,
    files: Iterable[tuple[int, Entry]],
    submit: Callable[[int, bytes], Future[OutcomeT]],
) -> Iterator[tuple[int, OutcomeT | Unreadable]]:
    """Yield (index, outcome) in order, reading only a little ahead of what is decoded."""
    pending: deque[tuple[int, int, Future[OutcomeT]]] = deque()
    bytes_ahead = 0
    for index, entry in files:
        try:
            file = source.read(entry)
        except Unreadable as reason:
            yield index, reason
            continue
        pending.append((index, len(file), submit(index, file)))
        bytes_ahead += len(file)
        # enough that no thread waits for the disk, and no more in memory than some photos of a phone
        while len(pending) > 16 or bytes_ahead > 32_000_000:
            done, size, future = pending.popleft()
            bytes_ahead -= size
            yield done, future.result()
    for done, _, future in pending:
        yield done, future.result()


def read_picture(
    file: bytes,
    *,
    mode: ChannelMode,
    channels: int,
    transform: EvalTransform,
    budget: PixelSemaphore,
    foreign: bool,
) -> Outcome:
    """Decode and prepare one picture; a ``foreign`` one in a process that can be ended."""
    try:
        with _decoded(file, mode, budget, transform, foreign=foreign) as decoded:
            bands = (decoded.picture, *decoded.more)
            if mode == "bands" and len(bands) != channels:
                raise Unreadable(f"{plural(len(bands), 'channel')}, and the model takes {channels}")
            return pixels_of(bands), replace(decoded, picture=_NO_PICTURE, more=())
    except Unreadable as reason:
        return reason


def _decoded(
    file: bytes,
    mode: ChannelMode,
    budget: PixelSemaphore,
    transform: EvalTransform | None = None,
    *,
    foreign: bool,
) -> AbstractContextManager[Decoded]:
    decode = DECODERS.decoded if foreign else decoded_picture
    return decode(file, mode, budget, transform)


class _SlowPictures:
    """Refuses a source once several of its pictures took more time to decode than any ordinary one does."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._names: list[str] = []

    def count(self, entry: Entry, reason: Unreadable) -> None:
        """Note why a picture was left out; InvalidDataset after too many slow ones."""
        if isinstance(reason, TooSlow):
            self._names.append(printable(entry.name))
        if len(self._names) > 1:  # one picture may meet a busy machine; two are hostile
            raise InvalidDataset(
                f"{len(self._names)} pictures in {self._title} take more than {CPU_SECONDS:.0f} s each to decode, "
                f"which no ordinary picture does, so no more of them were read: {listed(self._names)}. Leave them out, "
                "or export them again as JPEG or PNG."
            )
