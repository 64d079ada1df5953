"""List the pictures of a local folder, without what lies outside of the folders that may be read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from senseapp.core.errors import InvalidDataset
from senseapp.core.texts import printable
from senseapp.data.archives import ArchiveLimits
from senseapp.data.contents import Contents, Entry, Unreadable

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
