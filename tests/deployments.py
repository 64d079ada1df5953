"""Made-up records of files that were measured in a runtime."""

from dataclasses import replace
from typing import Any

from senseapp.metrics import MetricChange, change_of
from senseapp.records.candidate import Candidate
from senseapp.records.deployment import Deployment, DeploySettings, Median, RuntimeFigures


def a_change(metric: str, delta: float, *, baseline: float = 1.0, half: float = 0.01) -> MetricChange:
    value = delta if metric == "kl" else baseline - delta
    return MetricChange(
        metric=metric,
        baseline=0.0 if metric == "kl" else baseline,
        value=value,
        delta=delta,
        ci_low=delta - half,
        ci_high=delta + half,
        num_samples=200,
    )


def a_counted_change(changed: int, images: int, *, better: int = 0, metric: str = "agreement") -> MetricChange:
    """Return the change of so many answers for the worse and ``better`` ones for the better, of images right before."""
    net, all_changed = float(changed - better), float(changed + better)
    return change_of(metric, (float(images), float(images), net, all_changed, net))


def a_judged_candidate(
    changed: int, images: int = 500, *, better: int = 0, metric: str = "agreement", **parts
) -> Candidate:
    """Return a candidate of which held-out images changed so many answers."""
    found = a_candidate(metric=metric, **parts)
    changes = (a_counted_change(changed, images, better=better, metric=metric),)
    return replace(found, figures=replace(found.figures, changes=changes))


def some_figures(seconds: float, share: float, size: int, *, lost: float = 0.0, kl: float = 0.0) -> RuntimeFigures:
    return RuntimeFigures(
        changes=(a_change("agreement", lost), a_change("kl", kl, half=0.1 * kl)),
        seconds=Median(value=seconds, low=0.98 * seconds, high=1.02 * seconds),
        time_ratio=Median(value=share, low=0.98 * share, high=1.02 * share),
        file_bytes=size,
    )


def usual_figures(**other: RuntimeFigures) -> dict[str, RuntimeFigures]:
    return {
        "original": some_figures(0.0084, 1.0, 18_600_000),
        "file": some_figures(0.0052, 0.62, 5_100_000, lost=0.045, kl=0.01),
        "int8": some_figures(0.0041, 0.49, 4_900_000, lost=0.27, kl=0.073),
        "default": some_figures(0.0040, 0.48, 4_800_000, lost=0.73, kl=0.83),
    } | other


def a_deployment(**parts: Any) -> Deployment:
    return Deployment(
        **{
            "settings": DeploySettings(),
            "figures": usual_figures(),
            "simulated": (),
            "in_float": ("blocks.0.0.conv_dw", "node_add_3"),
            "opset": 20,
            "batch": None,
            "images": 200,
            "preparation": "images, float32, is (N, 3, 224, 224).",
            "machine": "Some CPU with VNNI, onnxruntime 1.32.0",
            "findings": ("Measured on 200 images: 95.5 % of the answers stay as they were.",),
            "notes": ("Measured on 200 images not used above.",),
            "own_setting": "quantize_static, per channel, unsigned activations, min-max",
        }
        | parts
    )


_ORIGINAL = some_figures(0.010, 1.0, 18_800_000)


def a_candidate(
    form: str = "int8",
    *,
    size: int = 4_700_000,
    share: float = 0.55,
    lost: float = 0.04,
    metric: str = "agreement",
    **parts,
) -> Candidate:
    figures = RuntimeFigures(
        changes=(a_change(metric, lost, half=0.02), a_change("kl", 0.01)),
        seconds=Median(value=0.01 * share, low=0.0098 * share, high=0.0102 * share),
        time_ratio=Median(value=share, low=0.98 * share, high=1.02 * share),
        file_bytes=size,
    )
    stem, suffix = ("deployed", ".onnx") if form in ("onnx", "int8", "mixed") else ("compressed", ".safetensors")
    usual = {
        "file": f"{stem}-{size % 16**16:016x}{suffix}",
        "form": form,
        "schedule": None,
        "reconstruction": "",
        "figures": figures,
        "original": _ORIGINAL,
        "held_out": True,
        "deployment": a_deployment(in_float=()) if stem == "deployed" else None,
    }
    return Candidate(**(usual | parts))
