"""The analyzer of the reference notebook: any ``eval_fn``, one number per layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, TypedDict, Unpack

import torch
from torch import Tensor, nn
from tqdm import tqdm

from senseapp import descriptions
from senseapp.compressions.base import CompressionRequest, Compressor, build_compressor
from senseapp.core.errors import InvalidSpec, MeasurementFailed, first_line_of
from senseapp.descriptions import CompressionConfig, options_of
from senseapp.descriptions.compressions import Effect
from senseapp.descriptions.levels import FINER_BITS
from senseapp.measure.evaluation import ReplayedEvaluation
from senseapp.measure.plan import Layout, knows_the_order, lay_out, plan_targets, representative_positions
from senseapp.measure.replay import plain_note
from senseapp.metrics.predictions import tensors_in
from senseapp.networks.network import flags_kept, state_kept
from senseapp.networks.profile import CONVOLUTIONS, others_note, profile_model, watched_pass
from senseapp.networks.trace import called, map_tensors
from senseapp.notebook.inputs import (
    Criteria,
    batch_of,
    criterion_of,
    raised_inside,
    require_reachable,
    spanned,
    usual_granularity,
)
from senseapp.notebook.level_result import LayerSensitivity, SensitivityResult
from senseapp.records.profile import ModelProfile, select_layers

_FURTHER_LEVELS = {Effect.ZEROS: (0.0, 1.0), Effect.BITS: FINER_BITS}
"""Levels that the reference takes, of no use in a run: no zeros and nothing else, and bits that harm no layer."""


class SweepOptions(TypedDict, total=False):
    """What of the network is compressed, and how; the defaults are those of :meth:`SensitivityAnalyzer.sweep`.

    ``granularity`` is of sparsity, by fasterai's names (``weight``, ``kernel``, ``filter``, ``shared_row`` …), or
    ``2:4``. ``layers`` are names or shell patterns, ``layer_types`` class names; None means all. With
    ``quant_per_channel`` there is one scale per output channel, else one per tensor; ``quant_activations`` quantizes
    the layer's input too, with ranges from ``sample``. ``verbose`` shows a progress bar.
    """

    granularity: str
    layers: Sequence[str] | None
    layer_types: Sequence[str] | None
    quant_per_channel: bool
    quant_activations: bool
    verbose: bool


class SensitivityAnalyzer:
    """Measures what compressing each layer does to whatever ``eval_fn`` returns.

    The caller's model is compressed in place and comes back bit-identical, also when ``eval_fn`` raises. Where
    ``eval_fn`` calls the model on the same inputs each time, only what follows the compressed layer is computed.

    Args:
        model: the network.
        sample: one batch of inputs, (N, C, H, W), or a tuple or dict of what the model is called with.
        eval_fn: takes the model, returns a number; must not train it.
        criteria: ``large_final`` (magnitude), ``squared_final``, ``random``, ``wanda``, a senseapp criterion,
            fasterai's object of that name, or a function that returns the importance of each number of a weight.
        higher_is_better: whether more of what ``eval_fn`` returns is better.
        metric_name: what it is called.
        device: where the sample goes; None means where the model is.
        calibration_data: what data-driven criteria and ranges of activations look at; None means the sample.
        seed: of the random criterion.
    """

    VALID_COMPRESSIONS: ClassVar[frozenset[str]] = frozenset(
        each.config.kind for each in descriptions.all_descriptions()
    )
    COMPRESSIBLE_LAYERS: ClassVar[tuple[type[nn.Module], ...]] = (*CONVOLUTIONS, nn.Linear)

    def __init__(
        self,
        model: nn.Module,
        sample: Any,
        eval_fn: Callable[[nn.Module], float],
        *,
        criteria: Criteria = "large_final",
        higher_is_better: bool = True,
        metric_name: str = "accuracy",
        device: str | torch.device | None = None,
        calibration_data: Any = None,
        seed: int = 0,
    ) -> None:
        require_reachable(model)
        self.model, self.sample, self.eval_fn = model, sample, eval_fn
        self.criteria, self.higher_is_better, self.metric_name = criteria, higher_is_better, metric_name
        self.device = torch.device(device) if device else next(model.parameters()).device
        self.calibration_data, self.seed = calibration_data, seed
        self._criterion, self._score = criterion_of(criteria)

    def analyze(
        self, compression: str = "sparsity", level: float = 50, **options: Unpack[SweepOptions]
    ) -> SensitivityResult:
        """Measure one ``compression`` (``sparsity``, ``pruning`` or ``quantization``) at one level on each layer.

        ``level`` is in percent, for quantization in bits; see :class:`SweepOptions` for the others.

        Raises InvalidInput if a setting is out of range, no layer matches, or the model does not take the sample.
        """
        (result,) = self.sweep(compression, [level], **options)
        return result

    def sweep(
        self,
        compression: str = "sparsity",
        levels: Sequence[float] | None = None,
        *,
        granularity: str = "weight",
        layers: Sequence[str] | None = None,
        layer_types: Sequence[str] | None = None,
        quant_per_channel: bool = True,
        quant_activations: bool = False,
        verbose: bool = True,
    ) -> list[SensitivityResult]:
        """Measure several levels in one run, which shares the work before each layer; see :meth:`analyze`."""
        shown = [float(level) for level in (levels or (25, 50, 75))]
        config = self._config(compression, granularity, quant_per_channel, quant_activations)
        inner = _checked_levels(config, shown)
        sample = self._on_device(self.sample, "sample")
        calibration = sample if self.calibration_data is None else self._on_device(self.calibration_data, "calibration")
        image = map_tensors(sample, lambda tensor: tensor[:1])
        bar = tqdm(disable=not verbose, unit="layer")
        with bar, flags_kept(self.model), torch.no_grad(), _channels_last(self.model.eval(), image) as put_back:
            bar.set_description("the uncompressed model")
            evaluation, baseline = self._baseline(image, put_back)
            profile = profile_model(self.model, next(tensors_in(image)), trace=evaluation.trace)
            request = CompressionRequest(
                model=self.model,
                layers=select_layers(profile, tuple(layers or ()), tuple(layer_types or ())),
                calibration=(calibration,),
                seed=self.seed,
                trace=evaluation.trace,
                score=self._score,
                spanned=spanned(granularity),
                progress=bar.set_description,
            )
            with state_kept(self.model):
                compressor = build_compressor(config, request)
            outcomes = _measured(evaluation, compressor, image, inner, baseline, bar)
        notes = _notes(evaluation, profile)
        return [
            SensitivityResult(
                compression_type=_spelled(config, level, activations=quant_activations),
                compression_level=level,
                baseline_metric=baseline,
                layers=list(self._rows(profile, compressor, outcomes[internal], baseline)),
                metric_name=self.metric_name,
                higher_is_better=self.higher_is_better,
                notes=notes,
            )
            for level, internal in zip(shown, inner, strict=True)
        ]

    def _baseline(self, image: Any, put_back: Callable[[], None]) -> tuple[ReplayedEvaluation, float]:
        """Return the evaluation of the uncompressed model; ``put_back`` gives its weights the usual memory order."""
        try:
            return self._evaluated(image)
        except Exception as error:
            if not raised_inside(self.model, error):
                raise
            put_back()  # other images than the first may need the usual memory order
            return self._evaluated(image)

    def _evaluated(self, image: Any) -> tuple[ReplayedEvaluation, float]:
        with state_kept(self.model):
            trace = watched_pass(self.model, image)
        evaluation = ReplayedEvaluation(self.model, self.eval_fn, trace)
        baseline = evaluation.baseline()
        trace.add_uses(evaluation.further_uses())
        return evaluation, baseline

    def _on_device(self, values: Any, what: str) -> Any:
        return map_tensors(batch_of(self.model, values, what), lambda tensor: tensor.to(self.device))

    def _config(self, compression: str, granularity: str, per_channel: bool, activations: bool) -> CompressionConfig:
        """Return the settings; arguments that mean nothing for the compression are ignored, as the reference does."""
        words = {"granularity": usual_granularity(granularity), "criterion": self._criterion}
        switches = {"granularity": per_channel, "activations": activations}
        description = descriptions.get(compression)
        if self._score and description.effect is not Effect.ZEROS:
            words.pop("criterion")
            if "criterion" in options_of(description.config):
                raise InvalidSpec(
                    f"{description.label} ranks channels by an importance of torch-pruning, and cannot rank them by a "
                    "function of weights. Choose criteria by name."
                )
        config = description.config
        chosen: dict[str, Any] = {}
        for name, option in options_of(config).items():
            if option.switch and name in switches:
                on, off = option.choices
                chosen[name] = on if switches[name] else off
            elif not option.switch and name in words:
                chosen[name] = words[name]
        return config(**chosen)

    def _rows(
        self, profile: ModelProfile, compressor: Compressor, outcomes: dict[str, float | str], baseline: float
    ) -> Iterator[LayerSensitivity]:
        """Yield one row for each selected layer; ``outcomes`` are those of targets, by their first layer."""
        target_of = {member: target for target in compressor.targets for member in target.members}
        for layer in profile.layers:
            target = target_of.get(layer.name)
            outcome = outcomes[target.layer] if target else compressor.not_applicable.get(layer.name)
            if outcome is None:
                continue  # not selected
            measured = outcome if isinstance(outcome, float) else float("nan")
            yield LayerSensitivity(
                name=layer.name,
                layer_type=layer.layer_type,
                params=layer.num_params,
                baseline_metric=baseline,
                compressed_metric=measured,
                delta=baseline - measured if self.higher_is_better else measured - baseline,
                group_id=target.group if target else "",
                group_members=target.members if target and target.group else (),
                prunable=isinstance(outcome, float),
                reason="" if isinstance(outcome, float) else outcome,
            )


def analyze_sensitivity(
    model: nn.Module,
    sample: Any,
    eval_fn: Callable[[nn.Module], float],
    compression: str = "sparsity",
    level: float = 50,
    *,
    criteria: Criteria = "large_final",
    higher_is_better: bool = True,
    metric_name: str = "accuracy",
    device: str | torch.device | None = None,
    calibration_data: Any = None,
    **options: Unpack[SweepOptions],
) -> SensitivityResult:
    """Measure one compression at one level on each layer; see :class:`SensitivityAnalyzer` for the arguments."""
    analyzer = SensitivityAnalyzer(
        model,
        sample,
        eval_fn,
        criteria=criteria,
        higher_is_better=higher_is_better,
        metric_name=metric_name,
        device=device,
        calibration_data=calibration_data,
    )
    return analyzer.analyze(compression, level, **options)


def _spelled(config: CompressionConfig, level: float, *, activations: bool) -> str:
    """Return how the reference spells a compression that was measured; a level in bits is part of it."""
    bits = "" if config.scale.any_between else f"-{level:g}bit"
    return config.kind + bits + ("+act" if activations and "activations" in options_of(type(config)) else "")


def _checked_levels(config: CompressionConfig, shown: Sequence[float]) -> list[float]:
    """Return levels in the engine's unit, with those that only the reference takes."""
    levels = [config.scale.from_shown(level) for level in shown]
    further = _FURTHER_LEVELS.get(config.description.effect, ()) if config.only_level is None else ()
    config.check_levels([level for level in levels if level not in further])
    return levels


