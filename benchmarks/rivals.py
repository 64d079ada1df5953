"""Other ways to choose levels, beside ours, at equal cost: ``python -m benchmarks.rivals [--networks NAME,NAME]``.

All choose from the same levels, measured alone on the same images, and none of them trains:

- *uniform*: one level for all layers;
- *rule*: fasterai's, strength by the rank of the damage (gamma 1.5); it knows no bits;
- *PSNR*: greedy, the layer whose next level disturbs the network's output least goes first (AIMET, coreai-opt);
- *gradients*: Σ (∂L/∂y)² (Δy)² of each layer's output, then the knapsack (modelopt's ``auto_quantize``); the labels are
  the network's own answers, and no channels can be removed;
- *estimated*, *measured*: ours, from a quick scan and from measurements; *adapted*: that, with adapted weights, and
  *uniform, adapted* beside it.

Scored on images that nothing was made from. Networks and curves are kept in ``.cache``.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.networks import BITS, NETWORKS, PRUNED
from benchmarks.real.network import ARCHITECTURE
from benchmarks.results import keep
from benchmarks.scans import Scan, opened, unseen
from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.compressions.base import CompressionRequest, WeightCompressor, build_compressor
from senseapp.core.errors import SenseError
from senseapp.core.process import become_measuring
from senseapp.descriptions import BudgetKind, CompressionConfig
from senseapp.networks.profile import profile_model
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.prove import true_figure
from senseapp.prove.repair_choice import measured
from senseapp.records.measurement import LayerMeasurement, RunResult
from senseapp.records.schedule import Adapting, Limits, ResourceBudget, Schedule
from senseapp.solve.curves import Choice
from senseapp.solve.methods import choices_by_layer, make_schedule
from senseapp.solve.problem import Problem, assemble, build_problem, infeasible
from senseapp.solve.trade_off import with_true_size

_ZEROS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_PASSED = 32  # images in a pass with gradients
_METHODS = ("uniform", "rule", "PSNR", "gradients", "estimated", "measured")
_ADAPTED = ("uniform, adapted", "adapted")
_OTHERS = _METHODS[:4]

Damages = Mapping[tuple[str, float], float]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One network compressed one way to one budget."""

    network: str
    what: str
    scan: Scan
    kind: BudgetKind
    target: float

    @property
    def title(self) -> str:
        """Network and budget."""
        name = ARCHITECTURE if self.network == ARCHITECTURE else NETWORKS[self.network].title
        return f"{name}, {self.what}"


def cases(network: str) -> Iterator[Case]:
    """Yield what is tried on one network."""

    def case(what: str, config: CompressionConfig, levels: Sequence[float], kind: BudgetKind, target: float) -> Case:
        scan = Scan(network=network, config=config, levels=tuple(levels), mode="exact")
        return Case(network=network, what=what, scan=scan, kind=kind, target=target)

    for bits in (4.0, 3.0, 2.5):
        yield case(f"{bits:g} bits", QuantizationConfig(), BITS, "bits", bits)
    yield case("W4A4", QuantizationConfig(activations=True), BITS, "bits", 4.0)
    yield case("W4A8", QuantizationConfig(activations=True, activation_bits="8"), BITS, "bits", 4.0)
    for zeros in (0.5, 0.7, 0.9, 0.95):
        yield case(f"{100 * zeros:g} % zeros", SparsityConfig(), _ZEROS, "params", zeros)
    yield case("2:4 in 80 % of the weights", SparsityConfig(granularity="2:4"), (0.5,), "params", 0.4)
    for macs in (0.3, 0.5, 0.7):
        yield case(f"{100 * macs:g} % of MACs", PruningConfig(), PRUNED, "macs", macs)


def greedy(result: RunResult, budget: ResourceBudget) -> Schedule:
    """Return the schedule that takes the least output noise first, level by level, until the budget is met."""
    problem = build_problem(result, budget, Limits(), metric="sqnr")
    choices = choices_by_layer(problem)
    places = dict.fromkeys(choices, 0)

    def saved() -> float:
        return sum(choices[layer][place].saving(problem.kind) for layer, place in places.items())

    while saved() < problem.required * (1 - 1e-9):
        left = [layer for layer, place in places.items() if place + 1 < len(choices[layer])]
        if not left:
            raise infeasible(problem, reachable=saved())
        places[min(left, key=lambda layer: choices[layer][places[layer] + 1].damage)] += 1
    return _assembled(problem, {layer: choices[layer][place] for layer, place in places.items()})


def _assembled(problem: Problem, chosen: Mapping[str, Choice]) -> Schedule:
    untouched = problem.curve_set.description.scale.untouched
    levels = {layer: choice.parts[0].level if choice.parts else untouched for layer, choice in chosen.items()}
    return assemble(problem.curve_set, problem.accounting, levels, method="manual", budget=problem.budget)


def made(case: Case, evaluator: ScheduleEvaluator, make: Callable[[ResourceBudget], Schedule]) -> Schedule | None:
    """Return what ``make`` finds, None where it cannot serve; of channels, what truly meets the budget when applied."""

    def asked(target: float) -> Schedule:
        return make(ResourceBudget(kind=case.kind, target=target))

    try:
        if case.kind != "macs":
            return asked(case.target)
        return with_true_size(
            asked, lambda tried: true_figure(evaluator, evaluator.apply(tried), case.kind), case.target
        )
    except SenseError:
        return None


def _compressor(case: Case) -> WeightCompressor:
    model, images = opened(case.network)
    calibration = tuple(images.curves.batch(0, 64).split(_PASSED))
    layers = profile_model(model.module, calibration[0][:1]).layers
    request = CompressionRequest(model=model.module, layers=layers, calibration=calibration)
    return cast(WeightCompressor, build_compressor(case.scan.config, request))


