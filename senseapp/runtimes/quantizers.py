"""Interface of quantizers: write a float file in int8 with a precision per node; calls of the libraries that do it."""

import io
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field

from torch import Tensor

from senseapp.compressions.quantization.grid import IntegerWeight
from senseapp.core.errors import InvalidSpec, first_line_of, is_about_memory
from senseapp.core.steps import OptionalSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingCause:
    """Why 8 bits of a tensor, which ``node`` makes, joins or reads, do harm, in a sentence.

    ``lost`` is how much is lost, from 0 for nothing to 1 for all values.
    """

    node: str
    tensor: str
    lost: float
    sentence: str


class Quantizer(ABC):
    """Writes one float file, ``network``, in int8, any of its nodes in float; ``notes`` say how files were made."""

    network: bytes
    notes: tuple[str, ...] = ()

    @abstractmethod
    def write(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        """Return the network with every node in int8 that can be, ``but`` not these, which stay in float.

        Nodes in ``weights_only`` compute in float with int8 weights; the smallest weights stay in float.
        """

    @abstractmethod
    def nodes(self, content: bytes) -> list[str]:
        """Return the names of the nodes of a file of this quantizer that compute in int8, in order."""

    def causes(self, nodes: Collection[str] | None = None) -> Sequence[RoundingCause]:
        """Return why int8 harms what ``nodes``, or all, compute: what loses most first; empty where that is unknown."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Images that a quantizer is fitted to, and how.

    Attributes:
        batches: images (N, C, H, W) that ranges and weights are fitted to.
        reduce_range: whether weights get 7 bits.
        int8_ends, activation_bits: int8 inputs and outputs, 8 or 16 bits, where the runtime has such files.
        held_out: images that a file is tested on, of which some tell whether ``batches`` are like them.
        integers: by node, those of its layer's weight, which are kept where the runtime's kernels can have them.
        steps: are told, and take the errors of what is optional.
    """

    batches: Sequence[Tensor]
    reduce_range: bool = False
    int8_ends: bool = False
    activation_bits: int = 8
    held_out: Sequence[Tensor] = ()
    integers: Mapping[str, IntegerWeight] = field(default_factory=dict)
    steps: OptionalSteps = field(default_factory=OptionalSteps)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultInt8:
    """The file of a runtime's own quantizer in a ``setting``, as ``quantize_static, per channel, min-max``."""

    content: bytes
    setting: str
    notes: tuple[str, ...] = ()


@contextmanager
def library_call(failed: str) -> Iterator[None]:
    """Hide progress, warnings and logs of the body; an error of any of its packages is InvalidSpec.

    Raises:
        InvalidSpec: the body failed; the message is ``failed`` and the cause.
    """
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        if is_about_memory(error):
            raise
        raise InvalidSpec(f"{failed}: {type(error).__name__}: {first_line_of(error)}.") from error
    finally:
        logging.disable(logging.NOTSET)
