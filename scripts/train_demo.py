"""Train the demo network on the training digits and write ``assets/demo.safetensors``.

Everything is seeded and runs on one thread, so that two runs on one machine give the same bits. Another processor
or another version of torch may round differently.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from senseapp.core.codec import dumps
from senseapp.data.images import TensorImages
from senseapp.data.load import load_demo_images
from senseapp.networks.sources.demo import DEMO_WEIGHTS, build_demo_network
from senseapp.records.spec import ModelSpec
from senseapp.server.model_cards import SHIPPED_CARD, load_card

REQUIRED_TOP1 = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the shipped weights were trained; written into the metadata of the file.

    Attributes:
        rotation: largest turn of an augmented picture, in radians, either way.
        scaling: largest relative change of size.
        shift: largest move, as a fraction of half the width.
    """

    seed: int = 1
    epochs: int = 40
    batch_size: int = 64
    learning_rate: float = 0.01
    warmup_fraction: float = 0.2
    rotation: float = 0.17
    scaling: float = 0.1
    shift: float = 0.125


def augment(images: torch.Tensor, recipe: Recipe, generator: torch.Generator) -> torch.Tensor:
    """Return ``images`` (N, 1, H, W), each turned, scaled and moved at random; what comes in is background."""
    turn, scale, *move = (2 * torch.rand(4, len(images), generator=generator) - 1).unbind()  # in −1 … 1
    angle, factor = recipe.rotation * turn, 1 + recipe.scaling * scale
    cosine, sine = factor * angle.cos(), factor * angle.sin()
    shift_x, shift_y = (recipe.shift * amount for amount in move)
    rows = [torch.stack([cosine, -sine, shift_x], 1), torch.stack([sine, cosine, shift_y], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    background = images.amin()  # grid_sample fills with 0, which is mid-grey after normalisation
    return F.grid_sample(images - background, grid, align_corners=False) + background


def batches(images: TensorImages, recipe: Recipe, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield the indices of one epoch in random order; the incomplete last batch is left out."""
    order = torch.randperm(len(images), generator=generator)
    for start in range(0, len(images) - recipe.batch_size + 1, recipe.batch_size):
        yield order[start : start + recipe.batch_size]


def train(build: Callable[[], nn.Module], images: TensorImages, recipe: Recipe) -> nn.Module:
    """Return the network that ``build`` makes, trained on ``images`` (Adam, one-cycle learning rate, cross-entropy)."""
    assert images.labels is not None
    torch.manual_seed(recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    network = build()
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.learning_rate)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        recipe.learning_rate,
        total_steps=recipe.epochs * (len(images) // recipe.batch_size),
        pct_start=recipe.warmup_fraction,
    )
    network.train()
    for _ in range(recipe.epochs):
        for index in batches(images, recipe, generator):
            scores = network(augment(images.images[index], recipe, generator))
            loss = F.cross_entropy(scores, images.labels[index])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            scheduler.step()
    return network.eval()


@torch.inference_mode()
def top1(network: nn.Module, images: TensorImages) -> float:
    """Return the fraction of ``images`` whose highest score is their label's."""
    assert images.labels is not None
    return float((network(images.images).argmax(1) == images.labels).double().mean())


def write_weights(network: nn.Module, recipe: Recipe, heldout_top1: float) -> None:
    """Write the weights with the recipe and the accuracy of this training as metadata."""
    record = {
        "recipe": json.dumps(asdict(recipe)),
        "heldout_top1_when_trained": f"{heldout_top1:.4f}",
        "torch": torch.__version__,
        "images": "UCI optical digits (Alpaydin and Kaynak, CC BY 4.0), as in scikit-learn",
    }
    safetensors.torch.save_file(network.state_dict(), DEMO_WEIGHTS, metadata=record)


def main() -> None:
    """Train, and write the file if it is as good as it should be."""
    torch.set_num_threads(1)
    recipe = Recipe()
    network = train(build_demo_network, load_demo_images("train"), recipe)
    heldout_top1 = top1(network, load_demo_images("heldout"))
    print(f"held-out top-1 {heldout_top1:.4f}")
    if heldout_top1 < REQUIRED_TOP1:
        sys.exit(f"below the required {REQUIRED_TOP1}; nothing was written")
    write_weights(network, recipe, heldout_top1)
    SHIPPED_CARD.write_text(dumps(load_card(ModelSpec())) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