def gradient_scores(
    network: nn.Module, images: Tensor, compressor: WeightCompressor, levels: Sequence[float]
) -> Damages:
    """Return Σ (∂L/∂y)² (Δy)² by layer and level: L is the loss of the network's own answers, y the layer's output."""
    scores: dict[tuple[str, float], float] = defaultdict(float)
    for part in images.split(_PASSED):
        inputs, gradients = _with_gradients(network, part, [target.layer for target in compressor.targets])
        for target in compressor.targets:
            module, given = network.get_submodule(target.layer), inputs[target.layer]
            with torch.no_grad():
                output = module(given)
                for level in levels:
                    with compressor.compress(target, level):
                        change = module(given) - output
                    scores[target.layer, level] += float((gradients[target.layer] * change).square().sum())
    return scores


def _with_gradients(
    network: nn.Module, images: Tensor, layers: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the input of each layer, and the gradient of the loss by its output."""
    inputs: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}

    def watch(layer: str, _: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        inputs[layer] = given[0].detach().clone()
        output.register_hook(partial(gradients.__setitem__, layer))

    handles = [network.get_submodule(layer).register_forward_hook(partial(watch, layer)) for layer in layers]
    scores = network(images.clone().requires_grad_(True))
    functional.cross_entropy(scores, scores.argmax(1), reduction="sum").backward()
    for handle in handles:
        handle.remove()
    network.zero_grad()
    return inputs, gradients


def _with_damages(result: RunResult, damages: Damages) -> RunResult:
    def changed(found: LayerMeasurement) -> LayerMeasurement:
        known = found.change("kl")
        if known is None:
            return found
        damage = damages[found.key]
        return replace(found, changes=(replace(known, delta=damage, ci_low=damage, ci_high=damage),))

    return replace(result, measurements=tuple(map(changed, result.measurements)))


def row_of(
    case: Case, evaluator: ScheduleEvaluator, known: dict[CompressionConfig, RunResult | None]
) -> dict[str, object]:
    """Return the row of one case; ``known`` keeps what all budgets of one compression share."""
    if case.scan.config not in known:
        known[case.scan.config] = _by_gradients(case, evaluator)
    gradients = known[case.scan.config]
    result, tried = evaluator.result, partial(made, case, evaluator)
    estimates = replace(case.scan, mode="quick").evaluator().result
    schedules = {
        "uniform": tried(partial(_ours, result, method="uniform")),
        "rule": tried(partial(_ours, result, method="gamma")),
        "PSNR": tried(partial(greedy, result)),
        "gradients": None if gradients is None else tried(partial(_ours, gradients)),
        "estimated": tried(partial(_ours, estimates)),
        "measured": tried(partial(_ours, result)),
    }
    found = {name: _lost(case, evaluator, schedule) for name, schedule in schedules.items()}
    found["uniform, adapted"] = _lost(case, evaluator, schedules["uniform"], adapting="minutes")
    ours = schedules["measured"]
    assert ours is not None, f"{case.title} cannot be met"
    found["adapted"] = _lost(case, evaluator, ours, adapting="minutes")
    cost = true_figure(evaluator, evaluator.apply(ours), case.kind)
    others = {name: lost["kl"] for name in _OTHERS if (lost := found[name]) is not None}
    best = min(others, key=lambda name: others[name])
    share = (found["measured"] or {"kl": math.inf})["kl"] / others[best]
    shown = {name: _shown(found[name]) for name in (*_METHODS, *_ADAPTED)}
    return {"case": case.title, "cost": f"{cost:.3g}", **shown, "best other": best, "ours": f"{share:.2f}"}


def _ours(result: RunResult, budget: ResourceBudget, method: str = "optimal") -> Schedule:
    return make_schedule(result, budget=budget, method=method, metric="kl")


def _by_gradients(case: Case, evaluator: ScheduleEvaluator) -> RunResult | None:
    """Return the curves with scores by gradients; None for channels, which have none."""
    if isinstance(case.scan.config, PruningConfig):
        return None
    compressor = _compressor(case)
    model, images = opened(case.network)
    pictures = images.curves.batch(0, len(images.curves))
    scores = gradient_scores(model.module, pictures, compressor, case.scan.levels)
    return _with_damages(evaluator.result, scores)


def _lost(
    case: Case, evaluator: ScheduleEvaluator, schedule: Schedule | None, *, adapting: Adapting = "off"
) -> dict[str, float] | None:
    """Return by metric what is lost on images that nothing was made from."""
    if schedule is None:
        return None
    applied = evaluator.apply(schedule)
    if adapting != "off":
        measured(evaluator, applied, "kl", repair=True, adapting=adapting)
    return {change.metric: change.delta for change in evaluator.judged(applied, unseen(case.network)).changes}


def _shown(lost: dict[str, float] | None) -> str:
    if lost is None:
        return "–"
    return f"{lost['kl']:.3g} ({100 * lost.get('top1', lost['agreement']):.1f})"


def main() -> None:
    """Keep the row of each case."""
    every = (ARCHITECTURE, "resnet", "mobilenet", "vit", "convnext")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("--networks", default=",".join(every), help="comma-separated")
    parser.add_argument("--only", default="", help="part of the names of cases")
    options = parser.parse_args()
    for name in options.networks.split(","):
        known: dict[CompressionConfig, RunResult | None] = {}
        for case in cases(name):
            if options.only in case.title:
                keep("rivals", row_of(case, case.scan.evaluator(), known))


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
