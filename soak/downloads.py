"""Downloads asked for by others: another session, none, a closed page, changed addresses; and files of equal names.

Run as ``python -m soak.downloads [--rounds 20]``; exits with 0 if every forged request is refused with 403 or 404
and every own one brings the right bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from soak.crowd import start_run, time_run
from soak.served import Served, served
from soak.visitor import Visitor, browser_cookies, cookie_header

SETTINGS = {"OMP_NUM_THREADS": "1", "SENSEAPP_RUNS_PER_MINUTE": "10000"}
REFUSED = (403, 404)
_CLOSED_SECONDS = 20.0


@dataclass(kw_only=True)
class Report:
    """What came of the requests."""

    refused: int = 0
    forged: int = 0
    right: int = 0
    own: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether everything forged was refused, and everything own was right."""
        return self.refused == self.forged and self.right == self.own


def get(url: str, cookies: Mapping[str, str]) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"Cookie": cookie_header(cookies)} if cookies else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


async def downloads(server: Served, rounds: int) -> Report:
    """Press the same two buttons in each round, fetch the files as who asked, and as everybody else."""
    report = Report()
    async with Visitor(server.url) as ann, Visitor(server.url, "guide") as bob:
        runs = [await _finished_run(ann, seed) for seed in range(2)]
        for _ in range(rounds):
            async with Visitor(server.url, "runs", cookies=ann.cookies) as page:
                await _one_round(server, page, bob, runs, report)
                left = await page.address_of("CSV data")
            deadline = time.monotonic() + _CLOSED_SECONDS
            while (status := get(left, ann.cookies)[0]) not in REFUSED and time.monotonic() < deadline:
                await asyncio.sleep(0.1)
            _count(report, "after the page was closed", status)
    return report


async def _finished_run(visitor: Visitor, seed: int) -> str:
    run_id = await start_run(visitor, images=8, seed=seed)
    await time_run(visitor)
    return run_id


async def _one_round(server: Served, page: Visitor, bob: Visitor, runs: list[str], report: Report) -> None:
    addresses = []
    for run_id in runs:
        await page.go("results", f"run={run_id}")
        addresses.append(await page.address_of("CSV data"))
    for address, run_id in zip(addresses, runs, strict=True):
        await page.go("results", f"run={run_id}")
        again = await page.address_of("CSV data")
        first, second = (get(each, page.cookies) for each in (address, again))
        report.own += 1
        report.right += first == second and first[0] == 200 and b"layer" in first[1].splitlines()[0]
    address = addresses[0]
    token = address.rsplit("/", 1)[1]
    strangers = await asyncio.to_thread(browser_cookies, server.url)
    for what, url, cookies in (
        ("another session", address, bob.cookies),
        ("no session", address, {}),
        ("another browser", address, strangers),
        ("a changed address", f"{address[:-6]}{secrets.token_urlsafe(6)[:6]}", page.cookies),
        ("Streamlit's own route", f"{server.url}/media/{token}.csv", page.cookies),
    ):
        _count(report, what, (await asyncio.to_thread(get, url, cookies))[0])


def _count(report: Report, what: str, status: int) -> None:
    report.forged += 1
    report.refused += status in REFUSED
    if status not in REFUSED:
        report.wrong.append(f"{what}: {status}")


def main(arguments: list[str]) -> int:
    """Ask as often as told, and say what came of it in one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), module="soak.scripted_server", **SETTINGS) as server,
    ):
        report = asyncio.run(downloads(server, given.rounds))
    sys.stdout.write(
        f"{report.refused} of {report.forged} forged requests were refused, {report.right} of {report.own} downloads "
        f"of equal names brought the right bytes; wrong: {'; '.join(dict.fromkeys(report.wrong)) or 'nothing'}\n"
    )
    return int(not report.sound)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
