"""Prepared images: cropped by timm's transforms, stored as uint8 pixels and normalised batch by batch.

Rows for each image, pixels and targets alike, lie in memory or in a file.
"""

import mmap
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable
from weakref import WeakValueDictionary

import numpy as np
import torch
from PIL import Image

from senseapp.core.errors import InvalidDataset, InvalidSpec
from senseapp.core.texts import plural
from senseapp.data.decoding import MAX_CHANNELS, ChannelMode
from senseapp.data.geometry import EvalTransform
from senseapp.networks.loaded import Preprocessing
from senseapp.records.spec import DataSpec
from senseapp.tasks.annotations import PerImage
from senseapp.tasks.labels import LabelMapProposal

_MAPPINGS: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()  # by address, of rows that lie in a file


def allocate_rows(
    count: int, shape: Sequence[int], dtype: torch.dtype = torch.uint8, *, most_in_memory_bytes: int = 128_000_000
) -> torch.Tensor:
    """Return room for something of each image, (count, ...): in memory, or above a limit in a file that has no name.

    The limit is that of 850 pictures of 224 pixels; the system keeps a file in memory while it has room. The file is
    gone once the tensor is, also when the process is killed. Raises InvalidDataset where the disk has too little room.
    """
    needed = count * int(np.prod(shape)) * dtype.itemsize
    if needed <= most_in_memory_bytes:
        return torch.empty((count, *shape), dtype=dtype)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if needed > free // 2:  # leave half to others
        raise InvalidDataset(
            f"{plural(count, 'picture')} need {needed / 1e9:.1f} GB of temporary disk space and there are "
            f"{free / 1e9:.1f} GB. Measure on fewer samples."
        )
    with tempfile.TemporaryFile() as file:
        file.truncate(needed)
        mapping = mmap.mmap(file.fileno(), needed)
    rows = torch.from_numpy(np.frombuffer(mapping, dtype=np.uint8))
    _MAPPINGS[rows.data_ptr()] = mapping
    return rows.view(dtype).view(count, *shape)


def leave_on_disk(rows: torch.Tensor) -> None:
    """Release what this process has mapped of rows that lie in a file; the system keeps them while it has room.

    What was read of a file counts as memory of the process until then. Rows in memory stay.
    """
    mapping = _MAPPINGS.get(rows.untyped_storage().data_ptr())
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def chosen_of(values: PerImage, indices: Sequence[int]) -> PerImage:
    """Return the rows of the images at ``indices``, in that order; large ones are stored on disk."""
    if not isinstance(values, torch.Tensor):
        return tuple(values[index] for index in indices)
    index = torch.as_tensor(list(indices), dtype=torch.long)
    if values.device.type != "cpu":
        return values[index]
    return torch.index_select(values, 0, index, out=allocate_rows(len(index), values.shape[1:], values.dtype))


