"""The model's own way to prepare pictures, with timm's transforms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from PIL import Image
from timm.data import create_transform

from senseapp.data.decoding import ChannelMode
from senseapp.errors import InvalidDataset, InvalidSpec
from senseapp.models.loaded import Preprocessing
from senseapp.spec.run import DataSpec


def effective_preprocessing(spec: DataSpec, preprocessing: Preprocessing) -> Preprocessing:
    """Return the model's own preparation with the overrides of ``spec``.

    Raises:
        InvalidSpec: an override does not have one number per channel.
    """
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
        channel_order=spec.channel_order,
    )


def channel_mode(preprocessing: Preprocessing) -> ChannelMode:
    """Return how pictures are decoded for this model: grey or colour.

    Raises:
        InvalidDataset: the model takes neither one channel nor three.
    """
    modes: dict[int, ChannelMode] = {1: "L", 3: "RGB"}
    channels = preprocessing.input_shape[0]
    if channels not in modes:
        raise InvalidDataset(
            f"Picture files have 1 or 3 channels, and this model takes {channels}. Measure it on random inputs."
        )
    return modes[channels]


def cropping(preprocessing: Preprocessing) -> Callable[[Image.Image], torch.Tensor]:
    """Return timm's resize and centre crop, from a picture to uint8 (C, H, W).

    Scaling to 0 to 1 and normalisation, which timm does next, are left to the batch: kept as bytes, pictures take
    a quarter of the memory.
    """
    crop: Callable[[Image.Image], torch.Tensor] = create_transform(
        input_size=preprocessing.input_shape,
        is_training=False,
        crop_pct=preprocessing.crop_pct,
        interpolation=preprocessing.interpolation,
        normalize=False,
    )
    return crop
