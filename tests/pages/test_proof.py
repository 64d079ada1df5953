"""The proof on the Schedule page: asked for, waiting, failed, and shown beside the prediction."""

from streamlit.testing.v1 import AppTest

from senseapp.metrics import MetricChange
from senseapp.records.jobs import RunState
from senseapp.records.schedule import RepairStep, ValidationResult
from senseapp.server.backend import Backend
from senseapp.server.run_tasks import Verification
from tests.pages.conftest import open_page, texts

PAGE = "pages/targets.py"


def proof_rows(app: AppTest) -> list[tuple[str, ...]]:
    """Return model, value, loss and interval of each row of the proof's table."""
    frame = next(each.value for each in app.dataframe if "95 % interval" in each.value and "Model" in each.value)
    return list(frame[["Model", "Value", "Loss", "95 % interval"]].itertuples(index=False, name=None))


def a_change(metric: str, delta: float) -> MetricChange:
    return MetricChange(
        metric=metric,
        baseline=0.95,
        value=0.95 - delta,
        delta=delta,
        ci_low=delta - 0.01,
        ci_high=delta + 0.01,
        num_samples=269,
    )


def a_validation(schedule, **parts) -> ValidationResult:
    return ValidationResult(
        schedule=schedule,
        changes=(a_change("top1", 0.04), a_change(schedule.metric, 0.3)),
        predicted=0.25,
        sizes={"file_bytes": (4000.0, 4000.0)},
        files={".safetensors": 4000, ".sparse.safetensors.gz": 1500},
        notes=("Checked on 269 images not used above.",),
        **parts,
    )


def test_the_button_puts_the_proof_in_the_queue(app, finished_run, service, shown_schedule) -> None:
    open_page(app, PAGE, run=finished_run)
    button = app.button(key=f"schedule.verify.{finished_run}")
    assert "check what they lose together" in button.help
    button.click().run()
    assert not app.exception
    assert service.work.progress(Verification(run_id=finished_run, schedule=shown_schedule)).state is RunState.QUEUED
    assert "1st in the queue" in app.get("progress")[0].proto.text
    app.button(key=f"schedule.verify_stop.{finished_run}").click().run()
    assert service.work.progress(Verification(run_id=finished_run, schedule=shown_schedule)).state is RunState.CANCELLED


def test_measured_stands_beside_predicted(app, service, finished_run, backend: Backend, shown_schedule) -> None:
    repaired = (a_change("top1", 0.01), a_change(shown_schedule.metric, 0.1))
    validation = a_validation(shown_schedule, repaired=repaired, delivered="repaired")
    verification = Verification(run_id=finished_run, schedule=shown_schedule)
    folder = backend.store.folder(finished_run)
    folder.save(verification.key, validation)
    plain = folder.compressed_model(verification.key)
    plain.write_bytes(bytes(4000))
    plain.with_suffix(".sparse.safetensors.gz").write_bytes(bytes(1500))
    service.set_expert(expert=True)
    open_page(app, PAGE, run=finished_run)
    assert not app.exception
    words = texts(app)
    for expected in (
        "Measured KL divergence",
        "**0.100 nats (0.090 to 0.110; 269 images)**",
        "**4.00 kB**",
        "Weights with zeros compressed, on disk",
        "**1.50 kB, 37.5 % of the original's 4.00 kB of weights**",
        "269 images",
        "1.0 points (95 % interval 0 to 2.0) on 269 unseen images, after repair",
    ):
        assert expected in words
    helps = {label.value: label.proto.help for label in app.caption}
    assert "0: they stay as they are; up to 0.02 hardly shows" in helps["Measured KL divergence"]
    assert "A file that runs is larger" in helps["Size of the weights, counted"]
    assert proof_rows(app)[:3] == [
        ("Before", "95.0 %", "", ""),
        ("Compressed", "91.0 %", "4.0 points", "3.0 to 5.0"),
        ("Compressed, repaired (delivered)", "94.0 %", "1.0 points", "0 to 2.0"),
    ]
    assert ("Compressed", "0.650", "0.300", "0.290 to 0.310") in proof_rows(app)
    labels = {button.label for button in app.get("download_button")}
    assert {
        "Compressed model: weights (4.00 kB)",
        "Compressed model: weights with zeros compressed (1.50 kB)",
    } <= labels
    assert any('gzip.open("digits-sparse.sparse.safetensors.gz")' in block.value for block in app.code)


