"""Hostile files through the running app: each costs its sender a sentence, and nobody else anything.

Run as ``python -m soak.hostile [--files 3000] [--after N] [--only NAME]``, the second where the first N were
brought another time, the third for families whose names begin so. Exits with 0 if each file had its sentence within 10
seconds and without markup that acts, health answered within a second throughout and a sound run file beside them within
3, the server's memory came back to 100 MB more than before, no further process or thread was left, and nobody else may
read what was written. Beside archives that lie about their sizes (``--only lying``) no process may take 300 MB more.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors.numpy

from soak.hostile_files import HostileFile, Kind, Sound, hostile_files
from soak.served import MB, Held, Peaks, Served, health_seconds, served
from soak.visitor import PageBroke, Visitor
from tests.asynchronous import run_async
from tests.pictures import png, write_zip

MOST_SECONDS = 10.0
MOST_HEALTH_SECONDS = 1.0
MOST_GROWN_BYTES = 100 * MB
MOST_PEAK_BYTES = 300 * MB
MOST_SOUND_SECONDS = 3.0
LONGEST_SENTENCE = 1000
ACTING = (
    "[in](",
    "[pic](",
    ":red-badge[",
    ":material/skull:",
    "**evil**",
    "~~evil~~",
    "http://evil",
    "www.evil",
    "@evil",
)
"""What must not be left of :data:`tests.marked_run_file.MARKUP` in what a page shows as Markdown."""
_WARMING = 12
_ENGINE_BYTES = 300 * MB
_MAY_BE_TAKEN = ("mutated", "slow picture", "large run", "marked")  # a changed byte may do no harm, nor a small step
_SETTLING_SECONDS = 2.0
_FORGETTING_SECONDS = 190.0  # a closed page's session is kept for two minutes, and the server collects every minute
_TOLD_EVERY = 100
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "SENSEAPP_RUNS_PER_MINUTE": "100000",
    "SENSEAPP_JOB_MEMORY_MB": "4000",
}
FIELDS: dict[Kind, tuple[str, str, str]] = {
    "checkpoint": ("", "Where it comes from", "Your weights (.pt, .safetensors)"),
    "images": ("", "Where they come from", "Upload images"),
    "run file": ("runs", "", ""),
    "table": ("runs", "", ""),
}
UPLOADERS: dict[Kind, str] = {
    "checkpoint": "Model file (.pt, .safetensors)",
    "images": "Images",
    "run file": "Run file",
    "table": "Sensitivity CSV",
}
BUTTONS: dict[Kind, str] = {"run file": "Import run", "table": "Import"}


@dataclass(kw_only=True)
class Report:
    """What became of the files.

    Attributes:
        quiet: whether nothing else runs on this machine, so that times are judged too, and the engine is loaded before.
        files: that were brought.
        slowest: seconds until the last one's sentence, and which one.
        health_seconds: the longest that the health route took.
        sound_seconds: the longest that a sound run file beside them took until it was imported.
        peaks: the most that any process took, by what it runs.
        wrong: sentences on what should not be.
        before, after: what the server held.
    """

    quiet: bool = True
    files: int = 0
    slowest: tuple[float, str] = (0.0, "")
    health_seconds: float = 0.0
    sound_seconds: float = 0.0
    peaks: Peaks | None = None
    wrong: Counter[str] = field(default_factory=Counter)
    before: Held | None = None
    after: Held | None = None


def sound_files(folder: Path) -> Sound:
    """Return small sound files, made without torch in this process."""
    weights = {f"layer{i}.weight": np.ones((4, 4), np.float32) for i in range(6)}
    pictures = write_zip(folder / "sound.zip", {f"{name}/{i}.png": png(i) for name in "01" for i in range(2)})
    table = b"parameter,sparsity,top1,top5,loss\n" + b"".join(
        b"conv%d.weight,%g,%g,90,1\n" % (i, s, 80 - 10 * s) for i in range(3) for s in (0.0, 0.5)
    )
    fixture = Path(__file__).parents[1] / "tests" / "fixtures" / "main_2026_11" / "pruning.senserun.zip"
    return Sound(
        checkpoint=_checkpoint(),
        safetensors=safetensors.numpy.save(weights),
        pictures=pictures.read_bytes(),
        run_file=fixture.read_bytes(),
        table=table,
    )


def _checkpoint() -> bytes:
    import torch

    file = io.BytesIO()
    torch.save({f"layer{i}.weight": torch.ones(4, 4) for i in range(6)}, file)
    return file.getvalue()


async def bring(server: Served, files: Iterator[HostileFile], report: Report) -> None:
    """Bring each file to its page, as a person would, and note what came of it."""
    watching = asyncio.create_task(_watch_health(server, report))
    while file := await asyncio.to_thread(next, files, None):  # some take a second to be made
        began = time.perf_counter()
        try:
            await asyncio.wait_for(_bring(server, file), 4 * MOST_SECONDS)
        except (PageBroke, TimeoutError, OSError) as error:
            report.wrong[f"{file.family}: {type(error).__name__} {str(error)[:200]} ({file.name})"] += 1
        seconds = time.perf_counter() - began
        report.files += 1
        report.slowest = max(report.slowest, (seconds, file.name))
        if report.quiet and seconds > MOST_SECONDS:
            report.wrong[f"{file.family}: {seconds:.1f} s ({file.name})"] += 1
        if not report.files % _TOLD_EVERY:
            sys.stderr.write(f"{report.files}: {report.wrong or 'nothing wrong'}\n")
    watching.cancel()


async def _bring(server: Served, file: HostileFile) -> None:
    page, control, choice = FIELDS[file.kind]
    async with Visitor(server.url, page) as visitor:
        if control:
            await visitor.set("button_group", control, string_array_value=[choice])
        await visitor.upload(UPLOADERS[file.kind], file.name, file.content, keep=True)
        if file.kind in BUTTONS:
            await visitor.click(BUTTONS[file.kind])
        may_be_taken = file.family.startswith(_MAY_BE_TAKEN)
        await visitor.wait_until(
            lambda page: "hourglass_empty" not in page.text() and (may_be_taken or bool(page.alerts())),
            seconds=3 * MOST_SECONDS,
        )
        said = visitor.alerts()
        if any(len(sentence) > LONGEST_SENTENCE for sentence in said):
            raise PageBroke("a sentence goes on for ever")
        if acting := [shown for shown in visitor.markdown() if any(mark in shown for mark in ACTING)]:
            raise PageBroke(f"markup acts: {acting[0][:200]}")


async def _warm_up(server: Served, sound: Sound, warming: tuple[str, ...]) -> None:
    """Bring a few files two at a time: as many processes open files at once, and are kept for the next."""
    number = len(warming) or _WARMING
    await asyncio.gather(*(bring(server, hostile_files(sound, number, only=warming or ""), Report()) for _ in range(2)))


async def _watch_health(server: Served, report: Report) -> None:
    report.peaks = report.peaks or Peaks(server)
    while True:
        report.health_seconds = max(report.health_seconds, await asyncio.to_thread(health_seconds, server.url))
        await asyncio.to_thread(report.peaks.look)
        await asyncio.sleep(0.1)


async def _import_beside(server: Served, run_file: bytes, report: Report) -> None:
    """Import a sound run file again and again, as somebody else would."""
    while True:
        async with Visitor(server.url, "runs") as visitor:
            await visitor.upload("Run file", "sound.zip", run_file, keep=True)
            began = time.perf_counter()
            await visitor.click("Import run")
            await visitor.wait_until(lambda page: page.page == "results")
            report.sound_seconds = max(report.sound_seconds, time.perf_counter() - began)
        await asyncio.sleep(1)


def hostile(
    server: Served,
    sound: Sound,
    number: int,
    after: int = 0,
    *,
    only: str | tuple[str, ...] = "",
    beside: bool = True,
    warming: tuple[str, ...] = (),
    settling_seconds: float = _SETTLING_SECONDS,
    quiet: bool = True,
) -> Report:
    """Bring ``number`` files, those from ``after`` on, after a few that warm the server up; then let it settle.

    Sound run files are imported ``beside`` them all the time. The server is warmed up by one file of each family in
    ``warming``, or by those of the first. Beside other tests, not ``quiet``, times are not judged, and the server may
    load the engine for itself on the way, as it does in an idle moment.
    """
    report = Report(quiet=quiet)
    run_async(_warm_up(server, sound, warming))
    time.sleep(_SETTLING_SECONDS)
    report.before = server.held()

    async def bring_all() -> None:
        importing = asyncio.create_task(_import_beside(server, sound.run_file, report)) if beside else None
        await bring(server, hostile_files(sound, number, after=after, seed=1, only=only), report)
        if importing is not None:
            importing.cancel()
            with suppress(asyncio.CancelledError):
                await importing  # what broke it is raised

    run_async(bring_all())
    time.sleep(settling_seconds)
    report.after = server.held()
    _judge(report, server, memory_is_watched=only == "lying")
    return report


def _judge(report: Report, server: Served, *, memory_is_watched: bool) -> None:
    """Note what should not be."""
    assert report.before
    assert report.after
    assert report.peaks
    grown = max(report.peaks.grown_bytes.values(), default=0)
    found = {
        f"the server holds {report.after} instead of {report.before}": (
            report.after.memory_bytes - report.before.memory_bytes
            > MOST_GROWN_BYTES + (0 if report.quiet else _ENGINE_BYTES)
        ),
        f"threads were left: {report.after} instead of {report.before}": (
            report.after.threads > report.before.threads + 8
        ),
        f"health took {report.health_seconds:.1f} s": report.quiet and report.health_seconds > MOST_HEALTH_SECONDS,
        f"a sound run file took {report.sound_seconds:.1f} s": report.quiet
        and report.sound_seconds > MOST_SOUND_SECONDS,
        f"a process took {grown / MB:.0f} MB more": memory_is_watched and grown > MOST_PEAK_BYTES,
        f"others may open {open_to_others(server.home)[:3]}": bool(open_to_others(server.home)),
    }
    report.wrong.update(what for what, is_wrong in found.items() if is_wrong)


def open_to_others(home: Path) -> list[str]:
    """Return what in a home anybody but its owner may open, but for the log that a soak itself writes there."""
    paths = (path for path in (home, *home.rglob("*")) if path.name != "server.log")
    return [str(path.relative_to(home)) for path in paths if path.stat().st_mode & 0o077]


def main(arguments: list[str]) -> int:
    """Bring as many as asked, and say what came of them in one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--only", default="")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, served(Path(folder) / "home", **SETTINGS) as server:
        sound = sound_files(Path(folder))
        report = hostile(server, sound, given.files, given.after, only=given.only, settling_seconds=_FORGETTING_SECONDS)
    seconds, name = report.slowest
    assert report.peaks
    peaks = ", ".join(f"{kind} {grown / MB:.0f} MB" for kind, grown in report.peaks.grown_bytes.items())
    wrong = "; ".join(f"{count} x {what}" for what, count in report.wrong.most_common(20)) or "nothing"
    sys.stdout.write(
        f"{report.files} hostile files: the slowest took {seconds:.1f} s ({name}), health {report.health_seconds:.2f} "
        f"s, a sound run file {report.sound_seconds:.1f} s; most more memory: {peaks}; held {report.before} before, "
        f"{report.after} after; wrong: {wrong}\n"
    )
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
