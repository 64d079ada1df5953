"""Train the small detector of the tests on pictures of rectangles, and store its weights.

Usage: ``python -m benchmarks.train_shapes_detector [--epochs N]``; some minutes on one core.
"""

from __future__ import annotations

import argparse
import time

import torch
from safetensors.torch import save_file

from senseapp.networks.sources.demo import build_detector
from tests.shapes_detector import SIDE, WEIGHTS, inputs

_PICTURES, _FIRST, _BATCH = 800, 100_000, 32


def main() -> None:
    """Train and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    epochs = parser.parse_args().epochs
    module = build_detector().train()
    images, targets = inputs(range(_FIRST, _FIRST + _PICTURES))
    pictures = images * 0.25 + 0.5  # torchvision's own forward normalises
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=1e-4)
    steps = epochs * (_PICTURES // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    started = time.perf_counter()
    for epoch in range(epochs):
        total = 0.0
        for chosen in torch.randperm(_PICTURES).split(_BATCH):
            batch = [pictures[index] for index in chosen]
            losses = module(batch, [targets[index] for index in chosen])
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        print(f"{epoch}: {total * _BATCH / _PICTURES:.3f} after {time.perf_counter() - started:.0f} s", flush=True)
    WEIGHTS.parent.mkdir(exist_ok=True)
    save_file({name: value.contiguous() for name, value in module.eval().state_dict().items()}, WEIGHTS)
    print(f"{SIDE} pixels, {sum(each.numel() for each in module.parameters()):,} weights: {WEIGHTS}")


if __name__ == "__main__":
    main()
