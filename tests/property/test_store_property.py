import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from senseapp.core.errors import NotFound
from senseapp.metrics import MetricChange
from senseapp.records.measurement import LayerMeasurement, Status
from senseapp.store.run_folder import Journal
from senseapp.store.run_store import RunStore
from tests.fake_session import SPEC

numbers = st.floats(allow_nan=False)
changes = st.builds(
    MetricChange,
    metric=st.sampled_from(["top1", "kl", "sqnr"]),
    baseline=numbers,
    value=numbers,
    delta=numbers,
    ci_low=numbers,
    ci_high=numbers,
    num_samples=st.integers(0, 10**9),
    moments=st.lists(numbers, max_size=4).map(tuple),
)
measurements = st.builds(
    LayerMeasurement,
    layer=st.text(min_size=1, max_size=20),
    level=st.floats(0.01, 8),
    status=st.sampled_from(Status),
    changes=st.lists(changes, max_size=3).map(tuple),
    members=st.lists(st.text(max_size=8), max_size=3).map(tuple),
    reason=st.text(max_size=30),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=st.lists(measurements, min_size=1, max_size=4, unique_by=lambda item: item.key), cut=st.floats(0, 1))
def test_a_journal_cut_anywhere_holds_a_prefix_and_goes_on(tmp_path, items, cut):
    path = tmp_path / "measurements.jsonl"
    path.unlink(missing_ok=True)
    journal = Journal(path)
    for item in items:
        journal.append(item)
    assert journal.read() == tuple(items)
    content = path.read_bytes()
    kept = content[: math.floor(cut * len(content))]
    path.write_bytes(kept)
    resumed = Journal(path)
    whole = kept.count(b"\n")
    assert resumed.read() == tuple(items[:whole])
    for item in items[whole:]:
        resumed.append(item)
    assert path.read_bytes() == content


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = RunStore(tmp_path_factory.mktemp("home"))
    made.create(SPEC, owner="ann")
    return made


@given(run_id=st.text(max_size=40) | st.from_regex(r"[0-9a-f]{32}", fullmatch=True))
def test_no_guessed_id_finds_a_run(store, run_id):
    with pytest.raises(NotFound):
        store.get(run_id, "ann")