def test_the_page_says_which_model_is_delivered_and_why(app, service, finished_run, backend, shown_schedule) -> None:
    reason = "Delivered without repair: it is no better with it on 64 calibration images."
    repaired = (a_change("top1", 0.06), a_change(shown_schedule.metric, 0.5))
    validation = a_validation(shown_schedule, repaired=repaired, delivered="compressed", delivered_reason=reason)
    verification = Verification(run_id=finished_run, schedule=shown_schedule)
    backend.store.folder(finished_run).save(verification.key, validation)
    service.set_expert(expert=True)
    open_page(app, PAGE, run=finished_run)
    words = texts(app)
    assert reason in words
    assert "after repair" not in words
    rows = [row[:3] for row in proof_rows(app)]
    assert ("Compressed, repaired", "89.0 %", "6.0 points") in rows  # both are shown
    assert ("Compressed (delivered)", "91.0 %", "4.0 points") in rows


def test_adapted_weights_are_a_proof_of_their_own_and_say_what_each_step_gained(
    app, service, finished_run, backend: Backend, shown_schedule
) -> None:
    metric = shown_schedule.metric
    steps = (
        RepairStep(title="As compression leaves it", change=a_change(metric, 0.3)),
        RepairStep(title="Weights updated", change=a_change(metric, 0.1), kept=True),
    )
    validation = a_validation(
        shown_schedule, repaired=(a_change(metric, 0.1),), delivered="adapted", adapting="minutes", steps=steps
    )
    verification = Verification(run_id=finished_run, schedule=shown_schedule, adapting="minutes")
    backend.store.folder(finished_run).save(verification.key, validation)
    service.set_expert(expert=True)
    open_page(app, PAGE, run=finished_run)
    assert app.button(key=f"schedule.verify.{finished_run}").label == "Check the whole schedule"
    app.segmented_control(key=f"adapt.{finished_run}").set_value("minutes").run()
    assert not app.exception
    assert "Weights updated: harm 0.100 (0.090 to 0.110), −0.200: kept" in texts(app)


def test_another_schedule_has_no_proof_yet(app, finished_run, backend: Backend, shown_schedule) -> None:
    verification = Verification(run_id=finished_run, schedule=shown_schedule)
    backend.store.folder(finished_run).save(verification.key, a_validation(shown_schedule))
    open_page(app, PAGE, run=finished_run)
    assert "check_circle: **Measured**" in texts(app)
    app.slider(key=f"schedule.target.{finished_run}").set_value(30).run()
    assert app.button(key=f"schedule.verify.{finished_run}").label == "Check the whole schedule"
    assert "check_circle: **Measured**" not in texts(app)


def test_a_proof_that_failed_says_why(app, finished_run, service, backend, shown_schedule, monkeypatch) -> None:
    from senseapp.core.errors import InvalidSchedule

    def refuse(*_: object, **__: object) -> None:
        raise InvalidSchedule("The network has changed.")

    monkeypatch.setattr(Verification, "carry_out", refuse)
    service.work.start(Verification(run_id=finished_run, schedule=shown_schedule))
    backend.runner.run_next()
    open_page(app, PAGE, run=finished_run)
    assert "The network has changed." in app.error[0].value
    assert app.button(key=f"schedule.verify.{finished_run}").label == "Try again"


def test_a_proof_that_a_killed_server_had_begun_says_so(app, finished_run, backend: Backend, shown_schedule) -> None:
    backend.store.folder(finished_run).begin(Verification(run_id=finished_run, schedule=shown_schedule).key)
    open_page(app, PAGE, run=finished_run)
    assert app.error[0].value.startswith("senseapp stopped before this was finished.")
    assert app.button(key=f"schedule.verify.{finished_run}").label == "Try again"
