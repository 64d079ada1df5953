"""What compressions say about themselves: plain values that records, pages and commands are derived from."""

from senseapp.descriptions.compressions import (
    COMPRESSIONS,
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
)
from senseapp.descriptions.levels import DENSE_BITS, BitScale, FractionScale, LevelScale, parse_numbers, tidy_level

__all__ = [
    "COMPRESSIONS",
    "DENSE_BITS",
    "BitScale",
    "BudgetKind",
    "CompressionConfig",
    "CompressionDescription",
    "Effect",
    "FractionScale",
    "LevelScale",
    "Option",
    "all_descriptions",
    "get",
    "names",
    "option",
    "options_of",
    "parse_numbers",
    "tidy_level",
]
