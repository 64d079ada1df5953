"""What other programs leave of this machine's processors, as a script of its own: nothing else holds its interpreter.

python senseapp/core/load.py PROCESSORS
"""

import hashlib
import subprocess
import sys
import threading
import time

_SECONDS = 0.2  # for which all processors are kept busy
_BLOCK = bytes(1 << 20)
_PATIENCE_SECONDS = 5.0  # twenty-five times as long


def share_left(processors: int) -> float | None:
    """Return the share of a processor that a thread on each of them gets now, from a process like those that work.

    At most 1; None without an answer. Like a worker it has a session of its own, among which Linux shares processors.
    """
    command = [sys.executable, "-I", __file__, str(processors)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_PATIENCE_SECONDS, start_new_session=True
        )
        return min(1.0, max(1e-3, float(done.stdout)))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None  # only a prediction depends on it


def _measured(processors: int) -> float:
    got, began = [0.0] * processors, time.perf_counter()

    def compute(place: int) -> None:
        start = time.thread_time()
        while time.perf_counter() < began + _SECONDS:
            hashlib.sha256(_BLOCK)  # without the interpreter's lock
        got[place] = time.thread_time() - start

    threads = [threading.Thread(target=compute, args=(place,)) for place in range(processors)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(got) / (processors * (time.perf_counter() - began))


if __name__ == "__main__":
    sys.stdout.write(str(_measured(int(sys.argv[1]))))
