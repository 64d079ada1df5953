"""Sentences on a run for pages and reports: settings, state, provenance of its numbers, results of a proof."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from senseapp.core.markdown import Markdown, md
from senseapp.descriptions import options_of
from senseapp.metrics import METRICS, Metric
from senseapp.records.comparison import Side
from senseapp.records.deployment import model_file
from senseapp.records.jobs import RunState
from senseapp.records.layer_findings import Diagnosis, Int8Timing
from senseapp.records.measurement import RunResult, change_in
from senseapp.records.schedule import Schedule, ValidationResult
from senseapp.records.spec import WITHOUT_LABELS, DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.inputs import DETECTION_DEMO, PHOTOGRAPHS_DEMO
from senseapp.tasks import task_named
from senseapp.views.words import format as fmt

_IMAGES = {
    "demo": "The demo's handwritten digits",
    "photographs": "The demo's photographs",
    "shapes": "The demo's shapes on photographs",
    "random": "Random inputs: indicative only",
    "imported": "Unknown (imported figures)",
}


def images_title(data: DataSpec) -> str:
    """Return what images are called: where they come from, or their name."""
    return _IMAGES.get(data.kind, data.title)


def model_facts(result: RunResult) -> dict[str, str]:
    """Return the facts about the model; sizes only if known."""
    profile, model = result.profile, result.spec.model
    facts = {"Model": profile.title}
    weights = "Trained" if profile.pretrained else "Random: figures are indicative only"
    weights = weights if model.is_runnable else "Unknown (imported figures)"
    facts["Weights"] = PurePath(model.checkpoint).name if model.checkpoint else weights
    if not profile.sizes_known:  # an imported table without its model
        return facts | {"Layers": str(len(profile.layers))}
    return facts | {
        "Parameters": fmt.count(profile.num_params),
        "Multiplications of one image": fmt.count(profile.macs),
        "Compressible layers": str(len(profile.layers)),
        "Input": fmt.shape(profile.input_shape),
        task_named(model.task).output_title: str(profile.num_classes),
    }


def image_facts(result: RunResult) -> dict[str, str]:
    """Return which images were measured on, and how they, the outputs and the labels were read."""
    data = result.spec.data
    facts = {"Images": images_title(data)}
    if data.kind == "imported":
        return facts
    facts["Measured on"] = fmt.plural(result.num_samples, "image")
    facts["Labels"] = "Yes" if result.has_labels and data.labels != WITHOUT_LABELS else "None used"
    if result.reading is not None:
        facts |= {f"Read: {part.lower()}": said for part, said in result.reading.facts.items()}
    return facts | ({"Rotation marks (EXIF)": "Followed"} if data.upright else {})


def settings_of(result: RunResult) -> dict[str, str]:
    """Return the settings, as requested and as chosen; of switches those that are on."""
    settings = result.spec.sensitivity
    compression = settings.compression
    chosen, options = [*settings.layers, *settings.layer_types], options_of(compression)
    values = {name: getattr(compression, name) for name in options}
    facts = {
        "Compression": compression.description.line,
        # finer choices; those that mean nothing are left out
        **{each.title: each.choices[values[name]] for name, each in options.items() if each.when(values)},
        "Levels": compression.scale.texts(settings.levels),
    }
    if result.spec.data.kind == "imported":
        return facts
    return facts | {
        **({"Layers": ", ".join(chosen)} if chosen else {}),
        **({"Mode": "Quick estimate only"} if settings.mode == "quick" else {}),
        **({"Weights": "Adapted to what was taken"} if settings.adapted else {}),
        **({"Images per layer": "As many as the ranking needs"} if settings.until_settled else {}),
        "Passes": passes_text(result),
    }


def environment_of(result: RunResult) -> dict[str, str]:
    """Return the versions that figures and times come from; the run's JSON has all, and how passes were made."""
    known = result.environment
    facts = {name.capitalize(): known[name] for name in ("python", "torch") if name in known}
    if result.seconds:
        facts["Time to measure the layers"] = fmt.duration(result.seconds)
    return facts


