"""One architecture of each family of the catalogues, analysed with each compression: no traceback, no layer forgotten.

Run as ``python -m soak.families [--out FILE]``: random weights, random images, the smallest input that works, one
level. The layers and groups of each architecture are found in the whole of it. They are then measured in a copy without
the third and later of its equal blocks, which takes a fifth of the time; ``--whole`` measures every block. Each
architecture has a process of its own that is ended when its time is over. FILE has a line of JSON for each that is
done; those are not done again. Exits with 0 if nothing is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import multiprocessing
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from senseapp.compressions.pruning import pruning
from senseapp.core.errors import SenseError
from senseapp.data.load import load_images
from senseapp.descriptions import get
from senseapp.measure.plan import Layout
from senseapp.measure.session import Session
from senseapp.measure.sweep import Sweep
from senseapp.networks.loaded import LoadedModel, skip_weight_init
from senseapp.networks.sources.catalogue import CatalogueEntry, load_catalogue, task_of_architecture
from senseapp.networks.sources.load import load_model
from senseapp.networks.trace import tensors_in
from senseapp.records.measurement import RunResult, Status
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.outputs import write_outputs
from senseapp.tasks import task_named

LEVELS = {"sparsity": 50.0, "quantization": 4.0, "pruning": 50.0}
IMAGES = 2
_TWINS = 2  # equal blocks of one container that are measured
MOST_PARAMS = 150e6  # beyond that, a smaller relative tells the same
_SIDES = (32, 64, 96, 128, 160, 192, 224, 256, None)  # None: its own
_SMALLEST = "timm/test_resnet"
_SIZES = (
    *("tiny", "small", "base", "large", "nano", "pico", "femto", "atto", "micro", "mini", "medium", "huge", "giant"),
    *("gigantic", "xlarge", "xxlarge", "xsmall", "xxsmall", "little", "wee", "zepto", "so"),
)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What came of one architecture.

    Attributes:
        wrong: by compression (or ``all``), what should not have happened.
        left_out: how many blocks were not measured because two others of their container equal them.
        whole: of the whole network, how many layers (or groups) can be compressed, and how many have a reason.
        layers: how many layers were measured, have a reason, or failed, by compression.
        reasons: why layers were not pruned, with how many of them.
        forward_seconds: processor time of one pass over one image.
        groups_seconds: processor time of finding which channels of the whole network are coupled.
    """

    name: str
    side: int | None = None
    wrong: dict[str, str] = field(default_factory=dict)
    left_out: int = 0
    whole: dict[str, dict[str, int]] = field(default_factory=dict)
    layers: dict[str, dict[str, int]] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    forward_seconds: float = 0.0
    groups_seconds: float = 0.0
    seconds: float = 0.0
    processor_seconds: float = 0.0

    @property
    def passes(self) -> float:
        """How many passes over an image finding the groups takes."""
        return self.groups_seconds / self.forward_seconds if self.forward_seconds else 0.0


def families() -> list[CatalogueEntry]:
    """Return the smallest architecture of each family, the quickest first.

    A family is the letters that a name begins with, and the word after them unless it is a size.
    """
    found: dict[tuple[str, ...], list[CatalogueEntry]] = {}
    for entry in load_catalogue():
        words = entry.name.split("_")
        stem = re.match(r"[a-z]+(v\d)?", words[0])
        further = [word for word in words[1:2] if word.isalpha() and len(word) > 2 and word not in _SIZES]
        if stem and words[0] != "test" and entry.num_classes and entry.num_params <= MOST_PARAMS:
            found.setdefault((entry.library, stem.group(0), *further), []).append(entry)
    smallest_of_each = [min(entries, key=_work) for entries in found.values()]
    return sorted(smallest_of_each, key=_work)


def _work(entry: CatalogueEntry) -> tuple[int, str]:
    return (
        entry.macs or sys.maxsize,
        entry.title,
    )  # detectors and segmenters, whose operations nobody counted, come last


def smallest(title: str) -> tuple[ModelSpec, LoadedModel]:
    """Return the architecture at the smallest height and width that it takes."""
    library, name = title.split("/")
    task = task_of_architecture(library, name)
    for side in _SIDES:
        spec = ModelSpec(library=library, name=name, img_size=side, task=task)  # type: ignore[arg-type]
        with contextlib.suppress(SenseError):
            with skip_weight_init():
                loaded = load_model(spec)
            _draw_weights(loaded.module)
            return spec, loaded
    raise SenseError(f"{title} takes no image.")


