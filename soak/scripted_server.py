"""The app with an engine that makes up its measurements: nothing loads torch.

``python -m soak.scripted_server [streamlit options]``; everything but the engine is real.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator

from senseapp.app.common import backend as ui_backend
from senseapp.app.server.serve import serve
from senseapp.core.files import home
from senseapp.records.measurement import LayerMeasurement
from senseapp.records.spec import RunSpec
from senseapp.server.backend import Backend
from senseapp.server.settings import ServerSettings
from tests.fake_session import fake_calibration
from tests.pages.conftest import ScriptedService
from tests.pages.records import ScriptedSession

SECONDS_PER_MEASUREMENT = float(os.environ.get("SCRIPTED_SECONDS_PER_MEASUREMENT", "0.1"))


class SlowSession(ScriptedSession):
    """Takes its time, so that there is something to watch."""

    def measure(self, done: Iterable[LayerMeasurement] = ()) -> Iterator[LayerMeasurement]:
        for measurement in super().measure(done):
            time.sleep(SECONDS_PER_MEASUREMENT)
            yield measurement


def open_slowly(spec: RunSpec, **_: object) -> SlowSession:
    return SlowSession(spec, None)


if __name__ == "__main__":
    shared = Backend(
        home(),
        open_session=open_slowly,
        data_roots=(),
        settings=ServerSettings.configured(),
        calibrate=fake_calibration,
    )
    ui_backend.service = lambda: ScriptedService(shared, ui_backend.visitor().owner)
    ui_backend.warm_up_ahead = lambda: None
    ui_backend.survey_of = lambda *question: None  # it would load torch to look into an archive
    serve(sys.argv[1:])
