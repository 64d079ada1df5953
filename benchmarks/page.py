"""``benchmarks/RESULTS.md`` from the tables in ``benchmarks/results``: ``python -m benchmarks.page``.

Each line has a key, under which the documentation quotes its figure: ``[4.4](RESULTS.md#speed-resnet50)``.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.results import read_table

PAGE = Path(__file__).with_name("RESULTS.md")
Rows = Sequence[dict[str, str]]


class Line(NamedTuple):
    """A figure of the page.

    Attributes:
        key: names it.
        what: was measured.
        table: that has its rows.
        where: what the first cell of these rows begins with.
        figure: is made of the rows.
        yardstick: what the figure is set against.
    """

    key: str
    what: str
    table: str
    where: str
    figure: Callable[[Rows], str]
    yardstick: str

    @property
    def command(self) -> str:
        """What makes its table again."""
        module = self.table.partition("_")[0] if self.table.startswith(("real_", "deploy_")) else self.table
        return _COMMANDS.get(self.table, f"python -m benchmarks.{module}")

    def rows(self) -> Rows:
        """Return the rows that it is made of."""
        found = [row for row in read_table(self.table) if next(iter(row.values())).startswith(self.where)]
        if not found:
            raise LookupError(f"{self.key}: {self.table}.csv has no row that begins with {self.where!r}.")
        return found


def cell(column: str, form: str = "{}") -> Callable[[Rows], str]:
    """Return what shows a cell of the first row."""
    return lambda rows: form.format(rows[0][column])


def over(column: str, below: str) -> Callable[[Rows], str]:
    """Return what shows the ratio of two cells of the first row."""
    return lambda rows: f"{float(rows[0][column]) / float(rows[0][below]):.1f}"


def number(pattern: str, column: str = "found") -> Callable[[Rows], str]:
    """Return what shows the groups of ``pattern`` in a cell of the first row."""

    def shown(rows: Rows) -> str:
        found = re.search(pattern, rows[0][column])
        if found is None:
            raise LookupError(f"{pattern} is not in {rows[0][column]!r}.")
        return " and ".join(found.groups())

    return shown


def least(*columns: str) -> Callable[[Rows], str]:
    """Return what shows the least number at the start of these cells, over all rows."""
    return lambda rows: f"{min(float(row[column].split()[0].rstrip(',')) for row in rows for column in columns):.3f}"


def middle(column: str) -> Callable[[Rows], str]:
    """Return what shows the median of a column."""
    return lambda rows: f"{statistics.median(float(row[column]) for row in rows):.2f}"


def shares(column: str, of: str) -> Callable[[Rows], str]:
    """Return what shows the median ratio of the numbers at the start of two columns."""

    def shown(rows: Rows) -> str:
        return f"{statistics.median(float(row[column].split()[0]) / float(row[of].split()[0]) for row in rows):.2f}"

    return shown


def beside(metrics: Sequence[str], *, lost: bool = False) -> Callable[[Rows], str]:
    """Return what shows the ratios of our files to the default ones, of the first of ``metrics`` that a row has.

    With ``lost`` of 1 less them. Files that are equal are counted apart.
    """

    def shown(rows: Rows) -> str:
        found, equal = list[float](), 0
        for row in rows:
            metric = next((each for each in metrics if row.get(f"ours: {each}")), None)
            if metric is not None:
                ours, theirs = (float(row[f"{which}: {metric}"]) for which in ("ours", "static_wi8_ai8"))
                ours, theirs = (1 - ours, 1 - theirs) if lost else (ours, theirs)
                if ours == theirs:
                    equal += 1
                else:
                    found.append(ours / theirs if theirs else float("inf"))
        spread = f"{min(found):.2f} to {max(found):.2f}, {len(found)} networks"
        return f"{statistics.median(found):.2f} ({spread}{f'; {equal} equal' if equal else ''})"

    return shown


def kept(rows: Rows) -> str:
    """Return how many rows hold."""
    return f"{sum(row['holds'] == 'yes' for row in rows)} of {len(rows)}"


def alike(*columns: str, most: float) -> Callable[[Rows], str]:
    """Return what shows how many of these cells, over all rows, are a difference of at most ``most``."""

    def shown(rows: Rows) -> str:
        cells = [row[column] for row in rows for column in columns]
        return f"{sum(each[:1].isdigit() and float(each) <= most for each in cells)} of {len(cells)}"

    return shown


def with_cell(column: str, value: str) -> Callable[[Rows], str]:
    """Return what shows in how many rows a cell is ``value``."""
    return lambda rows: f"{sum(row[column] == value for row in rows)} of {len(rows)}"


def total(*columns: str) -> Callable[[Rows], str]:
    """Return what shows the sum of each column."""
    return lambda rows: " of ".join(str(sum(int(row[column]) for row in rows)) for column in columns)


def most(column: str) -> Callable[[Rows], str]:
    """Return what shows the largest share of a column."""
    return lambda rows: f"{max(float(row[column].removesuffix(' %')) for row in rows):.1f} %"


def searched(column: str) -> Callable[[Rows], str]:
    """Return what shows a cell of the file whose parts in float were searched."""
    return lambda rows: next(row[column] for row in rows if row["way"] == "search, some parts in float")


def offered(rows: Rows) -> str:
    """Return the range of the share of files offered, at 500 held-out images, made from mild to strong."""
    column = "offered, of those an oracle offers"
    shares = sorted(
        float(row[column])
        for row in rows
        if row["held-out images"] == "500" and row["files judged by, and how made"].endswith("mild to strong")
    )
    return f"{shares[0]:.2f} to {shares[-1]:.2f}"


def share_of_float(rows: Rows) -> str:
    """Return the first time in milliseconds of the cell *found*, over that of the float file."""
    ours, whole = (float(number(pattern)(rows)) for pattern in (r": ([\d.]+) ms", r"float ([\d.]+) ms"))
    return f"{ours / whole:.2f}"


def gpu(tool: str, ours: str) -> Callable[[Rows], str]:
    """Return what shows the ratio of the seconds of two rows of the graphics card."""

    def shown(rows: Rows) -> str:
        seconds = {row["what"]: float(row["seconds"]) for row in rows}
        return f"{seconds[tool] / seconds[ours]:.1f}"

    return shown


_COMMANDS = {
    **dict.fromkeys(("speed", "memory"), "python -m benchmarks"),
    "dense_estimates": "python -m benchmarks.dense.estimates",
    "uploaded_int8": "python -m benchmarks.uploaded_int8 characters FILE",
    "devices_float": "python -m benchmarks.devices float",
    "devices_int8": "python -m benchmarks.devices int8",
    "devices_integers": "python -m benchmarks.devices integers",
    "devices_processors": "python -m benchmarks.devices processors",
    "devices_qnn": "python -m benchmarks.devices qnn",
}
"""That make those tables again of which the name of the module is not that of the table."""
_SCAN = ("50 %", "70 %", "90 %", "4 bits", "3 bits", "2 bits")
_NNCF = r"KL ([\d.]+); NNCF .*?KL ([\d.]+)"


def _speed(model: str, key: str, column: str, what: str, yardstick: str = "fasterai 0.3.2") -> Line:
    figure = over("plain s", "ours s") if column == "plain s" else cell(column)
    return Line(key, what, "speed", model, figure, yardstick)


SECTIONS: dict[str, tuple[Line, ...]] = {
    "Speed: how many times as fast": (
        _speed("resnet50", "speed-resnet50", "ours ×", "ResNet-50, each layer at 50 % zeros"),
        _speed("resnet50", "speed-resnet50-plain", "plain s", "the same", "a plain loop over layers"),
        _speed("resnet18", "speed-resnet18", "ours ×", "ResNet-18"),
        _speed("mobilenetv3_large", "speed-mobilenetv3", "ours ×", "MobileNetV3-Large"),
        _speed("vit_tiny", "speed-vit", "ours ×", "ViT-Tiny"),
        Line("speed-gpu", "ResNet-50 on an H200", "gpu", "resnet50", gpu("fasterai", "exact sweep"), "fasterai 0.3.2"),
        Line("speed-gpu-vit", "ViT-B", "gpu", "vit_base", gpu("fasterai", "exact sweep"), "fasterai 0.3.2"),
        Line("memory", "memory of a sweep, of that of one pass (ResNet-50)", "memory", "", cell("ratio"), "1"),
    ),
    "Estimates against measurements": (
        Line(
            "estimates-digits",
            "rank correlation over layers, five trained networks, the least of six levels",
            "quick_scan",
            "",
            least(*_SCAN),
            "≥ .92",
        ),
        Line("estimates-real", "EfficientNet-Lite0, photographs", "real_quick_scan", "", number(r"^([\d.]+)"), "≥ .95"),
        Line("estimates-dense", "four detectors and a dense map", "dense_estimates", "", least("least"), "≥ .93"),
        Line("estimates-yolox", "of these, a real YOLOX", "dense_estimates", "common_det", cell("least"), "≥ .93"),
        Line("estimates-picodet", "a real PicoDet", "dense_estimates", "layout_cdla", cell("least"), "≥ .93"),
        Line("estimates-map", "a text detector's map", "dense_estimates", "ch_PP-OCRv4", cell("least"), "≥ .93"),
    ),
    "Schedules beside uniform and the best rival": (
        Line(
            "rivals-uniform",
            "loss (KL), as a share of that of one level for all layers: median of all cases",
            "rivals",
            "",
            shares("measured", "uniform"),
            "1: uniform is as good",
        ),
        Line(
            "rivals-median",
            "loss (KL), as a share of the best other method: median of all cases",
            "rivals",
            "",
            middle("ours"),
            "1: a rival is as good",
        ),
        Line(
            "adapt-4-bits",
            "loss (KL) that adapted weights leave, EfficientNet-Lite0 at 4 bits",
            "adapt",
            "4 bits: KL",
            number(r"^([\d.]+)"),
            "1: not adapted",
        ),
        Line("adapt-half-zeros", "at 50 % zeros", "adapt", "50 % zeros: KL", number(r"^([\d.]+)"), "1: not adapted"),
        Line(
            "repair-half-zeros",
            "loss (KL) that repair leaves, 50 % zeros",
            "real_repair",
            "50 % zeros, optimal",
            number(r"^([\d.]+)"),
            "1: not repaired",
        ),
    ),
    "8-bit files": (
        Line(
            "int8-disagreement",
            "changed answers, EfficientNet-Lite0, a few nodes in float",
            "deploy_accuracy",
            "Disagreement, 5 parts",
            number(r"^([\d.]+)"),
            "1: onnxruntime's best setting",
        ),
        Line(
            "int8-time",
            "its time, as a share of the float file's",
            "deploy_accuracy",
            "Its time, 5 parts",
            share_of_float,
            "1: the float file",
        ),
        Line(
            "int8-nncf",
            "loss (KL) in OpenVINO, ResNet-18, ours and NNCF's",
            "deploy_runtimes",
            "resnet18: our int8 file beside NNCF's,",
            number(_NNCF),
            "NNCF",
        ),
        Line(
            "int8-detector",
            "mAP@.5:.95 kept by a real detector (YOLOX), a part in float",
            "uploaded_int8",
            "common_det",
            searched("agreement_map"),
            "1; onnxruntime's quantizer .945",
        ),
        Line("int8-detector-time", "its time", "uploaded_int8", "common_det", searched("time, float 1"), "1: float"),
        Line(
            "int8-map",
            "mean IoU kept by a text detector's map",
            "uploaded_int8",
            "ch_PP-OCRv4",
            searched("miou_agreement"),
            "1; onnxruntime's quantizer .928",
        ),
        Line("int8-map-time", "its time", "uploaded_int8", "ch_PP-OCRv4", searched("time, float 1"), "1: float"),
        Line(
            "litert-float",
            "files for LiteRT, of torch modules and ONNX files, that answer as torch within 1e-3",
            "devices_float",
            "",
            alike("torch", "ONNX", most=1e-3),
            "all; others are refused",
        ),
        Line(
            "litert-int8",
            "loss (KL) in LiteRT, EfficientNet-Lite0",
            "devices_int8",
            "Lite0",
            cell("ours: kl"),
            ".140: litert-quantizer's static recipe",
        ),
        Line(
            "devices-integers",
            "share of products and multiplications in integers, by network and runtime: equal to a count of our own",
            "devices_integers",
            "",
            with_cell("equal", "yes"),
            "what each runtime executes",
        ),
        Line(
            "devices-haswell",
            "files whose answers, computed here for processors without VNNI, are those of one",
            "devices_processors",
            "",
            with_cell("answers of both alike", "1.000"),
            "an emulated Haswell",
        ),
        Line(
            "qnn",
            "answers of int8 files as in onnxruntime unoptimised, on the simulator of Qualcomm's HTP: the least of "
            "ResNet-18 and MobileNetV3 on digits (1.000) and EfficientNet-Lite0 on 96 photographs",
            "devices_qnn",
            "",
            least("HTP as unoptimised"),
            "≥ .97; three answers differ, 93 of 96 are .911 to .989 with 95 % certainty",
        ),
        Line(
            "litert-int8-kl",
            "loss (KL) in LiteRT as a share of that of the same recipe: median of all networks",
            "devices_int8",
            "",
            beside(("kl",)),
            "≤ .3 on each",
        ),
        Line(
            "litert-int8-changed",
            "answers changed, likewise (detectors and maps: 1 − agreement)",
            "devices_int8",
            "",
            beside(("agreement", "agreement_map", "miou_agreement"), lost=True),
            "≤ .5 on each",
        ),
        Line("litert-int8-size", "size, likewise", "devices_int8", "", beside(("kB",)), "≤ 1.1 on each"),
    ),
    "Promises": (
        Line(
            "promise-broken",
            "guaranteed losses that are broken, simulated, the most of 27 settings",
            "promise",
            "",
            most("broken"),
            "≤ 5 %",
        ),
        Line(
            "promise-naive",
            "the same, if the measured loss decided",
            "promise",
            "",
            most("broken, had the measured loss decided"),
            "≤ 5 %",
        ),
        Line(
            "promise-offered",
            "files offered, of those that an oracle offers (500 held-out images)",
            "promise",
            "",
            offered,
            "1: the oracle",
        ),
        Line(
            "times-predicted",
            "predicted time of a mixed file, median error",
            "deploy_times",
            "Predicted",
            number(r"^([\d.]+ %)"),
            "≤ 10 %",
        ),
        Line(
            "times-late",
            "of 48 schedules for milliseconds, those over 15 % slower than promised",
            "deploy_times",
            "Schedules",
            number(r"^(\d+)"),
            "0",
        ),
        Line(
            "delivered",
            "delivered files whose own answers are as the headline says",
            "delivered",
            "",
            kept,
            "a count by hand",
        ),
    ),
    "What is read": (
        Line(
            "onnx-read",
            "ONNX exports of timm and torchvision networks that compute what onnxruntime does",
            "onnx_in",
            "",
            total("equal", "files"),
            "onnxruntime, the module",
        ),
        Line(
            "checkpoints-read",
            "checkpoints recognised, with the right preparation, from 50 labelled images",
            "real_checkpoints",
            "checkpoints chosen",
            cell("found"),
            "12",
        ),
        Line(
            "readings-right",
            "heads and labels of detectors, maps and classifiers: figure right (others asked, none wrong)",
            "readings",
            "analyze",
            total("right", "pairs"),
            "pycocotools, numpy",
        ),
        Line(
            "macs",
            "networks of 200 whose MACs differ from torch's count",
            "real_macs",
            "",
            number(r"; (\d+) differ"),
            "torch's FlopCounterMode",
        ),
    ),
    "From the address to a file, in seconds": (
        Line("first-page", "first page in a new browser", "pages", "page, browser just started", cell("median"), "2"),
        Line("first-bars", "first bars of the digits", "answer", "digits", cell("first chart"), "3"),
        Line("first-file", "first file of the digits", "answer", "digits", cell("first file"), "10"),
        Line("first-file-photographs", "first file, photographs", "answer", "photographs", cell("first file"), "45"),
    ),
}
MISSED: tuple[tuple[str, str], ...] = (
    ("speed-gpu", "An exact sweep on a graphics card should be three times as fast as fasterai."),
)
"""Goals of lines above that are not met; those of tables with a column *holds* are found there."""


def lines() -> dict[str, Line]:
    """Return all lines by key."""
    return {line.key: line for section in SECTIONS.values() for line in section}


def _machines() -> dict[str, str]:
    """Return a letter for each machine, in the order in which the page meets them."""
    names = dict.fromkeys(line.rows()[0]["machine"] for line in lines().values())
    return {name: chr(ord("A") + place) for place, name in enumerate(names)}


_SUBJECTS = {
    "dense_estimates": "Rank correlation of estimates with measurements (wanted: .93, maps .95); network, images: ",
    "deploy_accuracy": "The int8 file of EfficientNet-Lite0. ",
}
"""What the rows of a table are about, where their first cell leaves it open."""


def _not_met() -> Iterator[str]:
    for key, sentence in MISSED:
        yield f"- {sentence} Found: [{lines()[key].figure(lines()[key].rows())}](#{key})."
    for table in dict.fromkeys(line.table for line in lines().values()):
        for row in read_table(table):
            if row.get("holds", "yes") != "yes":
                wanted = f" Wanted: {row['wanted']}." if "wanted" in row else ""
                what = _SUBJECTS.get(table, "") + next(iter(row.values()))
                yield f"- {what}.{wanted} Found: {row.get('found') or row['least']}."


def page() -> str:
    """Return the page in Markdown."""
    machines = _machines()
    text = ["# Results", "", "Made by `python -m benchmarks.page` from the tables in `benchmarks/results`.", ""]
    for title, section in SECTIONS.items():
        text += [f"## {title}", "", "| what | found | beside | machine | command |", "|---|---|---|---|---|"]
        for line in section:
            rows = line.rows()
            text.append(
                f'| <a id="{line.key}"></a>{line.what} | {line.figure(rows)} | {line.yardstick} | '
                f"{machines[rows[0]['machine']]}, {rows[0]['date']} | `{line.command}` |"
            )
        text.append("")
    text += ["## Goals not met", "", *_not_met(), "", "## Machines", ""]
    return "\n".join([*text, *(f"- {letter}: {name}." for name, letter in machines.items())]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
