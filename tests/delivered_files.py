"""Delivered files, opened as a person without senseapp opens them, with their answers counted one image at a time."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import safetensors.torch
import torch
from torch import Tensor, nn

from senseapp.records.candidate import Candidate
from senseapp.records.deployment import model_file

_BATCH = 50  # images at once, where the file does not say

Scores = npt.NDArray[np.float64]  # (images, classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The original network of a run, the images that judge its files, float32 (N, C, H, W), and labels, if any."""

    network: nn.Module
    images: Tensor
    labels: Tensor | None

    def counted(self, candidate: Candidate, folder: Path) -> dict[str, float]:
        """Return what a plain loop over the images finds for the file of ``candidate``, by metric."""
        return counted(self.original, self.scores(candidate, folder), self.labels)

    def scores(self, candidate: Candidate, folder: Path) -> Scores:
        """Return the scores of the file of ``candidate``."""
        path = folder / candidate.file
        if candidate.runs:
            return onnx_scores(path, self.images)
        return torch_scores(filled(self.network, read_weights(path)), self.images)

    @property
    def before(self) -> dict[str, float]:
        """What the same loop finds for the original network."""
        return counted(self.original, self.original, self.labels)

    @property
    def original(self) -> Scores:
        """Scores of the original network in torch."""
        return torch_scores(self.network, self.images)


def onnx_scores(path: Path, images: Tensor) -> Scores:
    """Return the scores that onnxruntime computes from the bytes of a file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    size = given.shape[0] if isinstance(given.shape[0], int) else _BATCH
    parts = [session.run(None, {given.name: part.numpy()})[0] for part in images.split(size)]
    return np.concatenate(parts).astype(np.float64)


def torch_scores(network: nn.Module, images: Tensor) -> Scores:
    """Return the scores of a network in torch."""
    with torch.no_grad():
        return torch.cat([network(part) for part in images.split(_BATCH)]).double().numpy()


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Return the state dict in a file of plain or packed weights; the latter by the lines shown beside it."""
    lines = model_file(path.name).reader(str(path))
    if not lines:
        return safetensors.torch.load(path.read_bytes())
    space: dict[str, Any] = {}
    exec(lines, space)  # the test runs what people are told to run
    return space["weights"]


def filled(network: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of ``network`` with the tensors of ``state``, which may have fewer channels."""
    found = copy.deepcopy(network).requires_grad_(False)
    own = found.state_dict()
    if all(own[name].shape == value.shape for name, value in state.items()):
        found.load_state_dict(dict(state), strict=True)
        return found
    assert set(own) == set(state)
    for name, value in state.items():
        owner, _, attribute = name.rpartition(".")
        module = found.get_submodule(owner)
        if attribute in module._parameters:
            setattr(module, attribute, nn.Parameter(value, requires_grad=False))
        else:
            setattr(module, attribute, value)
    for module in found.modules():
        if isinstance(module, nn.Conv2d) and module.groups == module.in_channels > 1:
            module.groups = len(module.weight)  # one filter for each channel that is left
        if isinstance(module, nn.LayerNorm):
            module.normalized_shape = tuple(module.weight.shape)
    return found


def counted(before: Scores, after: Scores, labels: Tensor | None) -> dict[str, float]:
    """Return the share of unchanged answers, the mean divergence in nats and, with labels, the share of right ones."""
    same = right = 0
    divergence = 0.0
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        same += int(np.argmax(old) == np.argmax(new))
        right += int(labels is not None and np.argmax(new) == int(labels[index]))
        divergence += _divergence(old, new)
    count = len(before)
    found = {"agreement": same / count, "kl": divergence / count}
    return found | ({"top1": right / count} if labels is not None else {})


def _divergence(old: npt.NDArray[np.float64], new: npt.NDArray[np.float64]) -> float:
    first, second = _log_shares(old.tolist()), _log_shares(new.tolist())
    return sum(math.exp(one) * (one - other) for one, other in zip(first, second, strict=True))


def _log_shares(scores: list[float]) -> list[float]:
    largest = max(scores)
    total = math.log(sum(math.exp(each - largest) for each in scores))
    return [each - largest - total for each in scores]
