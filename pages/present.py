"""Present: a finished run for a room."""

from senseapp.app.common.run_guard import require_run
from senseapp.app.results.present import present

record = require_run("Present shows the results of a run.")
present(record)
