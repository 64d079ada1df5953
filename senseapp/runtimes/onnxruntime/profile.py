"""Times of kernels by onnxruntime's own profile."""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from senseapp.core.process import quiet
from senseapp.runtimes.onnxruntime.bench import RUNS, Kernel, Profiler, usual_input
from senseapp.runtimes.onnxruntime.runtime import INPUT_TYPES, RuntimeModel, machine

_KERNEL = "_kernel_time"


def _kernels(content: bytes, threads: int, batch: int) -> list[Kernel]:
    """Return the kernels of a network that runs in onnxruntime a few times on :func:`usual_input`."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        feeds = {each.name: _some(each, batch) for each in session.get_inputs()}
        with quiet():
            for _ in range(RUNS):
                session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    durations: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            about = event["args"]
            first: dict[str, list[int]] = next(iter(about["input_type_shape"]), {})
            values = math.prod(next(iter(first.values()), []))
            key = event["name"].removesuffix(_KERNEL), about["op_name"], values
            durations[key].append(event["dur"] / 1e6)
    return [Kernel(*key[:2], float(np.median(each[1:])), key[2]) for key, each in durations.items()]


def _some(declared: Any, batch: int) -> NDArray[Any]:
    shape = [size if isinstance(size, int) else batch for size in declared.shape]
    kind = INPUT_TYPES.get(declared.type, np.float32)
    return usual_input(shape, kind)


PROFILER = Profiler(
    kernels=_kernels, open=lambda content, threads: RuntimeModel(content, threads=threads), machine=machine
)
"""onnxruntime's."""
