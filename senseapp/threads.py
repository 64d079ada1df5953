"""How the threads of one forward pass wait for each other."""

from __future__ import annotations

import os

_SPINS = "3000"  # about a tenth of a millisecond, in which the next operation of a pass usually begins


def limit_spinning() -> None:
    """Let idle threads of a pass spin briefly, then sleep; to be called before torch is loaded.

    A pass waits for its slowest thread after each operation. A thread that spins meanwhile takes the processor from
    whatever else runs, and that may be the very thread it waits for; one that sleeps at once has to be woken for each
    operation. Passes of a small network, and of ResNet-50, took with threads that spin as they do by default, briefly,
    or not at all: alone on two cores 1.5, 1.5 and 4.9 ms, and 306, 337 and 348 ms; beside eight busy processes 720, 25
    and 15 ms, and 3,800, 1,930 and 1,830 ms. What the environment says already is left as it is. The number of spins
    is understood by GNU's library; where another one serves torch, its threads sleep at once.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