def _measured(
    evaluation: ReplayedEvaluation,
    compressor: Compressor,
    image: Any,
    levels: Sequence[float],
    baseline: float,
    bar: tqdm[Any],
) -> dict[float, dict[str, float | str]]:
    """Return, for each level, the number of each target by its first layer, or the reason why there is none."""
    planned = plan_targets(compressor.targets, evaluation.trace)
    evaluation.check(image, [item.position for item in planned], representative_positions(planned))
    bar.reset(total=len(planned) * len(levels))
    found: dict[float, dict[str, float | str]] = {level: {} for level in levels}
    for item in planned:
        bar.set_description(item.target.layer)
        evaluation.advance(item.position)
        for level in levels:
            try:
                with compressor.compress(item.target, level) if level else nullcontext():
                    outcome: float | str = evaluation.evaluate() if level else baseline
            except MeasurementFailed as failure:
                outcome = str(failure)
            except Exception as error:
                if not raised_inside(evaluation.model, error):  # a mistake in eval_fn
                    raise
                outcome = f"The compressed model failed: {type(error).__name__}: {first_line_of(error)}."
            found[level][item.target.layer] = outcome
            bar.update()
    return found


def _notes(evaluation: ReplayedEvaluation, profile: ModelProfile) -> tuple[str, ...]:
    """Return sentences on what is unusual: whole passes, and layers that only some images use."""
    others = others_note(profile.layers, evaluation.trace)
    whole = plain_note(evaluation.obstacle) if evaluation.obstacle else ""
    return tuple(note for note in (whole, others) if note)


@contextmanager
def _channels_last(model: nn.Module, image: Any) -> Iterator[Callable[[], None]]:
    """Keep the weights of convolutions in the order that is quick inside the block, where that is known to be one.

    Outputs then have it too, whatever that of the images. Models that read them as a view in the other order fail in
    it, and stay as they are. What is yielded puts all weights back as they were.
    """
    weights = [(tensor, tensor.data) for tensor in model.parameters() if tensor.dim() == 4]  # (O, I, H, W)
    try:
        if weights and all(knows_the_order(tensor.device) for tensor, _ in weights):
            lay_out(model, Layout(channels_last=True))
            try:
                with state_kept(model):
                    called(model, map_tensors(image, torch.clone))
            except Exception:  # if it fails in any order, the pass in the usual one says why
                _put_back(weights)
        yield partial(_put_back, weights)
    finally:
        _put_back(weights)


def _put_back(weights: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, data in weights:
        tensor.data = data