def differing_settings(sides: Sequence[Side]) -> dict[str, tuple[str, ...]]:
    """Return the facts and settings in which the sides differ, with the value of each side; empty where it has none."""
    found = [
        model_facts(side.result) | image_facts(side.result) | settings_of(side.result) | baselines_of(side.result)
        for side in sides
    ]
    labels = dict.fromkeys(label for facts in found for label in facts)
    rows = {label: tuple(facts.get(label, "") for facts in found) for label in labels}
    return {label: values for label, values in rows.items() if len(set(values)) > 1}


def baselines_of(result: RunResult) -> dict[str, str]:
    """Return how well the uncompressed model does; metrics that compare with it say nothing about it."""
    images = fmt.plural(result.num_samples, "image")
    return {
        f"{metric.label}, uncompressed": f"{metric.value_text(result.baseline[name])} ({images})"
        for name, metric in METRICS.items()
        if metric.needs_labels and metric.primary and name in result.baseline
    }


def provenance_text(result: RunResult) -> str:
    """Return measured or estimated, on how many images, with which intervals, and how it was computed, in one line."""
    return " · ".join(filter(None, [evidence_text(result), passes_text(result)]))


def provenance_line(result: RunResult) -> Markdown:
    """Return the first half for a page, with the word that matters most in bold; :func:`passes_text` is the other."""
    source, _, rest = evidence_text(result).partition(" ")
    return md("**{}** {}", source, rest)


_PRECISIONS = {"fp32": "32-bit numbers", "bf16": "16-bit numbers (bf16)"}


def passes_text(result: RunResult) -> str:
    """Return how the network was run: what estimates are from, precision, seed, device; empty for imported figures."""
    if result.spec.data.kind == "imported":
        return ""
    estimated = [item for item in result.shown if item.estimated]
    corrected = " and passes of their own over a few images" if any(item.images_passed for item in estimated) else ""
    parts = [f"estimates from one pass for all layers{corrected}"] if estimated else []
    parts += [f"computed in {_PRECISIONS.get(result.precision, result.precision)}"]
    parts += [f"random choices of seed {result.spec.sensitivity.seed}"]
    device, workers = result.environment.get("device"), result.environment.get("workers")
    if device:
        parts.append(f"on {device} of {workers} workers" if workers else f"on {device}")
    return " · ".join(parts)


def evidence_text(result: RunResult) -> str:
    """Return measured or estimated, on how many images, and with which intervals."""
    if result.spec.data.kind == "imported":
        sizes = f" · sizes of {result.profile.title}" if result.profile.sizes_known else ""
        return f"Imported: measured elsewhere · number of images unknown · intervals unknown{sizes}"
    estimated, total = sum(item.estimated for item in result.shown), len(result.shown)
    source = "Estimated" if estimated else "Measured"
    parts = [
        f"Measured {total - estimated} of {total}, the rest estimated" if 0 < estimated < total else source,
        fmt.plural(result.num_samples, "image"),
        "95 % intervals" if result.measurements else "no intervals",
    ]
    parts[1:1] = [f"random {what}" for what in _made_up(result)]
    return " · ".join(parts)


def _made_up(result: RunResult) -> list[str]:
    """Return what of a run is random: its weights, its inputs."""
    return ["weights"] * (not result.profile.pretrained) + ["inputs"] * (result.spec.data.kind == "random")


def caveat_of(result: RunResult) -> str:
    """Return why the run's figures are indicative only; empty where they are not."""
    reasons = [f"the {what} are random" for what in _made_up(result)]
    return f"Indicative only: {' and '.join(reasons)}" if reasons else ""


def reached_note(result: RunResult) -> str:
    """Return the note on the reachable levels of whole filters or channels; empty for single weights."""
    what = result.compression.whole_units
    if not what:
        return ""
    if not result.profile.sizes_known:
        return (
            f"{what}. How many there are is not in the file, so a layer may have got up to 1 / (number of filters) "
            "less than the level says."
        )
    return f"{what}, so a layer moves in steps of 1 / (their number); the column Reached says what it truly got."


