"""How the threads of one forward pass wait for each other."""

from __future__ import annotations

import os

__all__ = ["sleep_while_waiting"]


def sleep_while_waiting() -> None:
    """Let idle threads of a pass sleep rather than spin; to be called before torch is loaded.

    A pass waits for its slowest thread after each operation. A thread that spins meanwhile takes the processor from
    whatever else runs, and that may be the very thread it waits for: with nine busy processes on two cores, a pass of a
    small network took 690 to 960 ms with spinning threads and 130 ms with sleeping ones. What the environment says
    already is left as it is.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
