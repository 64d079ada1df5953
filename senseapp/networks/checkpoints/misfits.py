"""Reasons why the weights in a checkpoint fit no architecture, or not the chosen one."""

import re
from collections.abc import Collection, Mapping

from torch import Tensor, nn

from senseapp.core.texts import first_names
from senseapp.networks.checkpoints.architectures import (
    COMPUTED_SUFFIXES,
    Shapes,
    architecture_named,
    shapes_of,
    weights_only,
)
from senseapp.networks.checkpoints.checkpoint import Checkpoint
from senseapp.networks.checkpoints.recognise import PARAMETRIZED
from senseapp.networks.checkpoints.stored_networks import StoredNetwork
from senseapp.networks.checkpoints.weights_file import MERGE_SHARDS
from senseapp.records.inputs import MatchReport, Mismatch


def match_state_dict(module: nn.Module, tensors: Mapping[str, Tensor], *, fresh_head: str = "") -> MatchReport:
    """Compare ``tensors`` with the state dict of ``module``; if they do not fit, name the likely cause.

    The weights of the layer ``fresh_head`` may be missing.
    """
    return _compared(shapes_of(module.state_dict()), shapes_of(tensors), fresh_head=fresh_head)


def _compared(expected: Shapes, found: Shapes, *, fresh_head: str = "") -> MatchReport:
    own = weights_only(expected)
    missing = [
        Mismatch(name, shape, None)
        for name, shape in own.items()
        if name not in found and not (fresh_head and name.rpartition(".")[0] == fresh_head)
    ]
    wrong = [Mismatch(name, own[name], found[name]) for name in own if name in found and found[name] != own[name]]
    surplus = [name for name in found if name not in expected]
    unexpected = [Mismatch(name, None, found[name]) for name in surplus if not name.endswith(COMPUTED_SUFFIXES)]
    cause = _likely_cause(list(own), missing, unexpected, wrong)
    return MatchReport(
        differences=(*missing, *wrong, *unexpected),
        ignored=tuple(name for name in surplus if name.endswith(COMPUTED_SUFFIXES)),
        cause=cause and (not_plain_weights("The checkpoint", found) or cause),
    )


def _likely_cause(names: list[str], missing: list[Mismatch], unexpected: list[Mismatch], wrong: list[Mismatch]) -> str:
    """Return the first explanation that accounts for every difference."""
    if not (missing or unexpected or wrong):
        return ""
    head = names[-1].rpartition(".")[0] + "."  # the last layer that has weights
    if missing and not (unexpected or wrong or all(item.name.startswith(head) for item in missing)):
        held = f"{len(names) - len(missing)} of the {len(names)} weights of this architecture and nothing else"
        return f"The checkpoint holds {held}: a part (a shard), or one that was saved in part. {MERGE_SHARDS}"
    if len(missing) > len(names) // 2:
        return "The checkpoint was made for another architecture: most names differ."
    if wrong and not (missing or unexpected):
        classes, built_with = (wrong[0].found or (0,))[0], (wrong[0].expected or (0,))[0]
        if classes != built_with and all(item.name.startswith(head) for item in wrong):
            return f"The checkpoint has {classes} classes, the network was built with {built_with}."
        return (
            "The checkpoint was made for images of another size or number of channels, or for a wider, narrower or "
            "otherwise different variant of this architecture."
        )
    if all(item.name.startswith(head) for item in missing) and not wrong:
        if not unexpected:
            return "The checkpoint has no classifier: it holds the features only."
        if missing:
            return f"The checkpoint has another classifier in place of {head.rstrip('.')}."
        return "The checkpoint holds more than this architecture: a larger variant, or a second network beside it."
    return "The checkpoint was made for a variant of this architecture, or for another version of its library."


def mismatch_sentence(report: MatchReport, file_name: str, title: str) -> str:
    """Return why a checkpoint does not fit the chosen architecture, in sentences."""
    advice = "Choose the architecture auto to have it recognised, or the checkpoint that belongs to this one."
    found = f"{file_name} does not fit {title}: {_differences(report)}. {report.cause}"
    return found if report.cause.endswith(MERGE_SHARDS) else f"{found} {advice}"


def _differences(report: MatchReport) -> str:
    names: dict[str, list[str]] = {"missing": [], "unexpected": [], "of another shape": []}
    for item in report.differences:
        if item.kind == "wrong shape":
            names["of another shape"].append(f"{item.name} {item.found} for {item.expected}")
        else:
            names[item.kind].append(item.name)
    return "; ".join(f"{len(found)} {what} ({first_names(found)})" for what, found in names.items() if found)


