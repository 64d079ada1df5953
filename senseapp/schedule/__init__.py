"""One level per layer for a budget: the optimal choice, the classic rule, and the uniform one to compare with."""

from senseapp.schedule.choices import weight_bytes
from senseapp.schedule.figures import budget_of, manual_schedule
from senseapp.schedule.from_result import damage_metric
from senseapp.schedule.gamma import layer_targets
from senseapp.schedule.methods import METHODS, make_schedule
from senseapp.schedule.mixed import mixed_schedule
from senseapp.schedule.search import strongest_within, with_true_size
from senseapp.schedule.tradeoff import TradeOffPoint, trade_off
from senseapp.schedule.true_size import true_figures, truly_sized
from senseapp.spec.limits import Limits

__all__ = [
    "METHODS",
    "Limits",
    "TradeOffPoint",
    "budget_of",
    "damage_metric",
    "layer_targets",
    "make_schedule",
    "manual_schedule",
    "mixed_schedule",
    "strongest_within",
    "trade_off",
    "true_figures",
    "truly_sized",
    "weight_bytes",
    "with_true_size",
]
