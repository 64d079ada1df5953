"""Descriptions of compressions, sources of networks and runtimes: plain values that all else is derived from."""

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
from senseapp.descriptions.levels import DENSE_BITS, BitScale, LevelScale, parse_numbers, tidy_level
from senseapp.descriptions.sources import SOURCES, ModelSource

__all__ = [
    "COMPRESSIONS",
    "DENSE_BITS",
    "SOURCES",
    "BitScale",
    "BudgetKind",
    "CompressionConfig",
    "CompressionDescription",
    "Effect",
    "LevelScale",
    "ModelSource",
    "Option",
    "all_descriptions",
    "get",
    "names",
    "option",
    "options_of",
    "parse_numbers",
    "tidy_level",
]
