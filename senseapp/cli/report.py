"""``report``: a run as one HTML file that opens offline."""

import argparse
from pathlib import Path

from senseapp.cli.run_arguments import run_folder, schedule_at
from senseapp.core.files import write_file
from senseapp.records.answers import ChangedAnswers
from senseapp.records.schedule import ValidationResult
from senseapp.store.run_folder import RunFolder

EPILOG = """\
FILE opens in any browser, without a connection. It shows the files and the measured schedules of the run; --schedule
adds a schedule that was not measured.

examples:
  python -m senseapp report runs/demo -o report.html
  python -m senseapp report runs/demo --schedule targets.json -o report.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``report``."""
    parser.add_argument("run_folder", type=run_folder, metavar="RUN", help="folder of analyze or import")
    parser.add_argument("--schedule", type=Path, metavar="FILE", help="JSON, YAML or CSV of schedule, to be shown too")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="HTML file to write")


def run(arguments: argparse.Namespace) -> None:
    """Write the report and say where."""
    folder = RunFolder(arguments.run_folder)
    result = folder.load_result()
    schedules = (schedule_at(arguments.schedule, result),) if arguments.schedule else ()
    from senseapp.views.report.document import (
        ReportContents,
        build_report,
    )  # loads pandas, which most commands do without

    contents = ReportContents(
        title=f"{result.profile.title} · {result.compression.kind}",
        result=result,
        schedules=schedules,
        validations=folder.records(ValidationResult),
        changed=folder.records(ChangedAnswers),
        candidates=folder.candidates(),
    )
    write_file(arguments.out, build_report(contents))
    print(f"Wrote {arguments.out}")
