"""The moments at which the soak of kills strikes: what is under way, what the page must say, and how it goes on."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from senseapp.server.settings import LOCAL_OWNER
from senseapp.store.run_folder import RunFolder
from senseapp.store.run_store import RunStore
from soak.crowd import start_run
from soak.killed_server import job_processes, kill_jobs, kill_server, wait_for_file
from soak.kills_in_measuring import Kind, Trial, numbers
from soak.served import Served
from soak.uploads import send
from soak.visitor import Visitor
from tests.pictures import class_files, write_zip

AGAIN = ("Try again", "Resume")
STOPPED = "senseapp stopped before this"
LOST = "The process that did this work was killed"
_DONE_SECONDS = 240.0
IMAGES, LEVELS = 256, "5, 15, 25, 35, 45, 55, 65, 85, 95"


class CameTooLate(Exception):
    """The work was done before its process could be killed."""


@dataclass(kw_only=True)
class Scene:
    """One kill: whom it strikes, and what is known of the home beforehand.

    Attributes:
        victim: ``server`` or ``job process``.
        number: of this kill among those of its moment and victim; decides the instant.
        home: of the server; it holds the finished run ``run_id``.
        patience: seconds that the same work took where nobody was killed, by its kind.
        jobs: processes that worked for the server when it was killed.
    """

    victim: str
    number: int
    home: Path
    run_id: str
    chance: random.Random
    patience: dict[str, float]
    jobs: list[Any] = field(default_factory=list)

    def folder(self, run_id: str = "") -> RunFolder:
        return RunFolder(self.home / "runs" / (run_id or self.run_id))

    def kill(self, server: Served) -> None:
        if self.victim == "server":
            self.jobs = kill_server(server)
        else:
            kill_jobs(server)


class Moment(ABC):
    """What is under way when a process is killed."""

    slow_disk = False

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    @abstractmethod
    async def strike(self, server: Served, page: Visitor) -> None:
        """Begin the work and kill the victim in the middle of it."""

    @abstractmethod
    async def go_on(self, server: Served, page: Visitor) -> None:
        """See what the page says, press its button, and wait until the work is done."""

    @abstractmethod
    def check(self, reference: Path) -> None:
        """Compare what came of it with the home of a server that was left alone."""

    async def kill_unless_done(self, server: Served, *, after: float, done: Callable[[], bool]) -> None:
        """Kill the victim after so many seconds."""
        await asyncio.sleep(after)
        if done():
            raise CameTooLate
        await asyncio.to_thread(self.scene.kill, server)

    async def press_again(self, page: Visitor, *, says: str) -> None:
        """Wait for the sentence with its button, and press it."""
        await page.wait_until(_offers_again)
        said = page.alerts()
        assert any(says in sentence for sentence in said), f"the page says {said}, not {says!r}"
        await page.click(next(label for label in AGAIN if label in page.labels()))

    @property
    def sentence(self) -> str:
        return STOPPED if self.scene.victim == "server" else LOST


class InRun(Moment):
    """A run that measures: while it loads, and after some of its measurements."""

    run_id = ""
    kept = 0
    unbegun = False  # perhaps; then it was waiting for the killed process, which answered a question: it takes another
    latest = 200  # measurement after which it is killed

    async def strike(self, server: Served, page: Visitor) -> None:
        self.run_id = await start_run(page, images=IMAGES, seed=7, more_levels=LEVELS)
        journal = self.scene.folder(self.run_id).path / "measurements.jsonl"
        wanted = 0 if self.scene.number == 0 else self.scene.chance.randint(1, self.latest)
        if wanted == 0:
            await asyncio.sleep(self.scene.chance.uniform(0, 1))
        deadline = time.monotonic() + _DONE_SECONDS
        while _lines(journal) < wanted:
            assert time.monotonic() < deadline, f"{_lines(journal)} of {wanted} measurements came"
            await asyncio.sleep(0.001)
        told = re.findall(r"(\d+) of \d+ done", page.text())
        self.kept = max([_lines(journal), *map(int, told)])
        self.unbegun = wanted == self.kept == 0 and self.scene.victim != "server"
        await self.kill_unless_done(server, after=0, done=lambda: self.scene.folder(self.run_id).finished)

    async def go_on(self, server: Served, page: Visitor) -> None:
        now = self.scene.folder(self.run_id).measurements.count()
        assert now >= self.kept, f"{self.kept - now} of {self.kept} measurements were lost"
        await page.go("results", f"run={self.run_id}")
        await page.wait_until(lambda shown: _offers_again(shown) or shown.has_finished, seconds=_DONE_SECONDS)
        if page.has_finished:
            assert self.unbegun, "a run whose process was killed said nothing"
            return
        await self.press_again(page, says=self.sentence)
        await page.wait_until(lambda shown: shown.has_finished, seconds=_DONE_SECONDS)

    def check(self, reference: Path) -> None:
        found = self.scene.folder(self.run_id).load_result()
        trial = Trial(kind=Kind(spec=found.spec, open_session=None, opening=0), folder=reference.parent / "alone")
        assert numbers(found) == trial.left_alone(found), (
            "a run that was killed found other numbers than one left alone"
        )


class OfFinishedRun(Moment):
    """Work on a finished run, which leaves a record."""

    pattern = ""
    kind = ""

    @abstractmethod
    async def open(self, page: Visitor) -> None:
        """Open the page up to the button."""

    button = ""

    async def begin(self, page: Visitor, server: Served | None = None) -> None:
        """Open the page and press the button; the processes of ``server`` stand still first."""
        await self.open(page)
        await page.wait_until(lambda shown: self.button in shown.labels())
        if server is not None:
            _hold(server)
        await page.click(self.button)
        await page.wait_until(lambda shown: self.button not in shown.labels())

    async def strike(self, server: Served, page: Visitor) -> None:
        await self.begin(page)
        after = self.scene.patience[self.kind] * self.scene.chance.uniform(0.02, 0.7)
        await self.kill_unless_done(server, after=after, done=lambda: bool(self.records()))

    async def go_on(self, server: Served, page: Visitor) -> None:
        await self.open(page)
        await page.wait_until(lambda shown: _offers_again(shown) or bool(self.records()))
        if self.records():
            assert not _offers_again(page), f"what was done is called lost: {page.alerts()}"
            raise CameTooLate
        await self.press_again(page, says=self.sentence)
        await page.wait_until(lambda shown: bool(self.records()), seconds=_DONE_SECONDS)

    def records(self) -> list[Path]:
        return list(self.scene.folder().path.glob(self.pattern))

    def check(self, reference: Path) -> None:
        for record in self.records():
            alone = reference / "runs" / self.scene.run_id / record.name
            assert record.name == alone.name
            assert _without_times(record) == _without_times(alone), f"{self.kind}: other figures than one left alone"


class InProof(OfFinishedRun):
    """The proof of the schedule that the page shows."""

    kind, pattern, button = "proof", "validation-*.json", "Check the whole schedule"

    async def open(self, page: Visitor) -> None:
        await page.go("schedule", f"run={self.scene.run_id}")


class InSearch(OfFinishedRun):
    """The search for the strongest schedule within a loss."""

    kind, pattern, button = "search", "strongest-*.json", "Search"

    async def open(self, page: Visitor) -> None:
        await page.go("schedule", f"run={self.scene.run_id}")
        await page.wait_until(lambda shown: shown.has("button_group", "How to choose"))
        await page.set("button_group", "How to choose", string_array_value=["Largest loss"])


class InHistogram(OfFinishedRun):
    """A histogram of the layer that the page shows."""

    kind, pattern, button = "histogram", "histogram-*.json", "Show histogram"

    async def open(self, page: Visitor) -> None:
        await page.go("results", f"run={self.scene.run_id}&show-layers=yes&more=histograms")
        await page.open_tab("More")

    async def strike(self, server: Served, page: Visitor) -> None:
        await self.begin(page, server)  # it takes hundredths of a second
        if self.scene.victim == "server":
            for process in job_processes(server):
                process.resume()
            await asyncio.sleep(self.scene.chance.uniform(0, 0.03))
        else:
            await asyncio.sleep(self.scene.chance.uniform(0, 1))
        await asyncio.to_thread(self.scene.kill, server)


class InUpload(Moment):
    """An archive of pictures on its way: part of it, all of it, looked at, or read by a run that waits."""

    run_id = ""

    async def strike(self, server: Served, page: Visitor) -> None:
        await _ask_for_pictures(page)
        if self.scene.victim == "server":
            await self._strike_server(server, page)
        else:
            _hold(server)
            await page.upload("Images", "pictures.zip", _pictures(self.scene), keep=True)
            await page.wait_until(lambda shown: "hourglass_empty" in shown.text())
            await asyncio.sleep(self.scene.chance.uniform(0, 1))
            await asyncio.to_thread(kill_jobs, server)

    async def _strike_server(self, server: Served, page: Visitor) -> None:
        if self.scene.number < 2:
            kind, content = ("idle", b"x" * 1000) if self.scene.number == 0 else ("whole", bytes(_LARGE_BYTES))
            sending = asyncio.create_task(send(server, page, kind, content, self.scene.chance))
            await _kill_at(self.scene, server, "^upload$")
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            return
        await page.upload("Images", "pictures.zip", _pictures(self.scene), keep=True)
        if self.scene.number == 3:
            await page.wait_until(_has_understood)
            await page.click("Run")
            await page.wait_until(lambda shown: shown.page == "results" and "run" in shown.query)
            self.run_id = page.query["run"]
        await asyncio.to_thread(self.scene.kill, server)

    async def go_on(self, server: Served, page: Visitor) -> None:
        if self.run_id:
            await page.go("results", f"run={self.run_id}")
            await self.press_again(page, says=STOPPED)
            await page.wait_until(lambda shown: shown.has_finished, seconds=_DONE_SECONDS)
        elif self.scene.victim == "server":
            await _ask_for_pictures(page)
            await page.upload("Images", "pictures.zip", _pictures(self.scene), keep=True)
            await page.wait_until(_has_understood)
            await page.click("Choose another file")
        else:
            await self.press_again(page, says="ended the process that read it")
            await page.wait_until(_has_understood)
            await page.click("Choose another file")

    def check(self, reference: Path) -> None:
        if self.run_id:
            assert self.scene.folder(self.run_id).load_result().num_samples == _NUM_PICTURES


class InWrite(Moment):
    """A file that is half written, on a slow disk: each of those that a run, a proof and an import leave."""

    slow_disk = True
    inner: Moment

    async def strike(self, server: Served, page: Visitor) -> None:
        if self.scene.victim == "server":
            self.inner = _WritingImport(self.scene)
            await self.inner.strike(server, page)
            return
        name, kind = (
            ("head.json", _WritingRun),
            ("result.json", _WritingRun),
            ("compressed-.*safetensors", _WritingProof),
            ("validation-.*json", _WritingProof),
        )[self.scene.number]
        self.inner = kind(self.scene)
        self.inner.name = rf"^\.{name}\.\d+\.[0-9a-f]{{32}}$"
        await self.inner.strike(server, page)

    async def go_on(self, server: Served, page: Visitor) -> None:
        await self.inner.go_on(server, page)

    def check(self, reference: Path) -> None:
        self.inner.check(reference)


class _WritingRun(InRun):
    name = ""

    async def strike(self, server: Served, page: Visitor) -> None:
        self.run_id = await start_run(page, images=IMAGES, seed=7, more_levels=LEVELS)
        await _kill_at(self.scene, server, self.name)


class _WritingProof(InProof):
    name = ""

    async def strike(self, server: Served, page: Visitor) -> None:
        await self.begin(page)
        await _kill_at(self.scene, server, self.name)


class _WritingImport(Moment):
    """Files that the server itself writes: settings of a run that starts, an imported table, a run file, a download."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._what = ("start", "table", "run file", "download")[scene.number]
        self._runs = len(RunStore(scene.home).list(LOCAL_OWNER))

    async def strike(self, server: Served, page: Visitor) -> None:
        names = {
            "start": r"^\.spec\.json",
            "table": r"^\.result\.json",
            "run file": r"^\.spec\.json",
            "download": "^file$",
        }
        doing = asyncio.create_task(self._begin(page))
        await _kill_at(self.scene, server, names[self._what])
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)

    async def _begin(self, page: Visitor) -> None:
        if self._what == "start":
            await start_run(page, images=IMAGES, seed=7)
        elif self._what == "download":
            await _ask_for_download(page)
        else:
            await self._import(page)

    async def _import(self, page: Visitor) -> None:
        label, name, content, button = {
            "table": ("Sensitivity CSV", "table.csv", TABLE, "Import"),
            "run file": ("Run file", "run.senserun.zip", RUN_FILE.read_bytes(), "Import run"),
        }[self._what]
        await page.go("runs")
        await page.upload(label, name, content, keep=True)
        await page.click(button)
        await page.wait_until(lambda shown: shown.page == "results")

    async def go_on(self, server: Served, page: Visitor) -> None:
        records = RunStore(self.scene.home).list(LOCAL_OWNER)
        if self._what == "start":  # entered before its settings are written: it is there, and says where it stands
            begun = next(record for record in records if record.run_id != self.scene.run_id)
            await page.go("results", f"run={begun.run_id}")
            await self.press_again(page, says=STOPPED)
            await page.wait_until(lambda shown: shown.has_finished, seconds=_DONE_SECONDS)
        elif self._what == "download":
            await _ask_for_download(page)
        else:
            assert len(records) == self._runs, "half an import is taken for a run"
            await self._import(page)

    def check(self, reference: Path) -> None:
        assert len(RunStore(self.scene.home).list(LOCAL_OWNER)) == self._runs + (self._what != "download")


