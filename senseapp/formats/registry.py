"""Every target format by name (a new one is one module and one line here), and all of them in one zip."""

import hashlib
import importlib.metadata
import io
import platform
import zipfile
from collections.abc import Mapping

from senseapp.core.errors import InvalidSchedule, InvalidSpec
from senseapp.core.registry import Registry
from senseapp.formats.base import ExportFormat, json_text
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule, check_schedule

ZIP_FORMAT = "zip"
"""Stands for all formats at once where a format is named."""
MANIFEST_NAME = "manifest.json"
README_NAME = "README.txt"
_STEM = "schedule"
_APART = "The graph (.pt2) is large, and not in this zip: choose the format Model Explorer to get both."
_PACKAGES = ("torch", "torchvision", "timm", "torch-pruning")

_OWN = (
    *("plain:JSON", "plain:CSV", "plain:YAML"),
    *("fraction_formats:FASTERAI_SPARSIFIER", "fraction_formats:FASTERAI_PRUNER", "fraction_formats:DISTILLER"),
    *("fraction_formats:SPARSEML", "config_formats:NNI2", "config_formats:NNI3", "fraction_formats:TORCH_PRUNING"),
    *("config_formats:TORCHAO", "config_formats:MODELOPT", "model_explorer:MODEL_EXPLORER"),
)
FORMATS: Registry[ExportFormat] = Registry(
    "format", group="senseapp.formats", own=tuple(f"senseapp.formats.{place}" for place in _OWN)
)
"""All target formats, in the order in which they are offered."""


def export_format(name: str) -> ExportFormat:
    """Return the format called ``name``; raise InvalidSpec, with the names there are, if there is none."""
    if name not in FORMATS:
        raise InvalidSpec(f"The format must be one of {', '.join(FORMATS)}, or zip for all of them, got {name!r}.")
    return FORMATS[name]


def build_zip(
    schedule: Schedule,
    profile: ModelProfile,
    *,
    extra: Mapping[str, bytes] | None = None,
    left_out: str = "",
    run: str = "RUN",
) -> bytes:
    """Return a zip of every target file that can hold ``schedule``; equal arguments give equal bytes.

    ``manifest.json`` in it has the sha256 of each file, and the versions that wrote it.

    ``README.txt`` in it says who reads each file, and why a format was left out; ``left_out`` is why there is no Model
    Explorer overlay. ``extra`` are further files by name, as that overlay is, which only the network can give. ``run``
    is what the command line takes for the run of the schedule.

    Raises InvalidSchedule if the schedule belongs to another model or is out of range, or two files share a name.
    """
    check_schedule(schedule, profile)
    files = _target_files(schedule, profile, extra or {}, left_out, run)
    for name, content in (extra or {}).items():
        if name in files or name == MANIFEST_NAME:
            raise InvalidSchedule(f"Two files of one archive are called {name}. Rename the one that is added.")
        files[name] = content
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    files[MANIFEST_NAME] = json_text({"files": digests, "versions": _versions()}).encode()
    return _zipped(files)


def _target_files(
    schedule: Schedule, profile: ModelProfile, extra: Mapping[str, bytes], left_out: str, run: str
) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    lines = []
    for target in FORMATS.values():
        name = f"{_STEM}{target.suffix}"
        if target.render is None and name in extra:
            lines += [*_told(target, schedule, profile, name, run)[:-1], f"    {_APART}", ""]
            continue
        try:
            files[name] = target.write(schedule, profile).encode()
        except InvalidSchedule as refusal:
            lines.append(f"(left out) {name}: {left_out if left_out and target.render is None else refusal}")
            continue
        lines += _told(target, schedule, profile, name, run)
    files[README_NAME] = ("\n".join(lines) + "\n").encode()
    return files


def _told(target: ExportFormat, schedule: Schedule, profile: ModelProfile, name: str, run: str) -> list[str]:
    """Return reader, limitations and the lines that apply the file, as the README has them."""
    inside = [*target.notes(schedule, profile), *target.lines(schedule, name, run=run).splitlines()]
    return [f"{name}: {target.reader}", *(f"    {line}".rstrip() for line in inside), ""]


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("senseapp", *_PACKAGES):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _zipped(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            # the earliest date a zip can hold; equal content gives equal bytes
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return stream.getvalue()
