"""The reading of a run: how outputs, images and class numbers are read, in settings and in words."""

from __future__ import annotations

from typing import cast

from senseapp.core.texts import plural
from senseapp.data.images import effective_preprocessing
from senseapp.descriptions import SOURCES
from senseapp.measure.preparation_candidates import usual_ranges
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.onnx.source import fitting_tasks
from senseapp.records.spec import RunSpec
from senseapp.tasks import task_named
from senseapp.tasks.reading import ChannelOrder, Evidence, Fit, Reading, class_map_words


def reading_of(spec: RunSpec, model: LoadedModel) -> Reading:
    """Return how a run with these settings reads outputs, images and class numbers, and how each is known."""
    task, data = task_named(spec.model.task), spec.data
    how, known = effective_preprocessing(data, model.preprocessing), dict(data.evidence)
    reader = model.readers[0] if model.readers else None
    given = bool(data.mean or data.std)
    evidence: dict[str, Evidence] = {
        "task": _task_evidence(spec, model),
        "layout": known.get("layout", _layout_evidence(spec, model)),
        "preparation": known.get("preparation", "person" if given else model.preparation_evidence),
        "classes": known.get("classes", "person" if data.class_map else "fit"),
    }
    classes = plural(model.num_classes, task.label_words[0], task.label_words[1])
    words = {
        "task": task.label,
        "layout": reader.words if reader is not None else task.output_title.lower(),
        "preparation": preparation_words(how),
        "classes": f"{classes} of the model"
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


def preparation_words(how: Preprocessing) -> str:
    """Return a preparation in words: size, range of values, order of channels, fit."""
    channels, height, width = how.input_shape
    texts = (", ".join(f"{value:.4g}" for value in values) for values in (how.mean, how.std))
    values = usual_ranges(channels).get((how.mean, how.std)) or "less a mean of {}, over a std of {}".format(*texts)
    order = f", {how.channel_order.upper()}" if channels > 1 else ""
    fit = f"crop of {100 * how.crop_pct:.3g} %" if how.fit == "crop" and how.crop_pct < 1 else how.fit
    return f"{width} × {height} pixels, {values}{order}, {fit}"
