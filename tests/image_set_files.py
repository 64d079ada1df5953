"""The files of torchvision's image sets, written in the form that their authors publish, a few images each.

torchvision compares what it downloads with check sums; :func:`publish` puts those of these files in their place.
"""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from torchvision import datasets
from torchvision.datasets import eurosat

from tests.pictures import encoded, random_picture

EACH = 2
FLOWERS, PETS = range(1, 103), range(1, 38)


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return a tar.gz."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def matlab(**arrays: Any) -> bytes:
    file = io.BytesIO()
    scipy.io.savemat(file, arrays)
    return file.getvalue()


def jpeg(seed: int) -> bytes:
    return encoded(random_picture(seed), "JPEG")


class Publisher:
    """Writes files below ``folder``, which ``address`` serves, and lets torchvision expect them."""

    def __init__(self, folder: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.address, self.patch = folder, address, monkeypatch

    def serve(self, name: str, content: bytes) -> tuple[str, str]:
        """Return the address and the check sum of a file."""
        (self.folder / name).write_bytes(content)
        return f"{self.address}/{name}", md5(content)

    def cifar(self, kind: type[datasets.CIFAR10], num_classes: int) -> None:
        labels = [index % num_classes for index in range(EACH * num_classes)]
        batch = {"data": pixels(len(labels), 3072), "labels" if num_classes == 10 else "fine_labels": labels}
        meta = {kind.meta["key"]: [f"thing {index}" for index in range(num_classes)]}
        names = [name for name, _ in (*kind.train_list, *kind.test_list)]
        files = {name: pickle.dumps(batch, protocol=2) for name in names}
        files[kind.meta["filename"]] = pickle.dumps(meta, protocol=2)
        archive = packed({f"{kind.base_folder}/{name}": content for name, content in files.items()})
        url, check = self.serve(kind.filename, archive)
        self.patch.setattr(kind, "url", url)
        self.patch.setattr(kind, "tgz_md5", check)
        self.patch.setattr(kind, "train_list", [[name, md5(files[name])] for name, _ in kind.train_list])
        self.patch.setattr(kind, "test_list", [[name, md5(files[name])] for name, _ in kind.test_list])
        self.patch.setattr(kind, "meta", kind.meta | {"md5": md5(files[kind.meta["filename"]])})

    def mnist(self, kind: type[datasets.MNIST]) -> None:
        labels = np.arange(EACH * 10, dtype=np.uint8) % 10
        images = struct.pack(">IIII", 2051, len(labels), 28, 28) + pixels(len(labels), 28, 28).tobytes()
        numbers = struct.pack(">II", 2049, len(labels)) + labels.tobytes()
        contents = [gzip.compress(images if "images" in name else numbers) for name, _ in kind.resources]
        names = [name for name, _ in kind.resources]
        checks = [self.serve(name, content)[1] for name, content in zip(names, contents, strict=True)]
        self.patch.setattr(kind, "mirrors", [f"{self.address}/"])
        self.patch.setattr(kind, "resources", list(zip(names, checks, strict=True)))

    def svhn(self) -> None:
        labels = np.arange(EACH * 10, dtype=np.uint8)[:, None] % 10 + 1  # 10 stands for the digit 0
        url, check = self.serve("test_32x32.mat", matlab(X=pixels(32, 32, 3, len(labels)), y=labels))
        self.patch.setattr(datasets.SVHN, "split_list", {"test": [url, "test_32x32.mat", check]})

    def imagenette(self) -> None:
        ids = datasets.Imagenette._WNID_TO_CLASS
        files = {f"imagenette2-160/val/{wnid}/{i}.JPEG": jpeg(i) for wnid in ids for i in range(EACH)}
        self.patch.setattr(
            datasets.Imagenette, "_ARCHIVES", {"160px": self.serve("imagenette2-160.tgz", packed(files))}
        )

    def eurosat(self) -> None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for place, name in enumerate(["AnnualCrop", "Forest", "River", "SeaLake"]):
                for i in range(EACH):
                    archive.writestr(f"2750/{name}/{name}_{i}.jpg", jpeg(10 * place + i))
        url, check = self.serve("EuroSAT.zip", file.getvalue())
        download = eurosat.download_and_extract_archive
        local = lambda _url, download_root, md5: download(url, download_root=download_root, md5=check)  # noqa: E731
        self.patch.setattr(eurosat, "download_and_extract_archive", local)

    def flowers102(self) -> None:
        count = EACH * len(FLOWERS)
        contents = {
            "image": ("102flowers.tgz", packed({f"jpg/image_{i:05d}.jpg": jpeg(i) for i in range(1, count + 1)})),
            "label": ("imagelabels.mat", matlab(labels=[list(FLOWERS) * EACH])),
            "setid": ("setid.mat", matlab(tstid=[list(range(1, count + 1))])),
        }
        sums = {key: (name, self.serve(name, content)[1]) for key, (name, content) in contents.items()}
        self.patch.setattr(datasets.Flowers102, "_download_url_prefix", f"{self.address}/")
        self.patch.setattr(datasets.Flowers102, "_file_dict", sums)

    def oxford_pets(self) -> None:
        names = [f"breed_{number:02d}_{i}" for number in PETS for i in range(EACH)]
        lines = "".join(f"{name} {int(name.split('_')[1])} 1 1\n" for name in names)
        images = {f"images/{name}.jpg": jpeg(place) for place, name in enumerate(names)}
        archives = [("images.tar.gz", images), ("annotations.tar.gz", {"annotations/test.txt": lines.encode()})]
        served = tuple(self.serve(name, packed(files)) for name, files in archives)
        self.patch.setattr(datasets.OxfordIIITPet, "_RESOURCES", served)

    def publish(self, name: str) -> None:
        """Serve the image set of that name."""
        arguments: dict[str, tuple[Any, ...]] = {
            "cifar10": (self.cifar, datasets.CIFAR10, 10),
            "cifar100": (self.cifar, datasets.CIFAR100, 100),
            "mnist": (self.mnist, datasets.MNIST),
            "fashion_mnist": (self.mnist, datasets.FashionMNIST),
            "kmnist": (self.mnist, datasets.KMNIST),
        }
        write, *kind = arguments.get(name, (getattr(self, name, None),))
        write(*kind)
