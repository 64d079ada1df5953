"""List the pictures of a local folder, and decode the drawn pictures of any source in threads.

Pictures that cannot be decoded are replaced by others.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from PIL import Image

from senseapp.core.errors import InvalidDataset
from senseapp.core.wording import listed, plural, printable
from senseapp.data.archives import ArchiveLimits
from senseapp.data.bands import is_tiff
from senseapp.data.contents import Contents, Entry, PictureSource, Unreadable
from senseapp.data.decoding import ChannelMode, Decoded, PixelSemaphore, decoded_picture
from senseapp.data.drawn_pictures import DrawnPictures
from senseapp.data.geometry import EvalTransform
from senseapp.data.images import allocate_pixels, channel_mode, pixels_of, transform_of
from senseapp.data.picture_process import CPU_SECONDS, DECODERS, TooSlow
from senseapp.networks.loaded import Preprocessing

_FOLDER_LIMITS = ArchiveLimits(members=5_000_000)  # whoever runs the server put them there: no bomb, but ImageNet


def resolve_readable(path: str, roots: Sequence[Path]) -> Path:
    """Return the real path of a folder or archive inside one of ``roots``; no roots allow any.

    Raises:
        InvalidDataset: it does not exist, or does not lie, with links followed, in one of ``roots``.
    """
    try:
        resolved = Path(path).expanduser().resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidDataset(f"There is no folder or archive at {printable(path)!r}. Check the path.") from error
    if not _is_under(resolved, [root.resolve() for root in roots]):
        raise InvalidDataset(
            f"{printable(path)!r} is outside of the folders that this server may read. "
            "Upload the images, or ask for their folder to be added to SENSEAPP_DATA_ROOTS."
        )
    return resolved


def _is_under(path: Path, roots: Sequence[Path]) -> bool:
    return not roots or any(path.is_relative_to(root) for root in roots)


class FolderSource:
    """A folder, listed with everything below it.

    Links are followed as long as they stay inside ``roots`` (none given: anywhere); each folder is walked once.

    ``folder`` is a real path, see :func:`resolve_readable`.

    Raises:
        InvalidDataset: this is not a folder, it may not be read, or it holds too many files.
    """

    foreign = True

    def __init__(self, folder: Path, roots: Sequence[Path] = (), limits: ArchiveLimits | None = None) -> None:
        self.title = printable(folder.name)
        self.contents = Contents()
        self._folder = folder
        self._roots = [root.resolve() for root in roots]
        self._limits = limits or _FOLDER_LIMITS
        self._walked: set[tuple[int, int]] = set()
        if not folder.is_dir():
            raise InvalidDataset(f"{self.title} is not a folder. Choose a folder of images, or a zip or tar archive.")
        self._list_everything()

    def _list_everything(self) -> None:
        try:
            self._is_new(self._folder.stat())
            for position, name in enumerate(self._files("")):
                self._limits.check_members(position + 1, self.title)
                self.contents.add_file(name, position)
        except OSError as error:
            raise InvalidDataset(
                f"The folder {self.title} cannot be listed ({error.strerror}). Check that the app may read it."
            ) from error

    def _files(self, prefix: str) -> Iterator[str]:
        """Yield the paths of all plain files below ``prefix``, sorted within each folder."""
        pending = [prefix]
        while pending:
            prefix = pending.pop()
            folders: list[str] = []
            with os.scandir(self._folder / prefix) as children:
                for child in sorted(children, key=lambda child: child.name):
                    name = prefix + child.name
                    if not self._is_allowed(child):
                        self.contents.links += 1
                    elif child.is_dir():
                        folders += [name + "/"] if self._is_new(child.stat()) else []
                        self.contents.add_folder(name)
                    else:
                        yield name
            pending += reversed(folders)

    def _is_allowed(self, child: os.DirEntry[str]) -> bool:
        """Return whether this is a file or folder, or a link to one inside the roots; opening others could block."""
        try:
            if child.is_symlink() and not _is_under(Path(child.path).resolve(strict=True), self._roots):
                return False
            return child.is_file() or child.is_dir()
        except (OSError, RuntimeError):  # a link to nothing, or to itself
            return False

    def _is_new(self, folder: os.stat_result) -> bool:
        """Return whether this folder was not walked yet: links can form circles."""
        identity = (folder.st_dev, folder.st_ino)
        is_new = identity not in self._walked
        self._walked.add(identity)
        return is_new

    def read(self, entry: Entry) -> bytes:
        """Return the bytes of one file.

        Raises:
            Unreadable: it is too large, or may not be read.
        """
        try:
            with (self._folder / entry.name).open("rb") as file:
                self._limits.check_file(os.fstat(file.fileno()).st_size)
                return file.read()
        except OSError as error:
            raise Unreadable(error.strerror or "cannot be read") from error

    def close(self) -> None:
        """Do nothing: no file stays open."""


PIXELS_IN_FLIGHT = 24_000_000
"""Decoded at the same time: two photos of a phone, 4 bytes per pixel in Pillow."""
_BYTES_IN_FLIGHT = 32_000_000
_FILES_IN_FLIGHT = 16
_MOST_THREADS = 4
_REPLACEMENTS = 64  # read at once: a gzipped archive is unpacked from its start for each round
_MOST_UNREADABLE = 1000
_MOST_TRIED = 200
_MOST_SLOW = 1
_NO_PICTURE = Image.new("L", (1, 1))  # in place of pixels that are cropped already


def read_drawn(
    source: PictureSource,
    entries: Sequence[Entry],
    order: Sequence[int],
    wanted: int,
    preprocessing: Preprocessing,
    *,
    upright: bool = False,
) -> DrawnPictures:
    """Read the first ``wanted`` of ``entries[order]`` that are pictures, on request turned as their cameras say.

    Returns:
        At least ``wanted`` pictures, cropped by ``preprocessing``, unless there are fewer.

    Raises:
        InvalidDataset: none can be read, or very many cannot.
    """
    room = min(len(order), wanted + _REPLACEMENTS)
    drawn = DrawnPictures(allocate_pixels(room, preprocessing.input_shape))
    taken, size = 0, wanted
    while len(drawn.rows) < wanted and taken < len(order):
        batch = order[taken : taken + size]
        try:
            in_order = sorted(batch, key=lambda index: entries[index].position)
            _read_batch(source, entries, in_order, preprocessing, drawn, upright=upright)
        finally:
            DECODERS.rest()
        if len(drawn.unreadable) > wanted + _MOST_UNREADABLE:
            break
        taken += size
        size = max(wanted - len(drawn.rows), _REPLACEMENTS)
    if not drawn.rows or len(drawn.unreadable) > len(drawn.rows) + _MOST_UNREADABLE:
        first = listed(f"{name} ({reason})" for name, reason in drawn.unreadable)
        raise InvalidDataset(
            f"{plural(len(drawn.unreadable), 'file')} in {source.title} cannot be used as a picture: {first}. "
            "Export them again as JPEG or PNG."
        )
    drawn.settle_depths()
    return drawn


def require_readable(source: PictureSource, entries: Sequence[Entry]) -> None:
    """Require that a picture can be decoded; the first usually can, else up to 200 from the whole set are tried.

    Raises:
        InvalidDataset: none of them can.
    """
    budget, slow = PixelSemaphore(PIXELS_IN_FLIGHT), _SlowPictures(source.title)
    in_order = sorted(entries, key=lambda entry: entry.position)
    tried = in_order[:: -(-len(in_order) // _MOST_TRIED) or 1]
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
    indices: Iterable[int],
    preprocessing: Preprocessing,
    drawn: DrawnPictures,
    *,
    upright: bool,
) -> None:
    """Read entries in the order given and decode them in threads; results come in the same order."""
    prepare = partial(
        read_picture,
        mode=channel_mode(preprocessing),
        channels=preprocessing.input_shape[0],
        transform=transform_of(preprocessing, upright=upright),
        budget=PixelSemaphore(PIXELS_IN_FLIGHT),
        foreign=source.foreign,
    )
    slow = _SlowPictures(source.title)
    pool = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "decode")
    try:
        for index, outcome in _in_flight(source, entries, indices, partial(pool.submit, prepare)):
            if isinstance(outcome, Unreadable):
                slow.count(entries[index], outcome)
                drawn.unreadable.append((entries[index].name, str(outcome)))
            else:
                drawn.add(index, *outcome)
    finally:
        pool.shutdown(cancel_futures=True)  # of a source that was refused, what waits is not decoded any more


Outcome: TypeAlias = tuple[torch.Tensor, Decoded] | Unreadable
"""Pixels of a picture, uint8 (C, H, W), with what its file holds; or why it cannot be used."""


def _in_flight(
    source: PictureSource,
    entries: Sequence[Entry],
    indices: Iterable[int],
    submit: Callable[[bytes], Future[Outcome]],
) -> Iterator[tuple[int, Outcome]]:
    """Yield (index, outcome) in order, reading only a little ahead of what is decoded."""
    pending: deque[tuple[int, int, Future[Outcome]]] = deque()
    bytes_ahead = 0
    for index in indices:
        try:
            file = source.read(entries[index])
        except Unreadable as reason:
            yield index, reason
            continue
        pending.append((index, len(file), submit(file)))
        bytes_ahead += len(file)
        while len(pending) > _FILES_IN_FLIGHT or bytes_ahead > _BYTES_IN_FLIGHT:
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
        if len(self._names) > _MOST_SLOW:
            raise InvalidDataset(
                f"{len(self._names)} pictures in {self._title} take more than {CPU_SECONDS:.0f} s each to decode, "
                f"which no ordinary picture does, so no more of them were read: {listed(self._names)}. Leave them out, "
                "or export them again as JPEG or PNG."
            )