MOMENTS: dict[str, type[Moment]] = {
    "upload": InUpload,
    "run": InRun,
    "proof": InProof,
    "histogram": InHistogram,
    "search": InSearch,
    "write": InWrite,
}
TABLE = b"parameter,sparsity,top1,top5,loss\n" + b"".join(
    b"conv%d.weight,%g,%g,90,1\n" % (layer, sparsity, 80 - 10 * sparsity)
    for layer in range(3)
    for sparsity in (0.0, 0.5)
)
RUN_FILE = Path(__file__).parents[1] / "tests" / "fixtures" / "main_2026_11" / "pruning.senserun.zip"
_NUM_PICTURES = 30
_LARGE_BYTES = 100_000_000


async def _kill_at(scene: Scene, server: Served, name: str) -> None:
    """Kill the victim once a file of this name is seen."""
    await asyncio.to_thread(wait_for_file, scene.home, name)
    await asyncio.sleep(scene.chance.uniform(0, 0.1))
    await asyncio.to_thread(scene.kill, server)


def _hold(server: Served) -> None:
    """Let the processes that work for the app stand still, so that they are at work when they are killed."""
    for process in job_processes(server):
        process.suspend()


async def _ask_for_pictures(page: Visitor) -> None:
    await page.go("")
    await page.wait_until(lambda shown: " layers × " in shown.text(), seconds=_DONE_SECONDS)
    await page.set("button_group", "Where they come from", string_array_value=["Upload images"])


async def _ask_for_download(page: Visitor) -> None:
    await page.go("runs")
    await page.tick_first_row()
    await page.address_of("Download run (")


def _offers_again(page: Visitor) -> bool:
    return any(label in AGAIN for label in page.labels()) and bool(page.alerts())


def _has_understood(page: Visitor) -> bool:
    return f"{_NUM_PICTURES} images" in page.text()


def _pictures(scene: Scene) -> bytes:
    files = class_files(tuple("0123456789"), each=_NUM_PICTURES // 10)
    return write_zip(scene.home.parent / "pictures.zip", files).read_bytes()


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _without_times(record: Path) -> Any:
    """Return what a record says, without how long anything took and how large files with times in them are."""
    return _timeless(json.loads(record.read_text()))


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(inner) for name, inner in value.items() if "seconds" not in name}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value
