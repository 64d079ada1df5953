"""Whether int8 pays on this machine is said before a file, on request."""

from senseapp.records.deployment import Median, OperatorShare
from senseapp.records.jobs import RunState
from senseapp.records.layer_findings import Int8Timing
from senseapp.server.backend import Backend
from senseapp.server.process.requester import decode_task, encode_task
from senseapp.server.run_tasks import Int8Trial
from senseapp.server.service import Service
from tests.deployments import a_candidate, a_deployment, usual_figures
from tests.pages.conftest import keep, open_page, texts

SLOW = Int8Timing(ratio=Median(value=1.4, low=1.1, high=1.7), machine="a made-up machine", products="")


def test_the_schedule_page_times_a_first_file_on_request(app, task, service: Service, backend: Backend) -> None:
    run_id = task.run_id
    open_page(app, "pages/targets.py", run=run_id)
    trial = Int8Trial(run_id=run_id)
    assert decode_task(encode_task(trial)) == trial  # as the job's process is told
    app.button(key=f"schedule.int8.{run_id}").click().run()
    assert not app.exception
    assert service.work.progress(trial).state is RunState.QUEUED
    backend.store.folder(run_id).save(trial.key, SLOW)
    app.run()
    assert not app.exception
    assert "8-bit numbers do not pay here" in texts(app)
    assert "has no instructions for products of 8 bits" in texts(app)
    app.button_group(key=f"form.{run_id}").set_value("float").run()
    assert "8-bit numbers do not pay here" not in texts(app)


def test_where_the_time_goes_stands_with_the_file(app, task, backend: Backend) -> None:
    operators = (
        OperatorShare(kind="Conv", original_calls=3, original_seconds=3e-3, calls=3, seconds=1e-3),
        OperatorShare(
            kind="QuantizeLinear", original_calls=0, original_seconds=0.0, calls=2, seconds=1e-3, is_border=True
        ),
    )
    record = a_deployment(figures=usual_figures(), operators=operators)
    keep(backend, task.run_id, task.key, a_candidate("mixed", metric="top1", schedule=task.schedule, deployment=record))
    open_page(app, "pages/targets.py", run=task.run_id)
    app.toggle(key="account.expert").set_value(True).run()
    assert not app.exception
    assert "50 % of the file's operators' time converts between float and int8" in texts(app)
    (rows,) = [each.value for each in app.dataframe if "Operator" in each.value.columns]
    assert list(rows["Operator"]) == ["Conv", "QuantizeLinear (converts)"]
    assert list(rows["Compressed, ms"]) == ["1.000", "1.000"]
    assert list(rows["Original, nodes"]) == ["3", "0"]
