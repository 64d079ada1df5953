"""Channel selection by reconstruction error: the error that remains after the readers' other weights compensate.

A layer that reads channels x multiplies them by W. Without some of them, the remaining weights are changed to minimise
the error of its outputs; the error for a set c of inputs is tr W_c ([H⁻¹]_cc)⁻¹ W_cᵀ, with H the covariance of the
inputs. Units are removed greedily, each time the one with the least additional error, relative to the energy of each
reader's output.

Source: Frantar and Alistarh 2022, "Optimal Brain Compression", eq. 3 and 4 for groups of weights, here for channels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.compressions import obs
from senseapp.compressions.pruning.groups import ChannelGroup, positions_of, reading_cuts
from senseapp.core.errors import MeasurementFailed
from senseapp.networks.layer_product import LayerProduct


@dataclass(slots=True)
class _Reader:
    """One group of a layer that reads channels: its ``weight`` (O, K), and the squared norm of its output, ``energy``.

    ``inverse`` is that of the covariance of its inputs, (K, K); ``columns`` (U, c) are those of each of the ``units``
    (U,) that it reads.
    """

    weight: Tensor
    inverse: Tensor
    units: Tensor
    columns: Tensor
    energy: float

    def costs(self, num_units: int) -> Tensor:
        """Return the error of each unit, (num_units,), as a share of the energy of the reader's output."""
        costs = torch.zeros(num_units, dtype=self.weight.dtype)
        if self.columns.shape[1] == 1:  # equal to the general case, in a hundredth of its time
            each = self.weight.square().sum(0) / self.inverse.diagonal()
            costs[self.units] = each[self.columns[:, 0]] / self.energy
            return costs
        inner = self.inverse[self.columns[:, :, None], self.columns[:, None, :]]  # (U, c, c)
        own = self.weight[:, self.columns].movedim(1, 0)  # (U, O, c)
        solved = torch.linalg.solve(inner, own.transpose(1, 2)).transpose(1, 2)
        costs[self.units] = (own * solved).sum((1, 2)) / self.energy
        return costs

    def remove(self, unit: int) -> None:
        """Remove a unit and let the other weights compensate."""
        for gone in self.columns[self.units == unit]:
            across = self.inverse[gone]  # (c, K)
            change = torch.linalg.solve(across[:, gone], across)
            self.weight.addmm_(self.weight[:, gone], change, alpha=-1)
            self.inverse.addmm_(across.T, change, alpha=-1)
            self.weight[:, gone] = 0
            self.inverse[gone] = 0
            self.inverse[:, gone] = 0
            self.inverse[gone, gone] = 1


def least_error_order(group: ChannelGroup, moments: obs.InputMoments) -> list[int]:
    """Return the units of ``group``, ascending by the error after compensation.

    Raises MeasurementFailed if no layer reads the channels with weights that could compensate.
    """
    readers = list(_readers(group, moments))
    if not readers:
        raise MeasurementFailed(
            f"No layer that reads the channels of {group.members[0]} multiplies them in a way that can make up for "
            "others. Choose the magnitude criterion."
        )
    order: list[int] = []
    left = torch.ones(len(group.units), dtype=torch.bool)
    for _ in group.units:
        costs = torch.stack([reader.costs(len(left)) for reader in readers]).sum(0)
        costs[~left] = torch.inf
        unit = int(costs.argmin())
        left[unit] = False
        order.append(unit)
        for reader in readers:
            reader.remove(unit)
    return order


def reading_layers(group: ChannelGroup) -> dict[str, LayerProduct]:
    """Return the layers that read the channels of ``group`` and whose weights can compensate for removed ones."""
    return {
        group.graph.names[cut.layer]: LayerProduct(cut.layer, tuple(cut.layer.get_parameter("weight").shape))
        for cut in reading_cuts(group)
        if not LayerProduct.obstacle(cut.layer)
    }


def _readers(group: ChannelGroup, moments: obs.InputMoments) -> Iterator[_Reader]:
    layers = reading_layers(group)
    for cut in reading_cuts(group):
        name = group.graph.names[cut.layer]
        if name not in layers:
            continue
        product, found = layers[name], moments.of(name)
        covariance = obs.damped(found.about_mean, found.rows).double().cpu()
        weight = product.matrix(cut.layer.get_parameter("weight").detach()).double().cpu()
        read = [positions_of(cut, group.channels([unit])) for unit in range(len(group.units))]
        for index, (matrix, second) in enumerate(zip(weight, covariance, strict=True)):
            columns = {unit: _columns(product, positions, index) for unit, positions in enumerate(read)}
            columns = {unit: each for unit, each in columns.items() if each}
            if len(set(map(len, columns.values()))) != 1:  # skip a reader with unequal columns per unit
                continue
            yield _Reader(
                weight=matrix.clone(),
                inverse=torch.linalg.inv(second),
                units=torch.tensor(list(columns)),
                columns=torch.tensor(list(columns.values())),
                energy=float(((matrix @ second) * matrix).sum().clamp_min(1e-12)),  # a divisor
            )


def _columns(product: LayerProduct, positions: Sequence[int], group: int) -> list[int]:
    """Return the columns of the input channels ``positions`` in the rows of one group of a layer."""
    channels = product.weight_shape[1]
    kernel = product.width // channels
    own = [position - group * channels for position in positions if position // channels == group]
    return [channel * kernel + place for channel in own for place in range(kernel)]
