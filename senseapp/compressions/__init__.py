"""Compressions: one folder each with its settings and its behaviour; importing this loads no torch."""

from senseapp.compressions.pruning import PRUNING, PruningConfig
from senseapp.compressions.quantization import QUANTIZATION, QuantizationConfig
from senseapp.compressions.sparsity import SPARSITY, SparsityConfig

__all__ = ["PRUNING", "QUANTIZATION", "SPARSITY", "PruningConfig", "QuantizationConfig", "SparsityConfig"]
