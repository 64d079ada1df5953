"""Settings of the Schedule page: budget, locks, times; the schedule for them, or one from a file.

Locks and limits of single layers are a text in the address: ``1a2b~3:0.5::~7::0.1:0.9``. The first part is a check sum
of the names of the layers, so that the text is never taken for another network. Then come places in the network, each
with the level at which the layer is locked, the least and the most.
"""

import math
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import Form, bound, choose, named, number
from senseapp.app.common.expert import expert
from senseapp.app.common.notices import errors_here, show_notes
from senseapp.app.common.run_guard import outcome_or_offer, run_line
from senseapp.app.common.state import LayerEdits
from senseapp.app.common.tables import text_table
from senseapp.app.common.uploads import expect_files, read_upload
from senseapp.core.errors import NotFound
from senseapp.core.markdown import code, md
from senseapp.core.texts import distinct, printable
from senseapp.descriptions.runtimes import RUNTIMES, installed_runtimes, runtime_words, usual_runtime
from senseapp.descriptions.targets import TARGETS
from senseapp.records.deployment import MILLISECONDS, LayerTimes
from senseapp.records.measurement import RunResult
from senseapp.records.profile import CoupledGroup
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.server.run_tasks import DropLimit, TimingTask
from senseapp.solve.curve_set import damage_metric
from senseapp.solve.methods import mixed_schedule
from senseapp.solve.problem import budget_of
from senseapp.solve.time_budget import schedule_within, time_range
from senseapp.solve.trade_off import schedule_for
from senseapp.store.layer_times import is_report, merged, report_tools
from senseapp.views.words import format as fmt

_BETWEEN = "~"


def edits_form(layers: Sequence[str], bounds: tuple[float, float]) -> Form[LayerEdits]:
    """Return the form of what was set for single ``layers``, within the ``bounds`` of levels."""
    places = {layer: place for place, layer in enumerate(layers)}
    check, level = f"{zlib.crc32(' '.join(layers).encode()) & 0xFFFF:04x}", number(*sorted(bounds))
    typed = number()  # the schedule says what is wrong with a level out of bounds; a link with one is not taken

    def write(edits: LayerEdits) -> str:
        changed = edits.fixed.keys() | edits.bounds.keys()
        if unknown := changed - places.keys():
            raise ValueError(f"no such layers: {unknown}")
        parts = [check]
        for layer in sorted(changed, key=places.__getitem__):
            values = (edits.fixed.get(layer), *edits.bounds.get(layer, (None, None)))
            parts.append(
                ":".join([str(places[layer]), *("" if each is None else typed.write(each) for each in values)])
            )
        return _BETWEEN.join(parts)

    def read(text: str) -> LayerEdits:
        begins, *parts = text.split(_BETWEEN)
        if begins != check:
            raise ValueError("of another network")
        edits = LayerEdits()
        for part in parts:
            place, *values = part.split(":")
            if not place.isdecimal() or int(place) >= len(layers):
                raise ValueError("no such layer")
            fixed, least, most = (level.read(each) if each else None for each in values)
            if fixed is not None:
                edits.fixed[layers[int(place)]] = fixed
            if (least, most) != (None, None):
                edits.bounds[layers[int(place)]] = (least, most)
        return edits

    return Form(write, read)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """Settings that the user chose for a schedule.

    Attributes:
        method: of :data:`senseapp.solve.methods.METHODS`.
        budget: what must be saved.
        limits: bounds on layers, and locked ones.
        gamma: exponent of the classic rule.
        drop: what may be lost, where that is asked for in place of a budget.
        partner: the results of another compression of the same model, chosen together with this one.
        times: what layers take, where a call may take at most ``most_seconds`` in place of the budget;
            ``awaits_times`` while they are not known.
    """

    method: str
    budget: ResourceBudget
    limits: Limits = field(default_factory=Limits)
    gamma: float = 1.5
    drop: DropLimit | None = None
    partner: RunResult | None = None
    times: LayerTimes | None = None
    most_seconds: float = 0.0
    awaits_times: bool = False

    @property
    def kind(self) -> str:
        """Unit of the target: the kind of a budget, or milliseconds."""
        return MILLISECONDS if self.times is not None else self.budget.kind

    def solve(self, result: RunResult, *, groups: Sequence[CoupledGroup]) -> Schedule:
        """Return the schedule; with ``groups``, what shrinks together when channels go, budgets are truly met.

        Raises:
            InfeasibleBudget: nothing meets the budget; names the nearest target that does.
            InvalidInput: the settings contradict each other, or nothing was measured.
        """
        if self.times is not None:
            return schedule_within(result, self.times, self.most_seconds, limits=self.limits)
        if self.partner is not None:
            limits = {result.spec.sensitivity.compression.kind: self.limits}
            return mixed_schedule(result, self.partner, budget=self.budget, limits=limits)
        return schedule_for(
            result, self.budget, method=self.method, limits=self.limits, gamma=self.gamma, groups=groups
        )


