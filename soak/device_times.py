"""Damaged and hostile reports of devices: each is refused with one sentence, or read to times that it holds.

Run as ``python -m soak.device_times [--files 400] [--seed S]``: every file by hand, then so many sound ones with
changed bytes. Exits with 0 if each took at most 10 seconds of processor time and none ended in anything else.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from senseapp.core.errors import InvalidFile
from senseapp.descriptions import get
from senseapp.store.layer_times import MOST_BYTES, read_layer_times
from tests import device_reports as reports

MOST_SECONDS = 10.0
LONGEST_SENTENCE = 800
PROFILE = reports.profile()
_NUMBERS = {
    "negative": "-1",
    "not a number": "NaN",
    "endless": "1e999",
    "beyond a day": "123456789012345",
    "digits": "9" * 5000,
    "truth": "true",
    "a list": "[1]",
    "a text": '"fast"',
}
"""In place of the time of a layer."""


@dataclass(frozen=True, kw_only=True)
class BadReportFile:
    """One file: how it was made, its bytes, and whether it must be refused."""

    family: str
    content: bytes
    is_refused: bool = True


def by_hand() -> Iterator[BadReportFile]:
    """Yield each sound report with one thing wrong, and files that are hostile by size, depth or names."""
    for form, text in reports.SOUND.items():
        for what, number in _NUMBERS.items():
            if (changed := with_time(form, text, number)) != text:
                yield BadReportFile(family=f"{form}: {what}", content=changed.encode())
        middle = text[: int(len(text) * 0.55)].encode()
        ends_anywhere = form.startswith("TFLite")  # at the end of a line, its table is only shorter
        yield BadReportFile(family=f"{form}: broken off", content=middle, is_refused=not ends_anywhere)
        yield BadReportFile(family=f"{form}: no text", content=text.encode() + b"\xff\xfe\x00")
    for family, make in _HOSTILE.items():
        yield BadReportFile(family=family, content=make())


def with_time(form: str, text: str, number: str) -> str:
    """Return a report whose time of ``stem.conv`` is ``number``, as it stands there."""
    old, new = _time_in(form), number
    if form.startswith(("TFLite", "OpenVINO CSV", "Vela")):
        new = number.strip('"')
    return text.replace(old[0], old[0].replace(old[1], new), 1) if old[0] in text else text


def _time_in(form: str) -> tuple[str, str]:
    """Return a part of a report that stands once before the time of a layer, and the time in it."""
    return {
        "onnxruntime": ('"dur": 1500.0', "1500.0"),
        "trtexec": ('"medianMs": 1.5', "1.5"),
        "AI Hub": ('"execution_time": 1500', "1500"),
        "OpenVINO CSV": ("jit_avx2_FP32;6.000000", "6.000000"),
        "OpenVINO JSON": ('"real_time": 1.5', "1.5"),
        "TFLite": ("4.5\t         1.5", "1.5"),
        "TFLite, older": ("4.5\t         1.5", "1.5"),
        "TFLite CSV": ("4.5, 1.5", "1.5"),
        "TFLite CSV, older": ("4.5, 1.5", "1.5"),
        "ETDump": ('"end_time": 7000000', "7000000"),
        "Inspector": ('"p50 (ms)": {"0": 1.5', "1.5"),
        "Inspector records": ('"p50 (ms)": 1.5', "1.5"),
        "Inspector in us": ('"p50 (us)": {"0": 1500.0', "1500.0"),
        "Vela": ("NPU    750000", "750000"),
    }[form]


def _layers(rows: list[Any], **more: Any) -> bytes:
    summary = {"estimated_inference_time": 2500}
    return json.dumps({"execution_summary": summary, "execution_detail": rows, **more}).encode()


def _many(count: int) -> bytes:
    row = '{"name": "stem.conv", "execution_time": 1},'
    return ('{"execution_detail": [' + row * count + '{"name": "head", "execution_time": 1}]}').encode()


_HOSTILE: Mapping[str, Callable[[], bytes]] = {
    "too large": lambda: b"[" + b" " * MOST_BYTES,
    "deep lists": lambda: b"[" * 1_000_000,
    "deep objects": lambda: b'{"run_data":' * 200_000,
    "too many rows": lambda: _many(510_000),
    "too many lines": lambda: (
        reports.openvino_csv(passes=1).split("Total")[0].encode() + b"a;EXECUTED;b;c;1;1\n" * 510_000
    ),
    "one endless line": lambda: reports.openvino_csv(passes=1).encode() + b"x" * 5_000_000,
    "an endless row": lambda: reports.tflite().replace("CONV_2D", "C " * 1_000_000, 1).encode(),
    "rows for the pattern": lambda: (reports.tflite().split("Operator")[0] + ("1 " * 900 + "1%\n") * 200).encode(),
    "no layers": lambda: _layers([]),
    "layers are a number": lambda: _layers(7),  # type: ignore[arg-type]
    "layers are texts": lambda: _layers(["stem.conv"]),
    "no times": lambda: _layers([{"name": "stem.conv", "type": "Conv"}]),
    "a list as a name": lambda: _layers([{"name": ["stem.conv"], "execution_time": 1}]),
    "a number as a type": lambda: _layers([{"name": "stem.conv", "type": 3, "execution_time": 1}]),
    "strange names": lambda: _layers([{"name": "\u202e\x00\n=cmd" * 1000, "type": "x", "execution_time": 1}]),
    "a call of minus a second": lambda: _layers(
        [{"name": "stem.conv", "execution_time": 5}],
        execution_summary={"estimated_inference_time": -5},
    ),
    "runs are a text": lambda: b'{"run_data": "x"}',
    "events are a number": lambda: b'{"run_data": [{"events": 3}]}',
    "time runs backwards": lambda: json.dumps(
        {"run_data": [{"events": [{"profile_event": {"name": "stem.conv", "start_time": 9, "end_time": 1}}]}]}
    ).encode(),
    "only the framework": lambda: json.dumps(
        {"run_data": [{"events": [{"profile_event": {"name": "Method::init", "start_time": 1, "end_time": 9}}]}]}
    ).encode(),
    "no column of times": lambda: b'[{"event_name": "stem.conv"}]',
    "times in parsecs": lambda: b'[{"event_name": "stem.conv", "avg (pc)": 1}]',
    "nothing was executed": lambda: reports.openvino_csv().replace("EXECUTED", "NOT_RUN").encode(),
    "columns are missing": lambda: b"layerName;execStatus\nstem.conv;EXECUTED\n",
    "a quote that never ends": lambda: reports.openvino_csv().replace("/stem", '"/stem', 1).encode(),
    "nodes are a number": lambda: b'{"avg_performance": {"nodes": 3}}',
    "a part is a text": lambda: b'{"detailed_performance": "x"}',
    "another network": lambda: _layers([{"name": "/other/Relu", "type": "Relu", "execution_time": 1}]),
    "nothing": lambda: b"{}",
    "an empty list": lambda: b"[]",
    "a profile without kernels": lambda: b'[{"ph": "X", "cat": "Session", "name": "model_run", "dur": 1}]',
    "a trace without layers": lambda: b'[{"count": 100}]',
}


def mutated(number: int, seed: int) -> Iterator[BadReportFile]:
    """Yield sound reports with some bytes cut out and others put in."""
    chance = random.Random(seed)
    forms = list(reports.SOUND)
    put = [b"", b"NaN", b"-1e999", b"null", b"[", b"\xff", b'"', b",,,", b"\n\n", b";;", b"0" * 40]
    for place in range(number):
        content = reports.SOUND[form := forms[place % len(forms)]].encode()
        start = chance.randrange(len(content))
        changed = content[:start] + chance.choice(put) + content[start + chance.randrange(60) :]
        yield BadReportFile(family=f"{form}: mutated", content=changed, is_refused=False)


def outcome_of(file: BadReportFile) -> str:
    """Read one file; return ``refused`` or ``read``, and for anything else what is wrong."""
    began = time.process_time()
    try:
        found = read_layer_times(file.content, PROFILE, get("quantization").scale, name="r.json", level=32.0)
    except InvalidFile as error:
        said, wrong = str(error), ""
        if "\n" in said or not 0 < len(said) <= LONGEST_SENTENCE or not said.isprintable():
            wrong = f"said {said[:200]!r}"
        kind = "refused"
    except Exception as error:  # whatever else comes is what this looks for
        return f"{type(error).__name__}: {error}"[:200]
    else:
        sound = all(math.isfinite(each.seconds) and each.seconds >= 0 for each in found.times)
        said = " ".join(found.notes)
        wrong = (
            "" if sound and said.isprintable() and found.other_seconds >= 0 else f"read {found.times} {said[:200]!r}"
        )
        kind = "read"
        if file.is_refused:
            wrong = f"read what is damaged: {found.times}"
    seconds = time.process_time() - began
    return wrong or (kind if seconds <= MOST_SECONDS else f"took {seconds:.1f} s")


def main() -> int:
    """Read every file, and say what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    outcomes: Counter[str] = Counter()
    slowest, failures = 0.0, 0
    for file in (*by_hand(), *mutated(arguments.files, arguments.seed)):
        began = time.process_time()
        outcome = outcome_of(file)
        slowest = max(slowest, time.process_time() - began)
        if outcome not in ("read", "refused"):
            failures += 1
            sys.stdout.write(f"{file.family}: {outcome}\n")
        outcomes[outcome if outcome in ("read", "refused") else "wrong"] += 1
    sys.stdout.write(f"{sum(outcomes.values())} files: {dict(outcomes)}, the slowest took {slowest:.1f} s\n")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
