"""Schedule: one amount per layer for a budget, and the files that other tools read."""

from senseapp.app.common.figure import provenance
from senseapp.app.common.run_guard import require_result, require_run, run_header
from senseapp.app.schedule.panel import schedule_panel

record = require_run("A schedule is made from the results of a run.")
run_header(record, line=False)
result = require_result(record)
provenance(result)
schedule_panel(record.run_id, result)