def choose_runtime(run_id: str, *, setting: str = "runtime") -> str:
    """Show a choice of the installed runtimes; return the name of the chosen or only one.

    The usual one is that of the run's target. ``setting`` names the choice in the address. Of runtimes that are not
    installed it says how they are added.
    """
    installed = [each.name for each in installed_runtimes()]
    wanted = TARGETS[backend.service().run(run_id).spec.target].runtime_name
    usual = chosen = wanted if wanted in installed else usual_runtime()
    if len(installed) > 1:
        chosen = choose(
            "Runtime",
            {name: RUNTIMES[name].label for name in installed},
            usual,
            run_id,
            setting,
            help="The program that the file is written for, and measured in. Times in the others are measured beside "
            "it where they open its file.",
        )
    absent = [other for other in RUNTIMES.values() if not other.is_installed]
    show_notes(other.how_to_add if expert() else other.is_absent for other in absent)
    return chosen


def choose_partner(run_id: str) -> RunResult | None:
    """Offer to combine sparsity and quantization where both were measured; return the other run's results, or None."""
    records = backend.service().work.partners(run_id)
    if not records:
        return None
    partners = distinct({record.run_id: f"{record.title}: {run_line(record)}" for record in records})
    chosen = st.selectbox(
        "Combine with",
        ["", *partners],
        format_func=lambda name: partners.get(name, "nothing: this compression alone"),
        **bound(run_id, "with", named({name: name for name in ("", *partners)}), "", key=f"schedule.partner.{run_id}"),
        help="Each layer gets zeros, fewer bits, or both, whichever does the least damage for the bytes it saves.",
    )
    with suppress(NotFound):  # deleted a moment ago in another window
        return backend.result_of(chosen) if chosen in partners else None
    return None


_MOST_MEGABYTES = 5  # of a schedule: one of thousands of layers has less than 1 MB


def schedule_file(run_id: str, result: RunResult) -> Schedule | None:
    """Offer to open a file of senseapp's own; return its schedule, or None while there is no usable one.

    Somebody who is not logged in cannot send files.
    """
    if not backend.visitor().is_known:
        return None
    expect_files()
    uploaded = st.file_uploader(
        "Open a schedule file",
        type=["json", "yaml", "yml", "csv"],
        key=f"schedule.file.{run_id}",
        help="JSON, YAML or CSV that senseapp wrote for this model. It stands in place of the settings above.",
        max_upload_size=_MOST_MEGABYTES,
    )
    if uploaded is None:
        return None
    opened = None
    with errors_here():
        content = read_upload(uploaded, most_megabytes=_MOST_MEGABYTES)
        schedule = backend.service().inputs.read_schedule(content, result.profile)
        metric = schedule.metric or damage_metric(result)  # a file of rows alone has no figures
        opened = replace(schedule, metric=metric, achieved=budget_of(schedule, result) | schedule.achieved)
        st.markdown("This schedule is shown in place of the settings above. Remove the file to go back.")
    return opened


_MOST_TIMES_MEGABYTES = 50  # of a profile of a device, which may list every kernel of many runs
_HERE, _FILES = "On this machine", "From files"
_CSV = "says its levels itself"


