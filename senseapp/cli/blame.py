"""``blame``: measure the loss of a quantized ONNX file, and how much of it each node causes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from senseapp.cli.analyze import add_data_arguments, add_onnx_arguments
from senseapp.cli.output import phases
from senseapp.cli.run_arguments import data_from, read_as_given
from senseapp.core.codec import dumps
from senseapp.core.errors import InvalidCheckpoint
from senseapp.core.files import replace_file
from senseapp.records.spec import ModelSpec, RunSpec, SensitivitySpec
from senseapp.tasks import CLASSIFICATION

if TYPE_CHECKING:
    from senseapp.records.layer_findings import QuantizedNodesReport

EPILOG = """\
INT8 has QuantizeLinear and DequantizeLinear around its nodes, as most quantizers write them. The file is run on the
images in onnxruntime once for each node, with this node back in float.

examples:
  python -m senseapp blame network.onnx network-int8.onnx --data photos.zip
  python -m senseapp blame network.onnx network-int8.onnx --data photos.zip --samples 32 --out nodes.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``blame``."""
    parser.add_argument("checkpoint", metavar="FLOAT", help="float ONNX file from which INT8 was made")
    parser.add_argument("candidate", type=Path, metavar="INT8", help="quantized ONNX file")
    add_onnx_arguments(parser.add_argument_group("network"))
    add_data_arguments(parser.add_argument_group("images"))
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file of all nodes")


def run(arguments: argparse.Namespace) -> None:
    """Measure each node, print them by what they cost, and write the file."""
    for path in (Path(arguments.checkpoint), arguments.candidate):
        if not path.exists():
            raise InvalidCheckpoint(f"There is no file at {path}. Check the path.")
    model = ModelSpec(
        library="onnx",
        checkpoint=str(Path(arguments.checkpoint).resolve()),
        outputs=tuple(arguments.onnx_output or ()),
        img_size=arguments.img_size,
        task=arguments.task or CLASSIFICATION.name,
    )
    spec = read_as_given(RunSpec(model=model, data=data_from(arguments)), arguments)
    spec = replace(spec, sensitivity=replace(SensitivitySpec(), num_samples=arguments.samples))
    from senseapp.prove.diagnosis import blame_nodes  # torch loads here

    with phases() as progress:
        report = blame_nodes(spec, arguments.candidate, progress=progress)
    print("\n".join(_lines(report)))
    if arguments.out is not None:
        replace_file(arguments.out, dumps(report))
        print(f"Wrote {arguments.out}")


def _lines(report: QuantizedNodesReport) -> Iterator[str]:
    """Yield the verdict, a table of the nodes, and the notes."""
    yield report.verdict
    width = max(len("node"), *(len(node.name) for node in report.nodes))
    yield f"{'node':{width}}  {'operator':12} {'recovers':>9} {report.metric + ' without':>12}"
    for node in report.ranked:
        share = report.recovered(node) / report.whole if report.whole > 0 else 0.0
        yield f"{node.name:{width}}  {node.op:12} {share:9.1%} {node.without:12.4g}"
    yield f"{'all of them in float':{width}}  {'':12} {'':>9} {report.rest:12.4g}"
    yield from report.notes
