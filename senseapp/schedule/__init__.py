"""One level per layer for a budget: the optimal choice, the classic rule, and the uniform one to compare with."""

from senseapp.schedule.accounting import budget_kinds
from senseapp.schedule.choices import weight_bytes
from senseapp.schedule.from_result import damage_metric
from senseapp.schedule.gamma import layer_targets
from senseapp.schedule.limits import Limits
from senseapp.schedule.methods import METHODS, make_schedule

__all__ = ["METHODS", "Limits", "budget_kinds", "damage_metric", "layer_targets", "make_schedule", "weight_bytes"]
