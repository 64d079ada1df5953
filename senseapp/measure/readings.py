"""The reading of outputs, images and class numbers, in settings and in words, and the choice between several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from senseapp.core.texts import plural
from senseapp.data.images import ImageSet, PreparedImages, effective_preprocessing
from senseapp.descriptions import SOURCES
from senseapp.measure.preparation_candidates import usual_ranges
from senseapp.measure.reading_evidence import ReadingCandidate, Scored
from senseapp.metrics import METRICS
from senseapp.networks.loaded import FITS, LoadedModel, Preprocessing
from senseapp.networks.onnx.source import fitting_tasks
from senseapp.records.inputs import PreparationChoice, PreparationTrial
from senseapp.records.spec import RunSpec
from senseapp.tasks import Task, task_named
from senseapp.tasks.reading import EVIDENCE_WORDS, ChannelOrder, Evidence, Fit, Reading, class_map_words


def reading_of(spec: RunSpec, model: LoadedModel, images: ImageSet | None = None) -> Reading:
    """Return how a run with these settings reads outputs, ``images`` and class numbers, and how each is known."""
    task, data = task_named(spec.model.task), spec.data
    how, known = effective_preprocessing(data, model.preprocessing), dict(data.evidence)
    reader = model.readers[0] if model.readers else None
    given = bool(data.mean or data.std)
    orders = images.label_orders if isinstance(images, PreparedImages) else ()
    is_sure = not orders or orders[0].certain
    evidence: dict[str, Evidence] = {
        "task": _task_evidence(spec, model),
        "layout": known.get("layout", _layout_evidence(spec, model)),
        "preparation": known.get("preparation", "person" if given else model.preparation_evidence),
        "classes": known.get("classes", "person" if data.class_map else "fit" if is_sure else "assumed"),
    }
    words = {
        "task": task.label,
        "layout": reader.words if reader is not None else task.output_title.lower(),
        "preparation": preparation_words(how, by_images=evidence["preparation"] in ("labels", "images")),
        "classes": f"{plural(model.num_classes, task.label_words[0], task.label_words[1])} of the model"
        + (f"; labels: {class_map_words(data.class_map)}" if data.class_map else ""),
    }
    return Reading(
        task=spec.model.task,
        outputs=model.onnx.outputs if model.onnx is not None else (),
        layout=reader.key if reader is not None else "",
        input_shape=how.input_shape,
        mean=how.mean,
        std=how.std,
        crop_pct=how.crop_pct,
        fit=cast("Fit", how.fit),
        channel_order=cast("ChannelOrder", how.channel_order),
        class_map=data.class_map,
        evidence=tuple(evidence.items()),
        words=tuple(words.items()),
    )


def _task_evidence(spec: RunSpec, model: LoadedModel) -> Evidence:
    if not SOURCES[spec.model.library].chooses_outputs:
        return "library"
    fitting = fitting_tasks(model.onnx) if model.onnx is not None else ()
    if fitting == (spec.model.task,):
        return "fit"
    return "assumed" if spec.model.task in fitting[:1] else "person"


def _layout_evidence(spec: RunSpec, model: LoadedModel) -> Evidence:
    """Return how the layout is known where no images were asked."""
    if spec.model.layout:
        return "person"
    if not SOURCES[spec.model.library].chooses_outputs:
        return "library"
    return "fit" if len(model.readers) < 2 else "assumed"


def preparation_words(how: Preprocessing, *, by_images: bool = False) -> str:
    """Return a preparation in words: size, range of values, order of channels, fit.

    Where images chose it ``by_images``, RGB is what is usual: answers to both orders rarely differ beyond chance.
    """
    channels, height, width = how.input_shape
    texts = (", ".join(f"{value:.4g}" for value in values) for values in (how.mean, how.std))
    values = usual_ranges(channels).get((how.mean, how.std)) or "values from 0 to 1, less {}, divided by {}".format(
        *texts
    )
    order = f", {how.channel_order.upper()}" if channels > 1 else ""
    order += " as usual" * (by_images and order == ", RGB")
    return f"{width} × {height} pixels, {values}{order}, {how.fit_words}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingChoices:
    """Choices between readings of ``model`` for the run ``spec``."""

    spec: RunSpec
    model: LoadedModel
    task: Task

    def made(
        self, scored: Sequence[Scored], taken: Scored, count: int, evidence: Evidence, question: str
    ) -> PreparationChoice:
        """Return the choice of ``taken`` among all that were ``scored`` on ``count`` images."""
        trials = {id(each): self._trial(each, scored, count) for each in scored}
        chosen = trials[id(taken)]
        found = f"{chosen.words} on {plural(count, 'image')}" if len(scored) > 1 or taken.labelled else ""
        tried = f"; {len(scored)} readings tried" if len(scored) > 1 else ""
        verdict = f"{': '.join(filter(None, (chosen.title, found)))} ({EVIDENCE_WORDS[evidence]}{tried})."
        choice = PreparationChoice(
            spec=chosen.spec,
            chosen=chosen,
            trials=tuple(dict.fromkeys((chosen, *list(trials.values())[:6]))),
            guess=evidence in ("images", "assumed"),
            subject="Reading",
            verdict=verdict,
            num_tried=len(scored),
            question=question,
        )
        data = choice.spec.data
        known = {**dict(data.evidence), **self._evidence(taken, scored, evidence)}
        settled = replace(data, chosen_by=(*self.spec.data.chosen_by, *choice.notes), evidence=tuple(known.items()))
        return replace(choice, spec=replace(choice.spec, data=settled))

    def _evidence(self, taken: Scored, scored: Sequence[Scored], found: Evidence) -> dict[str, Evidence]:
        """Return how each part is known: by what was compared, where there were several."""
        own, person = self.model.preparation_evidence, self.spec.data.mean or self.spec.data.std
        by_labels = found == "labels"
        parts: tuple[tuple[str, object, Evidence, Callable[[ReadingCandidate], object]], ...] = (
            ("layout", self.spec.model.layout, "fit", lambda each: each.layout),
            ("preparation", person, own, lambda each: (each.data.mean, each.data.std) if by_labels else each.data),
            ("classes", self.spec.data.class_map, "fit", lambda each: each.order),
        )
        known: dict[str, Evidence] = {}
        for part, said, otherwise, of in parts:
            others = [each for each in scored if of(each.candidate) != of(taken.candidate)]
            is_open = by_labels and not all(taken.is_clearly_better(each.each, 2) for each in others)
            known[part] = "person" if said else otherwise if not others else "assumed" if is_open else found
        return known

    def _trial(self, scored: Scored, all_scored: Sequence[Scored], count: int) -> PreparationTrial:
        candidate = scored.candidate
        data, model = candidate.data, self.spec.model
        usual = self._how(candidate)
        data = replace(
            data,
            mean=usual.mean,
            std=usual.std,
            fit=cast("Fit", usual.fit),
            channel_order=cast("ChannelOrder", usual.channel_order),
        )
        if candidate.order is not None and not candidate.order.certain:
            data = replace(data, class_map=candidate.order.pairs)
        if candidate.reader is not None:
            model = replace(model, layout=candidate.reader.key)
        return PreparationTrial(
            title=self._title(candidate, all_scored),
            spec=replace(self.spec, model=model, data=replace(data, preparation="given")),
            num_images=count,
            correct=None,
            score=-scored.value,
            words=self.result(scored),
        )

    def _how(self, candidate: ReadingCandidate) -> Preprocessing:
        return effective_preprocessing(candidate.data, self.model.preprocessing)

    def _title(self, candidate: ReadingCandidate, scored: Sequence[Scored]) -> str:
        """Return the preparation in words, and layout and class numbers where several are compared."""
        words = [word for word in candidate.words if word not in FITS] or [self.model.prepared_as]
        if len({self._how(each.candidate).fit for each in scored}) > 1:
            words.append(self._how(candidate).fit_words)
        parts = [", ".join(words)]
        if candidate.reader is not None and len({each.candidate.layout for each in scored}) > 1:
            parts.append(candidate.reader.words)
        if candidate.order is not None and len({each.candidate.order for each in scored}) > 1:
            parts.append(f"classes {candidate.order.words}")
        return "; ".join(parts)

    def result(self, scored: Scored) -> str:
        """Return the figure of a candidate in words."""
        if scored.labelled:
            metric = METRICS[self.task.shown_metric]
            return f"{metric.label} {metric.value_text(scored.value)}"
        return f"{100 * scored.value:.0f} % of the answers agree with those to mirrored pictures"

    def best_words(self, scored: Sequence[Scored]) -> str:
        """Return the best of the candidates, the best first, with their figures."""
        best = " · ".join(f"{self._title(each.candidate, scored)}: {self.result(each)}" for each in scored[:3])
        return f"The best of {plural(len(scored), 'reading')}: {best}."
