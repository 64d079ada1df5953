"""The finer choices of each compression, in "More options"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import streamlit as st

from senseapp.spec import CompressionConfig, PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.ui.option_words import (
    NUMBER_FORMATS,
    OBSERVERS,
    PRUNING_CRITERIA,
    SPARSITY_CRITERIA,
    SPARSITY_GRANULARITIES,
)

OptionT = TypeVar("OptionT", bound=str)


def choose_config(draft: CompressionConfig, *, kind: str) -> CompressionConfig:
    """Show the choices of one compression, prefilled with ``draft`` where it is of that kind."""
    return _CHOOSERS[kind](draft)


def _select(label: str, options: Mapping[OptionT, str], value: OptionT, *, key: str, help_text: str) -> OptionT:
    """Show a selectbox of named options; a value that is not offered (anymore) falls back to the first."""
    chosen = st.selectbox(
        label,
        list(options),
        index=list(options).index(value),
        format_func=lambda name: options[name],
        key=f"analyze.options.{key}",
        help=help_text,
        persist_state="session",
    )
    return chosen if chosen in options else next(iter(options))


def _sparsity(draft: CompressionConfig) -> SparsityConfig:
    held = draft if isinstance(draft, SparsityConfig) else SparsityConfig()
    return SparsityConfig(
        granularity=_select(
            "Granularity",
            SPARSITY_GRANULARITIES,
            held.granularity,
            key="sparsity.granularity",
            help_text="What is set to zero as a whole. Coarser patterns run faster on common hardware and cost more "
            "accuracy. 2:4 has one level: 50 %.",
        ),
        criterion=_select(
            "Criterion",
            SPARSITY_CRITERIA,
            held.criterion,
            key="sparsity.criterion",
            help_text="How the weights to zero are found. Wanda also looks at the images.",
        ),
    )


def _pruning(draft: CompressionConfig) -> PruningConfig:
    held = draft if isinstance(draft, PruningConfig) else PruningConfig()
    return PruningConfig(
        criterion=_select(
            "Criterion",
            PRUNING_CRITERIA,
            held.criterion,
            key="pruning.criterion",
            help_text="How the channels to remove are found, over all layers that must go together.",
        )
    )


def _quantization(draft: CompressionConfig) -> QuantizationConfig:
    held = draft if isinstance(draft, QuantizationConfig) else QuantizationConfig()
    number_format = _select(
        "Number format",
        NUMBER_FORMATS,
        held.number_format,
        key="quantization.format",
        help_text="The 8-bit float has one level: 8 bits.",
    )
    per_channel = st.toggle(
        "One scale per channel",
        value=held.granularity == "channel",
        key="analyze.options.quantization.per_channel",
        help="A scale of its own for each output channel; off: one for the whole layer, which costs more accuracy.",
        persist_state="session",
    )
    activations = st.toggle(
        "Quantize activations too",
        value=held.activations,
        key="analyze.options.quantization.activations",
        help="Also round the layer's input to the same number of bits, with ranges from calibration images.",
        persist_state="session",
    )
    observer = held.observer
    if activations:
        observer = _select(
            "Activation range",
            OBSERVERS,
            held.observer,
            key="quantization.observer",
            help_text="How the range is chosen from the calibration images; a range that ignores outliers is often "
            "better.",
        )
    return QuantizationConfig(
        number_format=number_format,
        granularity="channel" if per_channel else "tensor",
        activations=activations,
        observer=observer,
    )


_CHOOSERS: dict[str, Callable[[CompressionConfig], CompressionConfig]] = {
    "sparsity": _sparsity,
    "pruning": _pruning,
    "quantization": _quantization,
}
