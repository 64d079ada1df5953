"""Run an ONNX file in onnxruntime, as the people do who take it away: its outputs, and its times."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from torch import Tensor

from senseapp.core.errors import InvalidSpec, first_line_of, is_about_memory
from senseapp.core.process import quiet
from senseapp.records.deployment import Median
from senseapp.runtimes.onnxruntime.integer_arithmetic import UNDONE_BY, computed_on_integers

TURNS = 41
"""How often each network runs for its time: enough that the interval of its median leaves out the slow quarter."""


_COMPARING_TURNS = 21  # where only the ratio counts


class RuntimeModel:
    """An ONNX file in memory, open in onnxruntime on the CPU.

    It runs on ``threads``, which times are taken on; where only its outputs count, on as many as torch does. With
    ``simulated``, a QDQ file computes in float what its integers are meant to, whatever this processor makes of
    them.

    Raises:
        InvalidSpec: the runtime cannot open it.
    """

    def __init__(self, content: bytes, *, threads: int | None = None, simulated: bool = False) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        if threads is None:  # threads that wait actively would take time from other files that are being timed
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3  # errors; the rest would blur the one line of a command
        disabled = UNDONE_BY if simulated else ()
        if simulated:
            content = computed_on_integers(content)
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        try:
            self._session = onnxruntime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
            )
        except Exception as error:  # onnxruntime raises one class for each of its states, all undocumented
            if is_about_memory(error):
                raise
            raise InvalidSpec(f"onnxruntime cannot open this network: {first_line_of(error)}.") from error
        (self._input,) = self._session.get_inputs()

    @property
    def fixed_batch(self) -> int | None:
        """Images that each call must have; None for any number."""
        size = self._input.shape[0]
        return size if isinstance(size, int) else None

    def __call__(self, images: Tensor) -> Tensor:
        """Return the first output for ``images``, (N, C, H, W), float32 (N, ...)."""
        parts = torch.split(images, self.fixed_batch) if self.fixed_batch else (images,)
        values = [self._session.run(None, {self._input.name: _array(part)})[0] for part in parts]
        return torch.from_numpy(np.concatenate(values)).float()

    def tensors(self, images: Tensor) -> dict[str, Tensor]:
        """Return all outputs for ``images``, as many as :attr:`fixed_batch` says, by name."""
        found = self._session.run(None, {self._input.name: _array(images)})
        names = [each.name for each in self._session.get_outputs()]
        return {name: torch.from_numpy(values) for name, values in zip(names, found, strict=True)}

    def outputs(self, batches: Iterable[Tensor]) -> Tensor:
        """Return the output for all images of ``batches``, each (N, C, H, W)."""
        return torch.cat([self(batch) for batch in batches])


def times(models: Sequence[RuntimeModel], images: Tensor, *, turns: int = TURNS) -> list[list[float]]:
    """Return, for each model, the seconds of ``turns`` calls on ``images``.

    The models take turns, so that turn *i* of one was made beside turn *i* of the others, and whatever else the
    machine does meets them alike.
    """
    seconds: list[list[float]] = [[] for _ in models]
    with quiet():
        for turn in range(turns + 1):
            for model, spent in zip(models, seconds, strict=True):
                started = time.perf_counter()
                model(images)
                if turn:  # the first call prepares kernels
                    spent.append(time.perf_counter() - started)
    return seconds


def ratio(seconds: Sequence[float], to: Sequence[float]) -> Median:
    """Return the median of the ratios, turn by turn, of ``seconds`` to those of another model of :func:`times`."""
    return Median.of([one / other for one, other in zip(seconds, to, strict=True)])


def time_ratio(file: bytes, other: bytes, images: Tensor, *, threads: int = 1) -> float:
    """Return the time of a file on ``images`` as a multiple of that of another, run in turns."""
    models = [RuntimeModel(content, threads=threads) for content in (file, other)]
    return ratio(*times(models, images, turns=_COMPARING_TURNS)).value


_DOT_PRODUCTS = ("avx512_vnni", "avx_vnni", "asimd_dot")  # of four products of 8 bits, added in 32


def machine() -> str:
    """Return the processor and the runtime: ``AMD EPYC without VNNI, onnxruntime 1.32.0``."""
    found = torch.cpu.get_capabilities()
    name = found.get("cpu_name") or platform.processor() or platform.machine()
    vnni = "with VNNI" if any(found.get(flag) for flag in _DOT_PRODUCTS) else "without VNNI"
    return f"{name} {vnni}, onnxruntime {onnxruntime.__version__}"


def _array(images: Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(images.detach().cpu().float().numpy())