def choose_time(run_id: str, result: RunResult) -> tuple[LayerTimes | None, float]:
    """Show where times of layers come from and how many seconds a call may take; no times while none are of use."""
    sources = [_FILES] if result.compression.description.zeroes_weights else [_HERE, _FILES]
    source = choose(
        "Times of layers",
        sources,
        sources[0],
        run_id,
        "times",
        help="Measured on this machine, in full precision and in 8 bits with what changes between them cost; or from a "
        f"CSV with the columns layer,level,ms, or reports of a device by {report_tools()}.",
    )
    with errors_here():
        times = _measured(run_id, result) if source == _HERE else _from_files(run_id, result)
        if times is not None:
            return _choose(run_id, result, times)
    return None, 0.0


def _measured(run_id: str, result: RunResult) -> LayerTimes | None:
    task = TimingTask(run_id=run_id, runtime=choose_runtime(run_id, setting="times_runtime"))
    levels = (
        "in full precision and in 8 bits" if result.compression.description.sets_bits else "at every level of this run"
    )
    text = f"Every layer runs in {runtime_words(task.runtime).label} {levels}, one image a call on one core."
    return outcome_or_offer(
        task, "Time the layers", "these times", key="schedule.times", icon="timer", text=text, kind="primary"
    )


def _from_files(run_id: str, result: RunResult) -> LayerTimes | None:
    if not backend.visitor().is_known:
        st.info("Log in to send files.")
        return None
    expect_files()
    files = st.file_uploader(
        "Files of times",
        accept_multiple_files=True,
        type=["csv", "json", "txt", "log"],
        key=f"schedule.times_files.{run_id}",
        help="One CSV for all levels, or one report of the network as it is and one for each level.",
        max_upload_size=_MOST_TIMES_MEGABYTES,
    )
    scale = result.compression.scale
    levels = {_CSV: None} | {scale.text(level): level for level in (scale.untouched, *result.levels)}
    parts = []
    for index, file in enumerate(files):
        content = read_upload(file, most_megabytes=_MOST_TIMES_MEGABYTES)
        names = [*levels][1:] if is_report(content) else [_CSV]
        chosen = st.selectbox(md("Level of {}", code(file.name)), names, key=f"schedule.times_level.{index}.{run_id}")
        parts.append(backend.service().inputs.read_times(content, result, name=file.name, level=levels[chosen]))
    if not parts:
        return None
    times = merged(parts)
    show_notes(times.notes)
    untimed = times.untimed(result.profile)
    if times.unmatched or untimed:
        with st.expander("Rows of no layer, layers without a time", icon=":material/link_off:"):
            text_table(
                ("Row of no layer", "Layer without a time"),
                [tuple(map(printable, pair)) for pair in zip_longest(times.unmatched, untimed, fillvalue="")],
                alt_text="Rows of reports that are of no layer, beside layers that no report has a time of",
                key="schedule.times_missed",
            )
    return times


def _choose(run_id: str, result: RunResult, times: LayerTimes) -> tuple[LayerTimes | None, float]:
    least, untouched = (1000 * seconds for seconds in time_range(result, times))
    st.caption(f"{fmt.short(untouched)} ms as it is, {fmt.short(least)} ms at least: {times.source}.")
    if least >= untouched:
        st.warning("Compressing layers saves no time here.", icon=":material/warning:")
        return None, 0.0
    step = 10.0 ** math.floor(math.log10((untouched - least) / 20))
    first, last = math.ceil(least / step) * step, math.floor(untouched / step) * step
    key = f"schedule.ms.{run_id}"
    if key in st.session_state:
        st.session_state[key] = min(last, max(first, st.session_state[key]))
    milliseconds = st.slider(
        "Milliseconds of a call, at most",
        first,
        last,
        step=step,
        format=f"%.{max(0, -math.floor(math.log10(step)))}f ms",
        **bound(run_id, "ms", number(first, last), round((first + last) / 2 / step) * step, key=key),
        help="Predicted from the times of layers. The Deploy step measures the file.",
    )
    return times, milliseconds / 1000
