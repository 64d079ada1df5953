"""The settings and the surroundings of a run, as labels and values that people read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from senseapp.descriptions import CompressionConfig, options_of
from senseapp.metrics import METRICS
from senseapp.records.comparison import Side
from senseapp.records.measurement import RunResult
from senseapp.records.spec import WITHOUT_LABELS
from senseapp.tasks import task_named
from senseapp.views.words import format as fmt

_DATA = {
    "demo": "The demo's handwritten digits",
    "photographs": "The demo's photographs",
    "random": "Random inputs: figures are indicative only",
    "imported": "Unknown (imported figures)",
}


def model_facts(result: RunResult) -> dict[str, str]:
    """Return what is known about the model; sizes only where they are known."""
    profile, model = result.profile, result.spec.model
    facts = {"Model": profile.title}
    facts["Weights"] = PurePath(model.checkpoint).name if model.checkpoint else _weights(result)
    if not profile.sizes_known:  # an imported table without its model
        return facts | {"Layers": str(len(profile.layers))}
    return facts | {
        "Parameters": fmt.count(profile.num_params),
        "MACs of one image": fmt.count(profile.macs),
        **({"MACs of its layers": fmt.count(profile.layer_macs)} if profile.layer_macs != profile.macs else {}),
        "Size in memory": fmt.bytes_size(profile.num_bytes),
        "Compressible layers": str(len(profile.layers)),
        "Input": fmt.shape(profile.input_shape),
        task_named(model.task).output_title: str(profile.num_classes),
    }


def _weights(result: RunResult) -> str:
    if not result.spec.model.is_runnable:
        return "Unknown (imported figures)"
    return "Trained" if result.profile.pretrained else "Random: figures are indicative only"


def image_facts(result: RunResult) -> dict[str, str]:
    """Return which images were measured on, and how they were prepared where that is not the model's own way."""
    data = result.spec.data
    facts = {"Images": _DATA.get(data.kind, data.title)}
    if data.kind == "imported":
        return facts
    facts["Measured on"] = fmt.plural(result.num_samples, "image")
    facts["Labels"] = "Yes" if result.has_labels and data.labels != WITHOUT_LABELS else "None used"
    own = {
        "Mean": ", ".join(f"{value:g}" for value in data.mean),
        "Standard deviation": ", ".join(f"{value:g}" for value in data.std),
        "Share kept by the crop": fmt.percent(data.crop_pct) if data.crop_pct is not None else "",
        "Channel order": "BGR" if data.channel_order == "bgr" else "",
        "Rotation marks (EXIF)": "Followed" if data.upright else "",
    }
    return facts | {label: value for label, value in own.items() if value}


def settings_of(result: RunResult) -> dict[str, str]:
    """Return what was asked for and what was decided."""
    settings = result.spec.sensitivity
    compression = settings.compression
    chosen = [*settings.layers, *settings.layer_types]
    facts = {
        "Compression": compression.description.label,
        **chosen_options(compression),
        "Levels": compression.scale.texts(settings.levels),
        "Ranking metric": METRICS[result.metric].label,
    }
    if result.spec.data.kind == "imported":
        return facts
    return facts | {
        "Layers": ", ".join(chosen) if chosen else "All",
        "Mode": "Quick estimate only" if settings.mode == "quick" else "Measured",
        **({"Weights": "Adapted to what was taken"} if settings.adapted else {}),
        "Images per layer": "As many as the ranking needs" if settings.until_settled else "The same for every layer",
        "Precision": result.precision,
        "Seed": str(settings.seed),
    }


def chosen_options(compression: CompressionConfig) -> dict[str, str]:
    """Return the finer choices of a compression, as title and value; those that mean nothing are left out."""
    options = options_of(compression)
    values = {name: getattr(compression, name) for name in options}
    return {each.title: each.choices[values[name]] for name, each in options.items() if each.when(values)}


def environment_of(result: RunResult) -> dict[str, str]:
    """Return the versions and the machine that the figures come from."""
    facts = {name.replace("_", " ").capitalize(): value for name, value in result.environment.items()}
    if result.seconds:
        facts["Time"] = fmt.duration(result.seconds)
    return facts


def differing_settings(sides: Sequence[Side]) -> dict[str, tuple[str, ...]]:
    """Return the facts and settings in which the sides differ, with the value of each side; empty where it has none."""
    found = [
        model_facts(side.result) | image_facts(side.result) | settings_of(side.result) | _uncompressed(side.result)
        for side in sides
    ]
    labels = dict.fromkeys(label for facts in found for label in facts)
    rows = {label: tuple(facts.get(label, "") for facts in found) for label in labels}
    return {label: values for label, values in rows.items() if len(set(values)) > 1}


def _uncompressed(result: RunResult) -> dict[str, str]:
    return {f"{label}, uncompressed": value for label, value in baselines_of(result).items()}


def baselines_of(result: RunResult) -> dict[str, str]:
    """Return how well the uncompressed model does; metrics that compare with it say nothing about it."""
    return {
        metric.label: metric.value_text(result.baseline[name])
        for name, metric in METRICS.items()
        if metric.needs_labels and name in result.baseline
    }