def notes_of(result: RunResult) -> list[str]:
    """Return the notes on the run and its model, and how well the estimate agreed with the measurement."""
    notes = list(dict.fromkeys((*result.notes, *result.profile.notes)))
    known = {level: value for level, value in result.agreement.items() if not math.isnan(value)}  # nan: nothing is lost
    if known and result.measurements:
        scale = result.compression.scale
        found = ", ".join(f"{value:.2f} at {scale.text(float(level))}" for level, value in known.items())
        notes.append(
            "How well the quick estimate has the order of the layers that was then measured, where 1 is the same order "
            f"and 0 no relation: {found}."
        )
    return notes


def run_title(spec: RunSpec, taken: Collection[str] = ()) -> str:
    """Return the title a run gets at first: model (or checkpoint's file), images that are not a demo's, compression.

    A number follows where the title is ``taken``.
    """
    images = images_title(spec.data) if spec.data.path or spec.data.name else ""
    title = " · ".join(filter(None, [_model_title(spec), images, _done(spec.sensitivity)]))
    numbered = (f"{title} ({number})" for number in range(2, len(taken) + 2))
    return next(each for each in (title, *numbered) if each not in taken)


def _model_title(spec: RunSpec) -> str:
    demos = {
        ModelSpec(): "Digits",
        PHOTOGRAPHS_DEMO.model: "EfficientNet-Lite0",
        DETECTION_DEMO.model: "Detector of shapes",
    }
    return Path(spec.model.checkpoint).name if spec.model.checkpoint else demos.get(spec.model, spec.model.title)


def _done(settings: SensitivitySpec) -> str:
    done = settings.compression.description
    return done.in_titles or done.label.lower()


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Markdown:
    """Return a table in Markdown, whose cells wrap."""
    lines = [md("| {} |", md(" | ").join(columns)), md("|{}", md("").join(md("---|") for _ in columns))]
    lines += [md("| {} |", md(" | ").join(row)) for row in rows]
    return md("\n").join(lines)


def download_stem(spec: RunSpec) -> str:
    """Return how the names of files that are taken from a run begin: model and compression."""
    return fmt.file_stem(f"{_model_title(spec)} · {_done(spec.sensitivity)}")


def compression_text(settings: SensitivitySpec, *, terms: bool) -> str:
    """Return compression and levels: in ``terms`` ``Sparsity 25, 50 %``, else as in titles, ``Zeros: 25, 50 %``."""
    named = settings.compression.description.label if terms else f"{_done(settings).capitalize()}:"
    return f"{named} {settings.compression.scale.texts(settings.levels)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """How a run's state is shown: a word, a badge colour and an icon as the second cue."""

    label: str
    color: str
    icon: str


STATES = {
    RunState.QUEUED: StateView(label="Waiting", color="gray", icon=":material/hourglass_empty:"),
    RunState.RUNNING: StateView(label="Running", color="blue", icon=":material/play_circle:"),
    RunState.DONE: StateView(label="Finished", color="green", icon=":material/check_circle:"),
    RunState.CANCELLED: StateView(label="Cancelled", color="gray", icon=":material/cancel:"),
    RunState.FAILED: StateView(label="Failed", color="red", icon=":material/error:"),
    RunState.INTERRUPTED: StateView(label="Interrupted", color="orange", icon=":material/pause_circle:"),
}


def size_changes(validation: ValidationResult) -> dict[str, str]:
    """Return the sizes of the files on the disk, and what else changed, before and after, as label and text."""
    whole = validation.sizes.get("file_bytes", (0.0, 0.0))[0]
    found = {
        f"{model_file(suffix).label}, on disk": fmt.bytes_size(size) + _share_of(size, whole)
        for suffix, size in validation.files.items()
    }
    for kind, title in {"zeros": "Zeros", "params": "Parameters", "macs": "Multiplications"}.items():
        before, after = validation.sizes.get(kind, (0.0, 0.0))
        if before != after:
            found[title] = f"{fmt.count(before)} → {fmt.count(after)}"
    return found


