"""Ten small networks whose outputs no task but ``values`` reads, as converters and papers leave them."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

SIDE = 32


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class Trunk(nn.Module):
    """Five convolutions, to 64 channels of 4 × 4."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(conv(3, 16, 2), conv(16, 32, 2), conv(32, 32), conv(32, 64, 2), conv(64, 64))

    def pooled(self, images: Tensor) -> Tensor:
        return self.trunk(images).mean((2, 3))


class FaceEmbedding(Trunk):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 128)

    def forward(self, images: Tensor) -> Tensor:
        return F.normalize(self.fc(self.pooled(images)), dim=1)


class TextReader(Trunk):
    """A sequence of logits, (N, T, K)."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.fc = nn.Conv1d(256, 64, 3, padding=1), nn.Linear(64, 37)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(F.relu(self.mix(self.trunk(images).flatten(1, 2))).transpose(1, 2))


class Columns(Trunk):
    """One row for each anchor, (N, columns, A): boxes, scores, and ``further`` columns."""

    def __init__(self, classes: int, further: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Conv2d(64, columns, 1) for columns in (4, classes, further))

    def forward(self, images: Tensor) -> Tensor:
        features = self.trunk(images)
        boxes, scores, further = (head(features).flatten(2) for head in self.heads)
        return torch.cat([boxes.sigmoid() * SIDE, scores.sigmoid(), further * 5], dim=1)


class Prototypes(Columns):
    """Boxes with the coefficients of masks, and prototypes of masks."""

    def __init__(self) -> None:
        super().__init__(3, 8)
        self.prototypes = nn.Sequential(nn.Upsample(scale_factor=2), conv(64, 16), nn.Conv2d(16, 8, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(images), self.prototypes(self.trunk(images))


class Depth(Trunk):
    """A map without channels, (N, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), conv(64, 32), nn.Upsample(scale_factor=4))
        self.last = nn.Conv2d(32, 1, 3, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        return F.softplus(self.last(self.up(self.trunk(images))))[:, 0]


class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 24, 3, 1, 1), nn.Conv2d(24, 24, 3, 1, 1)
        self.last = nn.Conv2d(24, 12, 3, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        found = self.last(F.relu(self.second(F.relu(self.first(images)))))
        return F.pixel_shuffle(found, 2) + F.interpolate(images, scale_factor=2)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(conv(3, 16, 2), conv(16, 32, 2), nn.Conv2d(32, 8, 1))
        self.decoder = nn.Sequential(nn.ConvTranspose2d(8, 32, 2, 2), nn.ReLU(), nn.ConvTranspose2d(32, 3, 2, 2))

    def forward(self, images: Tensor) -> Tensor:
        return self.decoder(self.encoder(images)).sigmoid()


class TwoScales(Trunk):
    """Two outputs, of which one is a million times as large as the other."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(images)
        return 1000 * self.fc(features.mean((2, 3))), features * 1e-3


class Nested(Trunk):
    """A number of each image, a vector, and whole numbers, in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.age, self.vector = nn.Linear(64, 1), nn.Linear(64, 32)

    def forward(self, images: Tensor) -> dict[str, object]:
        found = self.pooled(images)
        return {"age": self.age(found)[:, 0], "more": [self.vector(found), {"best": found.argmax(1)}, None]}


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "face embedding": FaceEmbedding,
    "reader of text": TextReader,
    "pose": lambda: Columns(1, 17 * 3),
    "oriented boxes": lambda: Columns(15, 1),
    "boxes and prototypes": Prototypes,
    "depth": Depth,
    "super-resolution": SuperResolution,
    "autoencoder": Autoencoder,
    "two scales": TwoScales,
    "dictionary": Nested,
}


def network_of(name: str) -> nn.Module:
    """Return one of :data:`NETWORKS` with random weights, its norms settled on some images, in ``eval()`` mode."""
    torch.manual_seed(0)
    network = NETWORKS[name]().train()
    with torch.no_grad():
        for seed in range(10):
            network(smooth_images(16, seed=100 + seed))
    return network.eval()


def smooth_images(count: int, seed: int = 1) -> Tensor:
    """Return images (N, 3, 32, 32) of large blots with some noise."""
    generator = torch.Generator().manual_seed(seed)
    blots = F.interpolate(torch.randn(count, 3, 4, 4, generator=generator), size=(SIDE, SIDE), mode="bilinear")
    return blots + 0.2 * torch.randn(count, 3, SIDE, SIDE, generator=generator)


def write_network(path: Path, name: str) -> Path:
    """Write :func:`network_of` as an ONNX file for any number of images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network_of(name),
            (smooth_images(1),),
            str(path),
            dynamo=False,
            input_names=["images"],
            dynamic_axes={"images": {0: "batch"}},
        )
    return path


def write_pictures(folder: Path, count: int) -> Path:
    """Write :func:`smooth_images` as PNG files, in two folders of no meaning."""
    for number, image in enumerate(smooth_images(count, seed=5)):
        picture = ((image / 4 + 0.5).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
        place = folder / f"part{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{number}.png")
    return folder
