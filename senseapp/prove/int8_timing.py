"""Whether int8 pays on this machine: a first file of the network, all of it in int8, beside the float file."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from senseapp.prove.file_times import FileTimes
from senseapp.records.int8_timing import Int8Timing
from senseapp.runtimes.base import Runtime

_BUSY = 1.5  # programs that want to run, for each processor


def time_int8(
    runtime: Runtime, network: bytes, images: Sequence[Tensor], *, threads: int = 1, batch: int = 1
) -> Int8Timing:
    """Return how long a float file's network takes in int8: all of it, with ranges of a few ``images``, run in turns.

    Time depends on shapes and precisions only, so the file of a search that leaves nothing in float takes as long. It
    is timed as that is (:class:`~senseapp.prove.file_times.FileTimes`): in some moments on a shared machine, float was
    seen to take 1.8 times as long and int8 no longer.

    Raises:
        InvalidSpec: the runtime cannot write it in int8, or run it.
    """
    int8 = runtime.in_place(network, runtime.quantizer(network, images).write())
    part = images[0]
    fixed = runtime.open(network, threads=threads).fixed_batch
    call = part if fixed else part[:1].expand(batch, *part.shape[1:])
    ratio = FileTimes(runtime, network, call, threads=threads).measure_precise(int8)
    return Int8Timing(ratio=ratio, machine=runtime.machine(), products=_int8_products())


def _int8_products() -> str:
    """Return the instructions of this processor for products of 8 bits; empty where it has none."""
    found = torch.cpu.get_capabilities()
    names = {"amx_int8": "AMX", "avx512_vnni": "VNNI", "avx_vnni": "VNNI", "asimd_dot": "dot products"}
    return ", ".join(dict.fromkeys(name for flag, name in names.items() if found.get(flag)))


def is_busy() -> bool:
    """Return whether more programs want to run than this machine has processors for, by half."""
    return os.getloadavg()[0] > _BUSY * (os.cpu_count() or 1)
