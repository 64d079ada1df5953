"""The choice between readings that were scored: its settings, its evidence and its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from senseapp.core.texts import plural
from senseapp.data.images import effective_preprocessing
from senseapp.measure.reading_evidence import ReadingCandidate, Scored
from senseapp.metrics import METRICS
from senseapp.networks.loaded import FITS, LoadedModel, Preprocessing
from senseapp.records.inputs import PreparationChoice, PreparationTrial
from senseapp.records.spec import RunSpec
from senseapp.tasks import Task
from senseapp.tasks.reading import EVIDENCE_WORDS, ChannelOrder, Evidence, Fit


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
            question=question,
        )
        data = choice.spec.data
        known = {**dict(data.evidence), **self._evidence(taken, scored, evidence)}
        settled = replace(data, chosen_by=(*self.spec.data.chosen_by, *choice.notes), evidence=tuple(known.items()))
        return replace(choice, spec=replace(choice.spec, data=settled))

    def _evidence(self, taken: Scored, scored: Sequence[Scored], found: Evidence) -> dict[str, Evidence]:
        """Return how each part is known: by what was compared, where there were several."""
        layouts = {each.candidate.layout for each in scored}
        preparations = {each.candidate.data for each in scored}
        orders = {each.candidate.order for each in scored}
        person = self.spec.data.mean or self.spec.data.std
        return {
            "layout": "person" if self.spec.model.layout else found if len(layouts) > 1 else "fit",
            "preparation": "person" if person else found if len(preparations) > 1 else self.model.preparation_evidence,
            "classes": "person" if self.spec.data.class_map else found if len(orders) > 1 else "fit",
        }

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
            words.append(self._how(candidate).fit)
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
        if scored.value != scored.value:
            return "the only reading"
        return f"{100 * scored.value:.0f} % of the answers agree with those to mirrored pictures"

    def best_words(self, scored: Sequence[Scored]) -> str:
        """Return the best of the candidates, the best first, with their figures."""
        best = " · ".join(f"{self._title(each.candidate, scored)}: {self.result(each)}" for each in scored[:3])
        return f"The best of {plural(len(scored), 'reading')}: {best}."
