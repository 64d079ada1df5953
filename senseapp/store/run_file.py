"""The file that carries a finished run to another server: a zip of JSON records and safetensors, never pickle.

``run.json`` says what it is, ``result.json`` is the result; ``validation-KEY.json``, ``histogram-KEY.json``,
``recommendation-KEY.json`` and ``compressed-KEY.safetensors`` are what was made of it. Nothing else is written, and
nothing else is read.

Anybody may have made the file that is read: names, sizes and content are checked before any of it is kept, and whether
its records fit together, so that no page meets a layer or metric that does not exist.
"""

import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO
from zipfile import ZipInfo

from safetensors import SafetensorError, safe_open

from senseapp import __version__
from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidFile
from senseapp.core.files import storage_errors
from senseapp.core.foreign_zip import ZIP_DAMAGE, ForeignZip, TooManyMembers
from senseapp.core.texts import printable_text, with_printable_texts
from senseapp.descriptions import DENSE_BITS, BudgetKind
from senseapp.metrics import METRICS, MetricChange
from senseapp.records.deployment import CHECKPOINT
from senseapp.records.layer_findings import QuantizationHistogram
from senseapp.records.measurement import RunResult
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import ValidationResult
from senseapp.records.spec import without_folders
from senseapp.store.run_folder import PREFIXES, RunFolder

HEAD_NAME = "run.json"
RESULT_NAME = "result.json"
RUN_FILE_SUFFIX = ".senserun.zip"
WEIGHTS = re.compile(r"compressed-[0-9a-f]{16}\.safetensors")

