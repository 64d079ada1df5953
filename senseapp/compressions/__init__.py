"""Compressions: one folder each with its settings and its description; importing this loads no torch.

A new one is a folder beside these and one line in the registry below.
"""

from senseapp.compressions.description import (
    BudgetKind,
    CompressionConfig,
    CompressionDescription,
    Effect,
    Option,
    all_descriptions,
    get,
    names,
    option,
    options_of,
    register,
    unregister,
)
from senseapp.compressions.levels import DENSE_BITS, BitScale, FractionScale, LevelScale, parse_numbers, tidy_level
from senseapp.compressions.pruning import PRUNING, PruningConfig
from senseapp.compressions.quantization import QUANTIZATION, QuantizationConfig
from senseapp.compressions.sparsity import SPARSITY, SparsityConfig

__all__ = [
    "DENSE_BITS",
    "BitScale",
    "BudgetKind",
    "CompressionConfig",
    "CompressionDescription",
    "Effect",
    "FractionScale",
    "LevelScale",
    "Option",
    "PruningConfig",
    "QuantizationConfig",
    "SparsityConfig",
    "all_descriptions",
    "get",
    "names",
    "option",
    "options_of",
    "parse_numbers",
    "register",
    "tidy_level",
    "unregister",
]

register(SPARSITY)
register(PRUNING)
register(QUANTIZATION)
