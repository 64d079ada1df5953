"""``read``: say how outputs, images and class numbers are read, before anything is measured."""

import argparse
import json
from pathlib import Path

from senseapp.cli.analyze import add_data_arguments, add_model_arguments
from senseapp.cli.output import phases
from senseapp.cli.run_arguments import data_from, model_from, read_as_given
from senseapp.core.codec import encode
from senseapp.core.errors import InvalidSpec, ReadingOpen
from senseapp.core.files import replace_file
from senseapp.records.spec import RunSpec, SensitivitySpec

EPILOG = """\
Each part is followed by its source: metadata of the file, labels, images, you, or only an assumption. If several
readings fit and nothing decides, they are listed, and --reading N chooses one. --out writes the reading as JSON, which
analyze, check and blame read with --reading.

exit status: 0 the reading is known, 2 you have to choose one, or a file cannot be read

examples:
  python -m senseapp read --model onnx --checkpoint detector.onnx --task detection --data val --out reading.json
  python -m senseapp read --model onnx --checkpoint detector.onnx --task detection --data val --reading 2 --out r.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``read``."""
    add_model_arguments(parser.add_argument_group("model"), several=False)
    add_data_arguments(parser.add_argument_group("images"))
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the reading as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Print the reading in sentences, and write it; raises ReadingOpen where a person has to choose."""
    if not arguments.model:
        raise InvalidSpec("Say which model: --model NAME.")
    spec = RunSpec(
        model=model_from(arguments),
        data=data_from(arguments),
        sensitivity=SensitivitySpec(num_samples=arguments.samples),
    )
    chosen = int(str(arguments.reading)) if str(arguments.reading).isdecimal() else None
    if chosen is None:
        spec = read_as_given(spec, arguments)
    from senseapp.measure.preparation_search import choose_preparation  # torch loads here
    from senseapp.measure.readings import reading_of
    from senseapp.networks.sources.load import load_model

    with phases() as progress:
        choice = choose_preparation(spec, progress=progress)
        taken = choice.spec
        if chosen is not None:
            if not 1 <= chosen <= len(choice.trials):
                raise InvalidSpec(f"--reading takes 1 to {len(choice.trials)}, the readings that were tried.")
            taken = choice.picked(choice.trials[chosen - 1])
        reading = reading_of(taken, load_model(taken.model, progress=progress))
    if choice.question and chosen is None:
        raise ReadingOpen(choice.asked)
    for sentence in (*reading.sentences, *choice.notes):
        print(sentence)
    if arguments.out is not None:
        replace_file(arguments.out, json.dumps(encode(reading), indent=1) + "\n")
