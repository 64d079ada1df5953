"""Compressions: one folder each with its settings and its behaviour; importing this loads no torch.

A new one is a folder beside these and one line in :data:`senseapp.descriptions.COMPRESSIONS`, or a package of its own
with an entry point in the group ``senseapp.compressions``.
"""

from senseapp.compressions.pruning import PRUNING, PruningConfig
from senseapp.compressions.quantization import QUANTIZATION, QuantizationConfig
from senseapp.compressions.sparsity import SPARSITY, SparsityConfig

__all__ = ["PRUNING", "QUANTIZATION", "SPARSITY", "PruningConfig", "QuantizationConfig", "SparsityConfig"]