_ADAPTER = re.compile(r"(?:^|[._])(lora|loha|lokr|hada|dora|vera|ia3)(?=$|[._])", re.IGNORECASE)
_QUANTIZED = re.compile(
    r"(?:^|[._])(?:_packed_params|zero_point|weight_fake_quant|activation_post_process|absmax|quant_map|SCB|quant_state"
    r"|qweight|qzeros|W_q|weight\._(?:data|scale)|_(?:amax|pre_quant_scale)|weight_(?:scale|scale_inv|packed))(?:$|\.)"
)
"""Names of what tools store beside or in place of the weights that they quantize."""
FLOAT_WEIGHTS = "Bring the float weights that it was made of; to check the quantized network itself, export it as ONNX."
_SHARD = re.compile(r"(\d{1,9})[-_]of[-_](\d{1,9})", re.IGNORECASE)


def not_plain_weights(file_name: str, names: Collection[str]) -> str:
    """Return in sentences why entries of these names are not a network's float weights; empty where they may be.

    They are quantized, an adapter, the inputs of a parametrization, or one of several parts, which the name of the
    file tells.
    """
    if found := [name for name in names if _QUANTIZED.search(name)]:
        return (
            f"{file_name} holds a network that was quantized: {len(found)} entries are integers, or what these stand "
            f"for ({first_names(found)}). {FLOAT_WEIGHTS}"
        )
    if found := [name for name in names if PARAMETRIZED.search(name)]:
        return (
            f"{file_name} keeps weights from which a function computes those of the layers ({first_names(found)}). "
            "Take it off before saving: torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight'), or "
            "torch.nn.utils.remove_weight_norm(layer)."
        )
    if found := [name for name in names if _ADAPTER.search(name)]:
        alone = len(found) == len(names)
        what = "an adapter, not a network" if alone else "a network with an adapter that was not merged into it"
        return (
            f"{file_name} holds {what}: {len(found)} low-rank weights ({first_names(found)}). Merge it into the "
            "network where it was trained (peft: model.merge_and_unload()), and save the network's own state_dict."
        )
    if numbered := _SHARD.search(file_name):
        return (
            f"{file_name} is part {int(numbered[1])} of {int(numbered[2])} of a checkpoint (a shard), so most weights "
            f"are missing. {MERGE_SHARDS}"
        )
    return ""


def why_nothing_fits(checkpoint: Checkpoint, network: StoredNetwork) -> str:
    """Return the cause, in sentences, for which ``network`` is of no known architecture."""
    return (
        not_plain_weights(checkpoint.file_name, (*checkpoint.tensors, *checkpoint.other_forms))
        or _of_another_library(checkpoint)
        or _not_numbers(checkpoint)
        or _not_the_closest(checkpoint, network)
    )


def _of_another_library(checkpoint: Checkpoint) -> str:
    """Say that a folder's network is built by another library, and how to export it."""
    config = checkpoint.config
    if config is None or not config.written_for:
        return ""
    builder = config.written_for if config.written_for.isidentifier() else "AutoModelForImageClassification"
    folder = checkpoint.file_name.removesuffix(".zip")
    return (
        f"{checkpoint.file_name} is the folder of a network of another library ({config.written_for}), and its weights "
        "are of no architecture of timm or torchvision. Export it as ONNX and choose that file: "
        f"model = transformers.{builder}.from_pretrained('{folder}', return_dict=False).eval(); "
        "torch.onnx.export(model, (torch.zeros(1, 3, 224, 224),), 'model.onnx', dynamo=True)."
    )


def _not_numbers(checkpoint: Checkpoint) -> str:
    """Say that weights are quantized or sparse."""
    if checkpoint.other_forms:
        name, form = next(iter(checkpoint.other_forms.items()))
        return (
            f"{len(checkpoint.other_forms)} weights in {checkpoint.file_name} are not plain numbers: {name} is {form}. "
            "Save the weights of the float32 model, plain and dense."
        )
    return ""


def _not_the_closest(checkpoint: Checkpoint, network: StoredNetwork) -> str:
    """Say which architectures come closest, and how the weights differ from the first where that is little."""
    closest = ", ".join(f"{item.title} ({item.score:.0%} alike)" for item in network.candidates[:3])
    said = (
        f"The weights in {checkpoint.file_name} are of no architecture of timm or torchvision, by their names or by "
        f"their order{f'; the closest are {closest}' if closest else ''}. "
    )
    if closest:
        own = _sized_as(network)
        report = _compared(own, weights_only(network.shapes))
        if len(report.differences) <= len(own) // 10 or report.cause.endswith(MERGE_SHARDS):
            return f"{said}Compared with {network.candidates[0].title}: {_differences(report)}. {report.cause}"
    said += "" if checkpoint.keeps_order else "safetensors sorts weights by name; torch.save keeps their order. "
    return f"{said}Choose the architecture by name to see what differs."


def _sized_as(network: StoredNetwork) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the closest architecture, with classes, channels and image size of the weights."""
    closest = architecture_named(network.candidates[0].library, network.candidates[0].name)
    assert closest is not None
    own, found = closest.shapes, network.shapes
    for name, pattern in closest.free.patterns.items():
        if len(lengths := found.get(name, ())) == len(pattern):
            own[name] = tuple(b if a is None else a for a, b in zip(pattern, lengths, strict=True))
    return own