def bytes_of(value: Any) -> Iterator[memoryview]:
    """Yield bytes that differ wherever ``value`` does: tensors, arrays, numbers, texts, what holds them."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        if flat.numel() == 1:
            flat = flat.clone(memory_format=torch.contiguous_format)  # any stride counts as contiguous there
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data
    elif isinstance(value, np.ndarray):
        yield _text(f"{value.dtype} {value.shape}")
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield _text(f"{name} ")
            yield from bytes_of(value[name])
    elif is_dataclass(value):
        for each in fields(value):
            yield _text(f"{each.name} ")
            yield from bytes_of(getattr(value, each.name))
    elif isinstance(value, (tuple, list)):
        yield _text(f"{len(value)} ")
        for item in value:
            yield _text(f"{getattr(item, 'shape', '')}")
            yield from bytes_of(item)
    elif value is None or isinstance(value, (bool, int, float, str, bytes, np.generic)):
        yield _text(f"{value!r} ")
    else:
        raise TypeError(f"An annotation holds a {type(value).__name__}, which has no bytes to compare.")


def _text(text: str) -> memoryview:
    return memoryview(text.encode())


# ---- sets of images


@runtime_checkable
class ImageSet(Protocol):
    """A fixed, ordered set of prepared images.

    Attributes:
        labels: targets of the images, as their task reads them: a tensor (N, ...), of class indices int64 (N,), of
            masks uint8 (N, H, W); or a tuple of one object for each image. None without.
        class_names: name of each class index; empty where unknown.
        names: file name of each image (or its number).
        notes: sentences a person should read (files skipped, and why).
        indicative: True for random inputs, whose figures are indicative only.
    """

    labels: PerImage | None
    class_names: tuple[str, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...]
    indicative: bool

    def __len__(self) -> int:
        """Return the number of images."""

    def batch(self, start: int, stop: int) -> torch.Tensor:
        """Return images ``start`` to ``stop`` (exclusive), float32 (n, C, H, W), normalised."""

    def subset(self, indices: Sequence[int]) -> Self:
        """Return the images at ``indices``, in that order."""


@dataclass(eq=False)
class TensorImages:
    """An :class:`ImageSet` over one tensor in memory, float32 (N, C, H, W) and already normalised."""

    images: torch.Tensor
    labels: PerImage | None = None
    _: KW_ONLY
    class_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    indicative: bool = False

    def __post_init__(self) -> None:
        self.names = self.names or tuple(map(str, range(len(self.images))))

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, start: int, stop: int) -> torch.Tensor:
        """Return images ``start`` to ``stop`` (exclusive), float32 (n, C, H, W)."""
        return self.images[start:stop]

    def subset(self, indices: Sequence[int]) -> Self:
        """Return the images at ``indices``, in that order."""
        index = torch.as_tensor(list(indices), dtype=torch.long)
        labels = None if self.labels is None else chosen_of(self.labels, indices)
        return replace(self, images=self.images[index], labels=labels, names=tuple(self.names[i] for i in indices))


def draw(images: ImageSet, num_samples: int | None, seed: int) -> ImageSet:
    """Return ``num_samples`` of the images, drawn by ``seed`` and in their old order; all for None or if fewer."""
    if num_samples is None or num_samples >= len(images):
        return images
    return images.subset(sorted(draw_order(len(images), num_samples, seed)[:num_samples]))


def draw_order(count: int, num_samples: int | None, seed: int) -> list[int]:
    """Return the order in which ``count`` images are drawn; without ``num_samples``, the order they are in."""
    if num_samples is None:
        return list(range(count))
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


@dataclass(eq=False)
class PreparedImages:
    """An :class:`~senseapp.data.images.ImageSet` over uint8 pixels (M, C, H, W), of which ``rows`` are the images.

    A subset shares the pixels, and has labels of its own. Batches are scaled and normalised exactly as timm's transform
    does it, once their channels are in the order of the preprocessing.

    Attributes:
        picture_size: (width, height) in pixels that most of them had before they were resized, if any.
        num_marked: how many have a rotation mark of their camera.
        label_orders: orders of the classes that fit the labels, if that is not certain; labels follow the first.
        written: annotations in the class numbers of their files.
        read_as: makes labels and class names of these by one of the orders.
    """

    pixels: torch.Tensor
    preprocessing: Preprocessing
    labels: PerImage | None = None
    _: KW_ONLY
    rows: torch.Tensor = None  # type: ignore[assignment]  # of all pixels where they are not given
    class_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    picture_size: tuple[int, int] | None = None
    num_marked: int = 0
    label_orders: tuple[LabelMapProposal, ...] = ()
    written: PerImage | None = None
    read_as: Callable[[PerImage, LabelMapProposal], tuple[PerImage, tuple[str, ...]]] | None = None
    indicative: bool = False

    def __post_init__(self) -> None:
        self.rows = torch.arange(len(self.pixels)) if self.rows is None else self.rows
        self.names = self.names or tuple(map(str, range(len(self.rows))))

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, start: int, stop: int) -> torch.Tensor:
        """Return images ``start`` to ``stop`` (exclusive), float32 (n, C, H, W), normalised."""
        mean, std = (
            torch.tensor(values).view(-1, 1, 1) for values in (self.preprocessing.mean, self.preprocessing.std)
        )
        pictures = self.pixels[self.rows[start:stop]]  # (n, C, H, W)
        leave_on_disk(self.pixels)
        if self.preprocessing.channel_order == "bgr":
            pictures = torch.cat([pictures[:, :3].flip(1), pictures[:, 3:]], dim=1)
        return pictures.float().div_(255).sub_(mean).div_(std)

    def subset(self, indices: Sequence[int]) -> Self:
        """Return the images at ``indices``, in that order."""
        return replace(
            self,
            labels=None if self.labels is None else chosen_of(self.labels, indices),
            written=None if self.written is None else chosen_of(self.written, indices),
            rows=self.rows[torch.as_tensor(list(indices), dtype=torch.long)],
            names=tuple(self.names[i] for i in indices),
        )


def follow(images: ImageSet, class_map: Sequence[tuple[str, int]]) -> bool:
    """Return whether the labels of ``images`` are those of ``class_map``, one of the orders that fit them."""
    orders = images.label_orders if isinstance(images, PreparedImages) else ()
    return bool(orders) and orders[0].pairs == tuple(class_map)


def effective_preprocessing(spec: DataSpec, preprocessing: Preprocessing) -> Preprocessing:
    """Return the model's own preparation with the overrides of ``spec``; InvalidSpec where they lack a channel."""
    channels = preprocessing.input_shape[0]
    for what in ("mean", "std"):
        numbers = getattr(spec, what)
        if numbers and len(numbers) != channels:
            raise InvalidSpec(
                f"{what} must hold one number per channel, {channels} for this model, got {len(numbers)}."
            )
    return replace(
        preprocessing,
        mean=spec.mean or preprocessing.mean,
        std=spec.std or preprocessing.std,
        crop_pct=preprocessing.crop_pct if spec.crop_pct is None else spec.crop_pct,
        fit=spec.fit or preprocessing.fit,
        channel_order=spec.channel_order or preprocessing.channel_order,
    )