_EXTRAS = {
    kind: re.compile(rf"{PREFIXES[kind]}-[0-9a-f]{{16}}\.json")
    for kind in (ValidationResult, QuantizationHistogram, Recommendation)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFileHead:
    """Head of a run file: the title of the run, and the version of senseapp that wrote it."""

    title: str
    written_by: str = ""


_RECORDS: dict[type[Any], re.Pattern[str]] = {
    RunFileHead: re.compile(re.escape(HEAD_NAME)),
    RunResult: re.compile(re.escape(RESULT_NAME)),
    **_EXTRAS,
}


def record_in(name: str) -> type[Any] | None:
    """Return the type of the record that a member of this name holds; None for other names."""
    return next((record for record, pattern in _RECORDS.items() if pattern.fullmatch(name)), None)


_MOST_LAYERS = 2_000  # networks of the libraries have up to 1,000
_LARGEST_FIGURE = 1e9  # of a metric, in its unit: larger ones are damage, and break axes
_NO_COUNT = "a count is below 0"  # the codec reads none larger than that of any network


def check_result(result: RunResult, extras: Iterable[Any] = ()) -> None:
    """Raise InvalidFile unless measurements are of layers, levels and metrics of the run, with possible figures."""
    _check_amounts(result)
    layers = {layer.name for layer in result.profile.layers}
    named = all(0 < len(name) <= 500 and name.count(".") < 50 and printable_text(name) == name for name in layers)
    _require(bool(layers) and named, "it has no layers, or one whose name no network has")
    for item in (*result.measurements, *result.estimates):
        unknown = {item.layer, *item.members} - layers
        _require(not unknown, f"there is no layer {min(unknown, default='')[:80]!r}")
        _require(item.level in result.spec.sensitivity.levels, f"no level {item.level!r} was asked for")
        _require(math.isfinite(item.seconds) and item.seconds >= 0, "a measurement took no possible time")
        _check_changes(item.changes)
    _require(result.metric in METRICS, f"there is no metric {result.metric[:40]!r}")
    asked = {f"{level:g}" for level in result.spec.sensitivity.levels}
    _require(result.agreement.keys() <= asked, "a rank correlation is of a level that was not asked for")
    for extra in extras:
        match extra:
            case ValidationResult():
                _check_proof(extra)
            case Recommendation():
                _check_recommendation(extra, result)
            case QuantizationHistogram():
                _check_histogram(extra)
    _require(min(_counts(result)) >= 0, _NO_COUNT)
    possible = all(map(_is_possible, result.baseline.values()))
    _require(possible, "a figure of the uncompressed model is no possible one")


def _require(sound: bool, what: str) -> None:
    if not sound:
        raise InvalidFile(
            f"The records of this run file do not fit together: {what}. Choose a file that Download run wrote."
        )


def _check_amounts(result: RunResult) -> None:
    """Require amounts that every page shows in seconds."""
    measurements = (*result.measurements, *result.estimates)
    groups = [len(item.members) for item in measurements]
    most_of = {
        "layers": (len(result.profile.layers), _MOST_LAYERS),
        "levels": (len(result.spec.sensitivity.levels), 100),
        "measurements": (len(measurements), 20_000),
        "layers in one group": (max(groups, default=0), 1_000),
        "layers in groups": (sum(groups), 100_000),
        "nodes in its data flow": (len(result.profile.flow), 10_000),
        "edges in its data flow": (sum(len(node.inputs) for node in result.profile.flow), 40_000),
        "facts on its environment": (len(result.environment), 200),
        "figures of the uncompressed model": (len(result.baseline), 32),
        "figures of one measurement": (max((len(item.changes) for item in measurements), default=0), 32),
        "notes": (len(result.notes) + len(result.profile.notes), 1_000),
        "unlisted weights": (len(result.profile.unlisted), _MOST_LAYERS),
    }
    for what, (count, most) in most_of.items():
        _require(count <= most, f"it has {count:,} {what}, and a run file holds at most {most:,}")


def _check_changes(*changes: tuple[MetricChange, ...]) -> None:
    for change in (change for group in changes for change in group):
        _require(change.metric in METRICS, f"there is no metric {change.metric[:40]!r}")
        _require(change.num_samples >= 0, _NO_COUNT)
        _require(all(map(_is_possible, _figures(change))), f"a figure in {change.metric} is no possible one")


def _is_possible(figure: float) -> bool:
    """Return whether it may be a figure: infinite is one (the SQNR of equal outputs), NaN and 1e300 are not."""
    return math.isinf(figure) or abs(figure) <= _LARGEST_FIGURE


def _figures(change: MetricChange) -> Iterator[float]:
    """Yield what must be a number; only intervals may be unknown."""
    yield from (change.baseline, change.value, change.delta)
    yield from (bound for bound in (change.ci_low, change.ci_high) if not math.isnan(bound))


def _check_proof(proof: ValidationResult) -> None:
    entries = len(proof.schedule.entries)  # a layer may have two compressions
    _require(entries <= 2 * _MOST_LAYERS, f"a proof is of {entries:,} entries, more than two for each layer")
    steps = tuple(step.change for step in proof.steps)
    _check_changes(proof.changes, proof.repaired, proof.uniform, proof.uniform_repaired, steps)
    _require(proof.schedule.metric in METRICS, "a proof is counted in an unknown metric")


def _check_recommendation(found: Recommendation, result: RunResult) -> None:
    tried = (*found.tried, *found.uniform, *found.refused)
    most = 1_000
    _require(
        len(tried) <= most, f"a recommendation tried {len(tried):,} schedules, and a run file holds at most {most:,}"
    )
    _check_changes(*(each.changes for each in tried))
    known = found.metric in METRICS and found.kind in result.compression.description.budgets
    _require(known, "a recommendation is counted in what this compression does not save, or in an unknown metric")
    possible = 0 < found.allowed_drop <= _LARGEST_FIGURE and all(_is_saving(found.kind, each.figure) for each in tried)
    _require(possible, "a recommendation has a figure that is no possible one")
    losses = [each.change(found.metric) for each in tried] + [found.loss, found.uniform_loss]
    finite = all(math.isfinite(figure) for loss in losses if loss for figure in _figures(loss))
    _require(finite, "a recommendation counts in a loss that is no number")
    proof = found.validation
    _require((found.schedule is None) == (proof is None), "a recommendation has no proof, or a proof of nothing")
    if proof is not None:
        _check_proof(proof)
        saved = proof.schedule.achieved.get(found.kind, math.nan)
        _require(_is_saving(found.kind, saved), "a recommendation does not say what it saves")


def _is_saving(kind: BudgetKind, figure: float) -> bool:
    """Return whether so much can be saved: bits that a weight may have, or a share."""
    return 0 < figure <= DENSE_BITS if kind == "bits" else 0 <= figure <= 1


def _check_histogram(histogram: QuantizationHistogram) -> None:
    bins = histogram.cells * histogram.sub_bins  # 8 bits of weights with finer bins have some thousand
    lengths = {len(histogram.counts), len(histogram.gradient_magnitudes)}
    _require(0 < bins <= 100_000 and lengths == {bins}, "a histogram has not the bins that it should")
    try:
        _ = (histogram.centroids, histogram.zero_share)
    except (ArithmeticError, ValueError, IndexError):
        _require(False, "a histogram is empty")


def _counts(result: RunResult) -> Iterator[int]:
    yield from (result.num_samples, result.profile.num_params, result.profile.macs, result.profile.num_bytes)
    for layer in result.profile.layers:
        yield from (layer.num_params, layer.macs, *layer.weight_shape)
    for item in result.profile.unlisted:
        yield from (item.num_params, item.macs)


def write_run_file(folder: RunFolder, title: str, stream: BinaryIO) -> None:
    """Write the finished run in ``folder``; where its files lay on this server is left out.

    Raises NotFound where the run is not finished, InvalidFile where its files are damaged, and StorageFailed where they
    cannot be read, or there is no room to write.
    """
    carried = without_folders(folder.load_result())
    head = RunFileHead(title=title, written_by=__version__)
    with storage_errors("the run file"), zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(HEAD_NAME, dumps(head))
        archive.writestr(RESULT_NAME, dumps(carried))
        for path in sorted(folder.path.iterdir()):
            if not (record_in(path.name) in _EXTRAS or WEIGHTS.fullmatch(path.name)):
                continue
            packing = zipfile.ZIP_DEFLATED if path.suffix == ".json" else zipfile.ZIP_STORED  # weights do not shrink
            archive.write(path, path.name, packing)


_MOST_MEMBERS = 2000  # histograms of every layer of a large network, a few times over
_MOST_RECORD_BYTES = 32_000_000  # 20,000 measurements, with what is recorded for pairs of layers
_MOST_FURTHER_BYTES = 16_000_000  # of proofs and recommendations together, which pages read at once
_ADVICE = "Choose a file that Download run wrote."


def read_run_file(stream: BinaryIO, folder: RunFolder, *, most_bytes: int) -> str:
    """Check a run file, write its content anew into an empty ``folder``, and return the title of the run.

    Unpacked it may have at most ``most_bytes``. The folder is only complete if nothing is raised. Raises InvalidFile
    where it is no run file, damaged, too large, or holds anything unexpected, and StorageFailed where the folder cannot
    be written to.
    """
    try:
        archive = ForeignZip(stream, most_members=_MOST_MEMBERS)
    except TooManyMembers as error:
        raise InvalidFile(f"A run file holds at most {_MOST_MEMBERS} files, and this one more. {_ADVICE}") from error
    except ZIP_DAMAGE as error:
        raise InvalidFile(f"This is not a run file, or it is damaged ({error}). {_ADVICE}") from error
    _check_members(archive, most_bytes)
    records = {
        member.filename: loads(b"".join(_chunks(archive, member)), kind)
        for member in archive.members
        if (kind := record_in(member.filename))
    }
    weights = {_key_in(each.filename): each for each in archive.members if each.filename not in records}
    head, result = records.pop(HEAD_NAME), records.pop(RESULT_NAME)
    check_result(result, records.values())
    sizes = {key: {CHECKPOINT.suffix: member.file_size} for key, member in weights.items()}
    for name, record in with_printable_texts(_with_files(records, sizes)).items():
        folder.save(_key_in(name), record)
    for key, member in weights.items():
        path = folder.compressed_model(key)
        with storage_errors(path.name), path.open("xb") as target:
            target.writelines(_chunks(archive, member))
        try:
            with safe_open(str(path), framework="np") as tensors:
                tensors.keys()
        except (SafetensorError, OSError) as error:
            raise InvalidFile(f"{path.name} is no safetensors file ({error}). {_ADVICE}") from error
    folder.save_result(with_printable_texts(without_folders(result)))
    return str(with_printable_texts(head).title)


def _key_in(name: str) -> str:
    """Return the key in a member's name, which was matched against hexadecimal digits before."""
    return name.split(".")[0].rsplit("-", 1)[1]


def _with_files(records: Mapping[str, Any], sizes: Mapping[str, dict[str, int]]) -> dict[str, Any]:
    """Return the records with the sizes of files in the run file; others stay on the server that made them."""
    found = dict(records)
    for name, record in records.items():
        if isinstance(record, ValidationResult):
            found[name] = replace(record, files=sizes.get(_key_in(name), {}))
    proofs = [record for record in found.values() if isinstance(record, ValidationResult)]
    for name, record in records.items():
        if isinstance(record, Recommendation) and (own := record.validation) is not None:
            same = (each.files for each in proofs if (each.schedule, each.adapting) == (own.schedule, own.adapting))
            found[name] = replace(record, validation=replace(own, files=next(same, {})))
    return found


def _check_members(archive: ForeignZip, most_bytes: int) -> None:
    names = [member.filename for member in archive.members]
    for needed in (HEAD_NAME, RESULT_NAME):
        if names.count(needed) != 1:
            raise InvalidFile(f"A run file holds one {needed}; this one has {names.count(needed)}. {_ADVICE}")
    if archive.encrypted:
        raise InvalidFile(f"This file is protected by a password. {_ADVICE}")
    for member in archive.members:
        name = member.filename
        if not (record_in(name) or WEIGHTS.fullmatch(name)) or names.count(name) > 1:
            raise InvalidFile(
                f"A run file holds JSON records and safetensors of known names, not {name[:80]!r}. {_ADVICE}"
            )
        if not WEIGHTS.fullmatch(name) and member.file_size > _MOST_RECORD_BYTES:
            raise InvalidFile(f"{name} has more than {_MOST_RECORD_BYTES // 10**6} MB. {_ADVICE}")
    at_once = (ValidationResult, Recommendation)  # every page reads all of them
    further = sum(member.file_size for member in archive.members if record_in(member.filename) in at_once)
    if further > _MOST_FURTHER_BYTES:
        raise InvalidFile(
            f"The proofs and recommendations of a run file have at most {_MOST_FURTHER_BYTES // 10**6} MB together, "
            f"and these {further / 1e6:.1f} MB. {_ADVICE}"
        )
    total = archive.total_bytes
    if total > most_bytes:
        raise InvalidFile(
            f"A run file may hold {most_bytes // 10**6:,} MB here; this one says it holds {total // 10**6:,} MB. "
            "Ask whoever runs this server, or download the run again without its compressed models."
        )


def _chunks(archive: ForeignZip, member: ZipInfo) -> Iterator[bytes]:
    """Yield a member's bytes; what unpacks to another size than it declares is refused."""
    try:
        yield from archive.chunks(member)
    except ZIP_DAMAGE as error:
        raise InvalidFile(f"{member.filename} cannot be read ({error}). {_ADVICE}") from error
