"""How tests are spread over the workers of pytest-xdist: longest work first, and what shares a server on one worker."""

from xdist.scheduler import LoadFileScheduling

from tests import cases

TOGETHER = {
    "journeys": ("tests/browser/test_journey.py", "tests/browser/test_watching.py"),
    "uploads in the browser": tuple(f"tests/browser/test_{name}.py" for name in ("uploads", "annotated", "understood")),
    "explorer and two people": ("tests/browser/test_explorer.py", "tests/browser/test_two_people.py"),
    "browser": ("tests/browser/",),
    "cluster": ("tests/cluster/",),
    "pages": ("tests/pages/",),
}
"""Tests that share a server, a cluster or solved schedules, made once for each of these; what fits two is of the first.

Those in the browser are four, of about one length: fewer would outlast all others of ``make test-all``. The few of
``make test`` share one server, as it takes as long to start one as to visit a few pages.
"""

LONGEST = (
    *TOGETHER["uploads in the browser"],
    *TOGETHER["journeys"],
    "tests/browser",
    "tests/cluster",
    "tests/pages",
    "tests/reference/test_delivered_files.py",
    "tests/unit/server/test_requests.py",
    "tests/unit/prove/test_proofs.py",
    "tests/reference/test_architectures.py",
    "tests/unit/measure/test_reading_search.py",
    "tests/reference/test_formats_readback.py",
    "tests/reference/test_fasterai.py",
    "tests/reference/test_server_process.py",
    "tests/unit/prove",
    "tests/reference",
)
"""Files and folders by the time that one work unit of them takes, longest first; the rest follows in its own order."""


def unit_of(nodeid: str) -> str:
    """Return what is given to one worker as a whole: the tests that share something, or the file of a test.

    >>> unit_of("tests/browser/test_look.py::test_x[a/b]"), unit_of("tests/unit/test_demo.py::test_y")
    ('browser', 'tests/unit/test_demo.py')
    """
    if not cases.NIGHTLY and nodeid.startswith(TOGETHER["browser"]):
        return "browser"
    return next((name for name, starts in TOGETHER.items() if nodeid.startswith(starts)), nodeid.split("::", 1)[0])


def rank(nodeid: str) -> int:
    """Return the place of a test's unit in :data:`LONGEST`; units that are not there come last, in their own order."""
    return next((place for place, start in enumerate(LONGEST) if nodeid.startswith(start)), len(LONGEST))


class LongestFirst(LoadFileScheduling):
    """Gives each worker the next unit, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
