"""Train the detector of the third demo on pictures of rectangles over photographs, and store its weights.

Usage: ``python -m scripts.train_demo_detector [--epochs N] [--start WEIGHTS]``; some minutes on one core. The weights
in ``assets`` were trained for 16 epochs from those of ``tests/data/shapes_detector.safetensors``, which
``benchmarks/train_shapes_detector.py`` trained on rectangles without photographs.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from senseapp.data.demo_pictures import shapes
from senseapp.networks.sources.demo import DETECTOR_WEIGHTS, build_detector

_PICTURES, _FIRST, _BATCH = 800, 100_000, 32


def main() -> None:
    """Train and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--start", type=Path, help="weights to start from (default: random ones)")
    asked = parser.parse_args()
    module = build_detector().train()
    if asked.start:
        module.load_state_dict(load_file(asked.start))
    torch.manual_seed(0)
    # Odd and even numbers lie on the photographs that are measured on, and on the others; none is one of the demo's.
    scenes = [shapes(-index if index % 2 else index) for index in range(_FIRST, _FIRST + _PICTURES)]
    pictures = torch.stack([torch.from_numpy(picture).permute(2, 0, 1) for picture, _ in scenes]) / 255
    rows = [torch.tensor(found, dtype=torch.float32).reshape(-1, 5) for _, found in scenes]
    targets = [{"boxes": each[:, 1:], "labels": each[:, 0].long()} for each in rows]
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=1e-4)
    steps = asked.epochs * (_PICTURES // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    started = time.perf_counter()
    for epoch in range(asked.epochs):
        total = 0.0
        for chosen in torch.split(torch.randperm(_PICTURES), _BATCH):
            losses = module([pictures[index] for index in chosen], [targets[index] for index in chosen])
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        print(f"{epoch}: {total * _BATCH / _PICTURES:.3f} after {time.perf_counter() - started:.0f} s", flush=True)
    save_file({name: value.contiguous() for name, value in module.eval().state_dict().items()}, DETECTOR_WEIGHTS)
    print(f"{sum(each.numel() for each in module.parameters()):,} weights: {DETECTOR_WEIGHTS}")


if __name__ == "__main__":
    main()