def channel_mode(preprocessing: Preprocessing) -> ChannelMode:
    """Return how pictures are decoded for this model; InvalidDataset where it takes more channels than are read."""
    modes: dict[int, ChannelMode] = {1: "L", 3: "RGB"}
    channels = preprocessing.input_shape[0]
    if channels > MAX_CHANNELS:
        raise InvalidDataset(
            f"Pictures are read with up to {MAX_CHANNELS} channels, and this model takes {channels}. Measure it on "
            "random inputs."
        )
    return modes.get(channels, "bands")


def transform_of(preprocessing: Preprocessing, *, upright: bool = False) -> EvalTransform:
    """Return the geometric part of ``preprocessing``; scaling and normalisation are left to the batch.

    Kept as bytes, pictures take a quarter of the memory.
    """
    _, height, width = preprocessing.input_shape
    return EvalTransform(
        width=width,
        height=height,
        crop_pct=preprocessing.crop_pct,
        interpolation=preprocessing.interpolation,
        upright=upright,
        fit=preprocessing.fit,
    )


def prepared_as(preprocessing: Preprocessing, pictures: Iterable[Image.Image], *, what: str) -> torch.Tensor:
    """Return pictures of equal size, ``what`` in a sentence, as the pixels (N, C, H, W) of :class:`PreparedImages`.

    Raises InvalidDataset where the model takes no pictures.
    """
    mode, transform = channel_mode(preprocessing), transform_of(preprocessing)
    if mode == "bands":
        raise InvalidDataset(
            f"{what} have 3 channels, and this model takes {preprocessing.input_shape[0]}. Bring your own images, or "
            "measure on random inputs."
        )
    return torch.stack(
        [
            pixels_of([transform.geometry(picture.size).picture(picture.convert(mode), transform.resampling)])
            for picture in pictures
        ]
    )


def pixels_of(bands: Sequence[Image.Image]) -> torch.Tensor:
    """Return a picture, or the grey ones of its channels, as uint8 (C, H, W)."""
    planes = [np.asarray(band).reshape(band.height, band.width, -1) for band in bands]
    return torch.from_numpy(np.concatenate(planes, axis=2).transpose(2, 0, 1).copy())