def _draw_weights(module: nn.Module) -> None:
    """Fill weights at random: to let each architecture draw its own takes most of the time of building it."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                spread = math.prod(parameter.shape[1:]) ** -0.5
                parameter.uniform_(-spread, spread, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def leave_out_twins(network: nn.Module, containers: type | tuple[type, ...] = nn.Module) -> int:
    """Remove all but the first two of equal blocks from each container; return how many blocks that were.

    Equal blocks have the same classes, shapes and settings all through: compressing one does nothing that compressing
    another does not. A stage of alternating blocks keeps two of each.
    """
    left_out = 0
    for container in [each for each in network.modules() if isinstance(each, containers)]:
        seen: dict[str, list[str]] = {}
        for name, child in container.named_children():
            if next(child.children(), None) is not None:
                seen.setdefault(_form(child), []).append(name)
        further = [name for names in seen.values() for name in names[_TWINS:]]
        if isinstance(container, nn.Sequential | nn.ModuleList):
            for name in sorted(further, key=list(container._modules).index, reverse=True):
                del container[list(container._modules).index(name)]  # which numbers the rest anew
        else:
            for name in further:
                del container._modules[name]
        left_out += len(further)
    return left_out


def _form(block: nn.Module) -> str:
    """Return what tells apart blocks that are not equal: classes, shapes, and plain values but rates of dropping."""
    parts = []
    for name, module in block.named_modules():
        plain = [
            (key, value) for key, value in vars(module).items() if isinstance(value, bool | int | float | str | tuple)
        ]
        settings = sorted((key, repr(value)) for key, value in plain if not re.search("drop|index|idx|depth", key))
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        shapes = [(each, tuple(tensor.shape)) for each, tensor in tensors]
        parts.append((name, type(module).__name__, settings, shapes))
    return repr(parts)


def _without_twins(loaded: LoadedModel) -> tuple[LoadedModel, int]:
    """Return the network without its further equal blocks; the whole one if it does not run without them."""
    image = torch.zeros(IMAGES, *loaded.preprocessing.input_shape)
    for containers in (nn.Module, (nn.Sequential, nn.ModuleList)):
        with contextlib.suppress(Exception), torch.inference_mode():  # some count blocks, or the outputs of each
            shorter = copy.deepcopy(loaded.module)
            left_out = leave_out_twins(shorter, containers)
            if left_out and _shapes(shorter(image)) == _shapes(loaded.module(image)):
                return replace(loaded, module=shorter), left_out
    return loaded, 0


def _shapes(output: Any) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors_in(output)]


def try_architecture(title: str, kinds: Sequence[str] = tuple(LEVELS), *, whole: bool = False) -> Tried:
    """Analyse one architecture with each compression, in this process."""
    torch.set_num_threads(1)
    started, used = time.monotonic(), time.process_time()
    try:
        model, loaded = smallest(title)
        measured, left_out = (loaded, 0) if whole else _without_twins(loaded)
        tried = Tried(
            name=title,
            side=loaded.preprocessing.input_shape[1],
            left_out=left_out,
            forward_seconds=_forward_seconds(loaded),
        )
    except BaseException:
        return Tried(name=title, wrong={"all": traceback.format_exc(limit=-3)})
    for kind in kinds:
        reasons: dict[str, int] = {}
        with _timed_groups() as seconds:
            try:
                if left_out and kind == "pruning":  # whose groups reach over all blocks of a stage
                    tried.whole[kind] = _found(_opened(model, loaded, kind)[1])
                tried.layers[kind], reasons, wrong = _counted(_analysed(model, measured, kind))
            except BaseException:
                wrong = traceback.format_exc(limit=-4)
        if wrong:
            tried.wrong[kind] = wrong
        if kind == "pruning":
            tried = replace(tried, reasons=reasons, groups_seconds=next(iter(seconds), 0.0))
    return replace(tried, seconds=time.monotonic() - started, processor_seconds=time.process_time() - used)


def _forward_seconds(loaded: LoadedModel) -> float:
    image, taken = torch.zeros(1, *loaded.preprocessing.input_shape), []
    with torch.inference_mode():
        for _ in range(4):
            started = time.process_time()
            loaded.module(image)
            taken.append(time.process_time() - started)
    return min(taken)


def _opened(model: ModelSpec, loaded: LoadedModel, kind: str) -> tuple[RunSpec, Sweep]:
    """Do what the command ``analyze`` does before it measures, on a network that is built once for all."""
    config = get(kind).config()
    settings = SensitivitySpec(compression=config, levels=(config.scale.from_shown(LEVELS[kind]),), device="cpu")
    spec = RunSpec(model=model, data=DataSpec(kind="random"), sensitivity=replace(settings, num_samples=IMAGES))
    task, shape = task_named(model.task), loaded.preprocessing
    images = load_images(spec.data, shape, num_classes=loaded.num_classes, task=task, num_samples=IMAGES, seed=0)
    layout = Layout(micro_batch=IMAGES)
    return spec, Sweep.open(loaded.module, images, spec.sensitivity, layout=layout, task=task)


def _found(sweep: Sweep) -> dict[str, int]:
    """Return how many layers or groups can be compressed and how many have a reason; raise if one has neither."""
    reasons = sweep.compressor.not_applicable
    seen = {*reasons, *(member for item in sweep.planned for member in item.target.members)}
    if missing := [layer.name for layer in sweep.context.profile.layers if layer.name not in seen]:
        raise AssertionError(f"nothing is said of {', '.join(missing[:3])}")
    if unsaid := [name for name, reason in reasons.items() if not reason]:
        raise AssertionError(f"{unsaid[0]} has neither a value nor a reason")
    return {"planned": len(sweep.planned), Status.NOT_APPLICABLE.value: len(reasons)}


def _analysed(model: ModelSpec, loaded: LoadedModel, kind: str) -> RunResult:
    """Do what the command ``analyze`` does, and write the files."""
    spec, sweep = _opened(model, loaded, kind)
    images = sweep.context.images
    session = Session(spec, loaded, images, sweep, images.subset([]))
    result = session.result(tuple(session.measure()))
    with tempfile.TemporaryDirectory() as folder:
        write_outputs(result, Path(folder))
    return result


@contextlib.contextmanager
def _timed_groups() -> Iterator[list[float]]:
    """Take the processor time of each search for groups inside."""
    seconds: list[float] = []
    find_groups = pruning.find_groups

    def timed(*arguments: Any, **named: Any) -> Any:
        started = time.process_time()
        try:
            return find_groups(*arguments, **named)
        finally:
            seconds.append(time.process_time() - started)

    pruning.find_groups = timed
    try:
        yield seconds
    finally:
        pruning.find_groups = find_groups


def _counted(result: RunResult) -> tuple[dict[str, int], dict[str, int], str]:
    """Return how many layers ended how, reasons with how many layers have them, and what is missing."""
    counts: dict[str, int] = {}
    reasons: dict[str, int] = {}
    seen = {member for item in result.measurements for member in item.members}
    for item in result.measurements:
        counts[item.status.value] = counts.get(item.status.value, 0) + 1
        if item.status is not Status.MEASURED:
            reason = f"{item.status.value}: {item.reason}"
            reasons[reason] = reasons.get(reason, 0) + 1
            if not item.reason:
                return counts, reasons, f"{item.layer} has neither a value nor a reason"
    missing = [layer.name for layer in result.profile.layers if layer.name not in seen]
    return counts, reasons, f"nothing is said of {', '.join(missing[:3])}" if missing else ""


def _in_child(answers: Connection, title: str, kinds: Sequence[str], whole: bool) -> None:
    answers.send(try_architecture(title, kinds, whole=whole))


def try_within(
    title: str,
    seconds: float,
    kinds: Sequence[str] = tuple(LEVELS),
    attempt: Callable[[Connection, str, Sequence[str], bool], None] = _in_child,
    *,
    whole: bool = False,
) -> Tried:
    """Do the same in a process of its own, which is ended when its time is over."""
    answers, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=attempt, args=(theirs, title, kinds, whole))
    process.start()
    theirs.close()
    try:
        if answers.poll(seconds):
            tried: Tried = answers.recv()
            return tried
        return Tried(name=title, wrong={"all": f"not done after {seconds:g} s"}, seconds=seconds)
    except EOFError:
        return Tried(name=title, wrong={"all": "its process ended without a word"})
    finally:
        process.kill()
        process.join()


def _read(path: Path) -> dict[str, Tried]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {tried.name: tried for line in lines if (tried := Tried(**json.loads(line)))}


def summary(tried: Sequence[Tried]) -> str:
    """Return what came of all, for people."""
    passes = sorted((each.passes, each.name) for each in tried if each.passes)
    wrong = [f"{each.name} {kind}: {what}" for each in tried for kind, what in each.wrong.items()]
    lines = [f"{len(tried) - len({each.name for each in tried if each.wrong})} of {len(tried)} architectures are right"]
    if passes:
        median = statistics.median(each for each, _ in passes)
        lines.append(f"finding groups takes {median:.1f} passes (median), at most {passes[-1][0]:.0f} {passes[-1][1]}")
    failed = sum(count.get(Status.FAILED.value, 0) for each in tried for count in each.layers.values())
    return "\n".join([*wrong, f"{failed} measurements failed, each with its reason", *lines])


def soak(arguments: list[str]) -> int:
    """Try one architecture of each family, and say how that went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "senseapp-families.jsonl")
    parser.add_argument("--seconds", type=float, default=900, help="for each architecture")
    parser.add_argument("--compressions", nargs="+", choices=tuple(LEVELS), default=tuple(LEVELS))
    parser.add_argument("--only", default="", help="a pattern of names")
    parser.add_argument("--whole", action="store_true", help="measure equal blocks too")
    parser.add_argument("--most-seconds", type=float, default=math.inf, help="begin no architecture after that time")
    given, started = parser.parse_args(arguments), time.monotonic()
    try_architecture(_SMALLEST)  # its processes need not import the libraries each for itself
    done = _read(given.out)
    titles = [entry.title for entry in families() if re.search(given.only, entry.title)]
    for title in titles:
        if title not in done and time.monotonic() - started < given.most_seconds:
            done[title] = try_within(title, given.seconds, given.compressions, whole=given.whole)
            with given.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(done[title])) + "\n")
    tried = [done[title] for title in titles if title in done]
    sys.stdout.write(f"{summary(tried)}\n{len(titles) - len(tried)} architectures are left\n")
    return int(len(tried) < len(titles) or any(each.wrong for each in tried))


if __name__ == "__main__":
    sys.exit(soak(sys.argv[1:]))
