"""``histogram``: layers' values on their quantization grid, as a table and as charts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from senseapp.cli.analyze import add_data_arguments, add_model_arguments
from senseapp.cli.output import phases
from senseapp.cli.run_arguments import described, run_folder
from senseapp.core.errors import InvalidSpec
from senseapp.core.files import write_file
from senseapp.records.layer_findings import QuantizationHistogram
from senseapp.records.profile import select_layers
from senseapp.records.spec import HistogramObjective, HistogramSpec, HistogramTensor, patterns_in
from senseapp.server.run_tasks import HistogramTask
from senseapp.store.run_folder import RunFolder

if TYPE_CHECKING:
    from senseapp.measure.histograms import Found

EPILOG = """\
Give a RUN (the folder of analyze), or --model and --data. A run stores its histograms, and report shows them.
DIR receives histograms.csv (one row per bin of each layer) and histograms.svg and .png (the charts).

examples:
  python -m senseapp histogram runs/demo --bits 4 --out histograms
  python -m senseapp histogram --model timm/resnet50 --checkpoint published --data photos.zip --layers 'layer1.*' \\
                               --tensor outputs --criterion mean --bits 8 --out histograms
"""
_USUAL = HistogramSpec(layer="")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``histogram``."""
    parser.add_argument("run_folder", type=run_folder, nargs="?", metavar="RUN", help="folder of analyze")
    add_model_arguments(parser.add_argument_group("model, without a RUN"), several=False)
    add_data_arguments(parser.add_argument_group("images, without a RUN"), required=False)
    group = parser.add_argument_group("histogram")
    group.add_argument("--layers", default="", metavar="PATTERN", help="names such as 'layer1.*', with commas")
    group.add_argument(
        "--tensor",
        default=_USUAL.tensor,
        help="weights, activations (inputs of layers) or outputs (default: weights); add ,folded to fold a BatchNorm "
        "that follows into its layer first",
    )
    group.add_argument(
        "--bits", type=int, default=_USUAL.bits, metavar="B", help="bits of the grid, 2 to 8 (default: 8)"
    )
    group.add_argument(
        "--granularity",
        choices=("tensor", "channel"),
        default="tensor",
        help="one scale for each tensor or for each channel",
    )
    group.add_argument(
        "--criterion", choices=get_args(HistogramObjective), default=_USUAL.objective,
        help="value whose gradients are computed: the highest score of each image (output, the default), its loss, the "
        "mean of its outputs, or none",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the files")


def run(arguments: argparse.Namespace) -> None:
    """Look at the layers, print a line on each, and write the files."""
    if (arguments.run_folder is None) == (arguments.model is None):
        raise InvalidSpec("Give either a RUN, the folder of analyze, or --model with --data.")
    tensor, _, fold = arguments.tensor.partition(",")
    if tensor not in get_args(HistogramTensor) or fold not in ("", "folded"):
        tensors = ", ".join(get_args(HistogramTensor))
        raise InvalidSpec(f"--tensor is one of {tensors}, alone or with ,folded; got {arguments.tensor!r}.")
    spec = HistogramSpec(
        layer="", tensor=tensor, bits=arguments.bits, per_channel=arguments.granularity == "channel",
        fold=bool(fold), objective=arguments.criterion, num_images=arguments.samples or _USUAL.num_images,
    )  # fmt: skip
    patterns = patterns_in(arguments.layers)
    found = _of_model(arguments, spec, patterns) if arguments.model else _of_run(arguments.run_folder, spec, patterns)
    from senseapp.views.charts.histograms import parted  # loads pandas, which most commands do without

    finished, refusals = parted(found)
    print("\n".join(_lines(finished)))
    for refusal in refusals:
        print(refusal, file=sys.stderr)
    _write(finished, arguments.out)


def _of_model(arguments: argparse.Namespace, spec: HistogramSpec, patterns: Sequence[str]) -> Found:
    if arguments.data is None:
        raise InvalidSpec("--model needs images to look at. Add --data, or --data random.")
    from senseapp.measure.histograms import histograms_of_model  # torch loads here

    with phases() as progress:
        return histograms_of_model(described(arguments), spec, patterns, progress=progress)


def _of_run(path: Path, spec: HistogramSpec, patterns: Sequence[str]) -> Found:
    folder = RunFolder(path)
    result = folder.load_result()
    from senseapp.measure.histograms import histograms_of  # torch loads here

    names = [layer.name for layer in select_layers(result.profile, patterns)]
    with phases() as progress:
        found = histograms_of(result, spec, names, progress=progress)
    for each in found.values():
        if isinstance(each, QuantizationHistogram):
            folder.save(HistogramTask(run_id="", spec=each.spec).key, each)
    return found


def _lines(finished: Sequence[QuantizationHistogram]) -> Iterator[str]:
    """Yield a table with a line for each layer, and the notes of all."""
    width = max(len("layer"), *(len(each.spec.layer) for each in finished))
    yield f"{'layer':{width}} {'from':>10} {'to':>10} {'step':>10} {'zero':>8} {'clamped':>8}"
    for each in finished:
        step = f"{each.scale:10.4g}" if each.scale == each.scale else f"{'channel':>10}"
        yield (
            f"{each.spec.layer:{width}} {each.low:10.4g} {each.high:10.4g} {step} "
            f"{each.zero_share:8.2%} {each.clamped_share:8.3%}"
        )
    yield from dict.fromkeys(note for each in finished for note in each.notes)


def _write(finished: Sequence[QuantizationHistogram], folder: Path) -> None:
    from senseapp.views.charts.axes import frame_csv, picture_png, picture_svg
    from senseapp.views.charts.histograms import colours_text, picture_of, wall_frame

    spec, images = finished[0].spec, finished[0].num_images
    title = f"Where do the {spec.tensor} lie on the quantization grid, and which matter?"
    lines = [f"{spec.bits} bits, {images} image{'s' if images != 1 else ''}. {colours_text(spec)}"]
    chart = picture_of(finished)
    write_file(folder / "histograms.csv", frame_csv(wall_frame(finished)))
    write_file(folder / "histograms.svg", picture_svg(chart, title=title, lines=lines))
    write_file(folder / "histograms.png", picture_png(chart, title=title, lines=lines))
    print(f"Wrote histograms.csv, histograms.svg and histograms.png to {folder}")