def _share_of(size: float, whole: float) -> str:
    """Return what part of the original's weights a clearly smaller file takes; empty for others."""
    if not size < 0.9 * whole:
        return ""
    return f", {fmt.percent(size / whole, digits=1)} of the original's {fmt.bytes_size(whole)} of weights"


def loss_figures(schedule: Schedule, validation: ValidationResult | None, view: Metric | None = None) -> dict[str, str]:
    """Return the loss predicted in the schedule's own metric and, once proven, that measured of what is delivered."""
    view = view or METRICS[schedule.metric]
    predicted = validation.predicted if validation is not None else schedule.predicted_damage
    found = {f"Predicted {view.change_inside}": view.change_text(predicted)}
    changes = validation.kept_changes if validation is not None else ()
    if view.as_answers:  # the share itself, where it was measured, in place of what the divergence says of it
        shares = (share for each in changes if (share := METRICS[each.metric]).counted and share.primary)
        view = next((share for share in shares if not share.needs_labels), view)
    if (change := change_in(changes, view.name)) is not None:
        images = fmt.plural(change.num_samples, "image")
        interval = f"{view.interval_text(change.ci_low, change.ci_high)}; " if change.has_interval else ""
        found[f"Measured {view.change_inside}"] = f"{view.change_text(change.delta)} ({interval}{images})"
    return found


STEPS = "What each step gained, on images of the run that it was not fitted to:"


def step_lines(validation: ValidationResult) -> tuple[str, ...]:
    """Return a line for each form of the model that was tried, in the order in which they build on one another."""
    found, before = [], None
    images = max((step.change.num_samples for step in validation.steps), default=0)
    for step in validation.steps:
        view, change = METRICS[step.change.metric], step.change
        interval = view.interval_text(change.ci_low, change.ci_high)
        line = f"{step.title}: {view.change_inside} {view.change_text(change.delta)} ({interval})"
        if change.num_samples < images:  # given up when others did better on these
            found.append(f"{line}, on {change.num_samples} images")
            continue
        gained = "" if before is None else f", {view.change_text(change.delta - before)}"
        found.append(f"{line}{gained}{': kept' if step.kept else ''}")
        before = change.delta
    return tuple(found)


# ---- findings on a layer, and on int8


def remedy_text(found: Diagnosis) -> str:
    """Return the remedy with the largest measured gain; where none gains anything, that it is best left as it is."""
    lost, images = found.change, f"{found.change.num_samples} images"
    best = found.remedies[0] if found.remedies else None
    if best is None or not best.change.delta < lost.delta:
        return f"Nothing that was tried helps: leave it as it is, or give it a milder level ({images})."
    part = max(0.0, best.change.delta) / lost.delta
    left = f"{100 * part:.0f} %" if part >= 0.01 else "less than 1 %"
    return f"{best.label} leaves {left} of what it loses (measured, {images})."


def remedies_text(found: Diagnosis) -> str:
    """Return losses of the layer as the run compressed it, and with each remedy, in the measured metric."""
    view = METRICS[found.change.metric]
    tried = [("As it is", found.change), *((each.label, each.change) for each in found.remedies)]
    return f"{view.label}. " + " · ".join(f"{label}: {view.change_text(change.delta)}" for label, change in tried)


def int8_text(found: Int8Timing) -> str:
    """Return whether 8-bit numbers pay here, and about how much."""
    about = f"about {found.ratio.times_text} of full precision, timed on a first file of this network."
    if found.ratio.high < 1:
        return f"8-bit numbers pay here: {about}"
    if not found.pays:
        return f"8-bit numbers do not pay here: {about} Such a file is smaller, and no quicker."
    return f"Whether 8-bit numbers pay here is not clear: {about}"


def int8_machine_text(found: Int8Timing) -> str:
    """Return what this machine has for int8."""
    has = f"multiplies 8 bits by {found.products}" if found.products else "has no instructions for products of 8 bits"
    return f"{found.machine}: the processor {has}."
