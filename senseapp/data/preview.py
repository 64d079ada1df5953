"""A few images as the network sees them, for people to look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from senseapp.data.images import ImageSet
from senseapp.models.loaded import Preprocessing


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Images chosen evenly over the set, so that sorted classes are all seen.

    Attributes:
        indices: their places in the set; hand them to ``images.subset`` to predict the same ones.
        pictures: uint8 RGB (n, H, W, 3).
    """

    indices: tuple[int, ...]
    pictures: npt.NDArray[np.uint8]


def preview(images: ImageSet, preprocessing: Preprocessing, count: int = 12) -> Preview:
    """Return at most ``count`` images, cropped as the network sees them and back in visible colours.

    Args:
        images: the prepared set.
        preprocessing: what it was prepared with, see :func:`~senseapp.data.effective_preprocessing`.
        count: how many.
    """
    indices = tuple(dict.fromkeys(np.linspace(0, len(images) - 1, count).round().astype(int).tolist()))
    chosen = images.subset(indices).batch(0, len(indices))
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
    visible = (chosen * std + mean).mul(255).round().clamp(0, 255).byte()  # (n, C, H, W)
    if preprocessing.channel_order == "bgr":
        visible = visible.flip(1)
    if visible.shape[1] != 3:
        visible = visible[:, :1].expand(-1, 3, -1, -1)
    return Preview(indices=indices, pictures=visible.permute(0, 2, 3, 1).contiguous().numpy())
