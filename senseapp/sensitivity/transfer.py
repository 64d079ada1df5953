"""Sending images to the device that measures."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(batch: Tensor, device: torch.device) -> Tensor:
    """Return ``batch`` on ``device``.

    Only from page-locked memory does a card copy by itself, while this thread prepares the next batch and passes are
    under way; what is read of it waits. torch keeps the page-locked copy until the card has it.
    """
    if device.type != "cuda" or batch.device.type != "cpu":
        return batch.to(device)
    return batch.pin_memory().to(device, non_blocking=True)
