"""Paths and progress of downloads shared by all users: image sets and published weights.

An image set is downloaded into a temporary folder beside its own and renamed when complete, so a present one is whole.
"""

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from senseapp.core.files import MB, bytes_in, home, make_private
from senseapp.descriptions.sources import IMAGE_SETS


def image_set_folder(name: str) -> Path:
    """Return the folder of an image set, downloaded or not."""
    return home() / "cache" / "torchvision" / name


def is_downloaded(name: str) -> bool:
    """Return whether the image set is on this machine."""
    return image_set_folder(name).is_dir()


def new_partial_folder(name: str) -> Path:
    """Make a folder to download an image set into; what a killed process left behind hours ago is removed."""
    folder = image_set_folder(name)
    make_private(home())
    folder.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in _partial_folders(name):
        if time.time() - abandoned.stat().st_mtime > 6 * 3600.0:  # several times the hour that a download may take
            shutil.rmtree(abandoned, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))


def download_progress(name: str) -> str:
    """Return how far the download of an image set is, in one sentence."""
    facts = IMAGE_SETS[name]
    megabytes = sum(map(bytes_in, _partial_folders(name))) // MB
    if megabytes >= facts.megabytes:
        return f"Unpacking {facts.title}"
    return f"Downloading {facts.title}: {megabytes} of {facts.megabytes} MB"


def _partial_folders(name: str) -> list[Path]:
    return list(image_set_folder(name).parent.glob(f".{name}-*"))


def weights_here() -> frozenset[str]:
    """Return the published weights that are on this machine, as :attr:`CatalogueEntry.weights` names them."""
    found = {path.name for path in _torch_checkpoints().glob("*.pth")}
    for file in _of_the_hub().glob(f"{_REPOSITORY}*/snapshots/*/*.*"):
        if file.suffix in _WEIGHT_SUFFIXES:
            found.add(file.parents[2].name.removeprefix(_REPOSITORY).replace("--", "/"))
    return frozenset(found)


_REPOSITORY, _WEIGHT_SUFFIXES = "models--", (".safetensors", ".bin", ".pth")


def _torch_checkpoints() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(os.environ.get("TORCH_HOME", f"{caches}/torch")).expanduser() / "hub" / "checkpoints"


def _of_the_hub() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def weights_so_far() -> int:
    """Return how many bytes have come of the published weights that timm or torchvision downloads now; 0 for none."""
    found = 0
    for path in (*_torch_checkpoints().glob("*.partial"), *_of_the_hub().glob("models--timm--*/blobs/*.incomplete")):
        with suppress(OSError):  # gone in the meantime
            # a partial file without a new byte for so long is no download under way
            found += path.stat().st_size if time.time() - path.stat().st_mtime < 60.0 else 0
    return found
