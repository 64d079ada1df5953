"""Hostile files of every kind that people bring, made by size, depth and chance; each is named and reproducible."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from typing import Literal

from soak.large_run_files import SOUND_RUN, large_run_file
from soak.slow_pictures import SLOW_PICTURES
from tests.lying_zips import METHODS, PACKED, Member, zip_of
from tests.marked_run_file import MARKUP, marked_run_file
from tests.pictures import png

_LARGEST_STEP = 24  # then the sizes begin anew: hundreds of megabytes take longer to make than to refuse
Kind = Literal["checkpoint", "images", "run file", "table"]
Family = tuple[str, Kind, str]
Maker = Callable[[int, random.Random], bytes]


@dataclass(frozen=True, kw_only=True)
class HostileFile:
    """One file.

    Attributes:
        kind: where it is brought to.
        name: of the file.
        family: how it was made.
        content: its bytes.
    """

    kind: Kind
    name: str
    family: str
    content: bytes


@dataclass(frozen=True, kw_only=True)
class Sound:
    """Sound files, which mutations are made of."""

    checkpoint: bytes
    safetensors: bytes
    pictures: bytes
    run_file: bytes
    table: bytes


def hostile_files(
    sound: Sound, number: int, *, after: int = 0, seed: int = 0, only: str | tuple[str, ...] = ""
) -> Iterator[HostileFile]:
    """Yield ``number`` files, those from ``after`` on: all families in turn, each larger or deeper than its one before.

    Each depends on its place and the seed alone, and is made when it is asked for. The names of the families
    that are taken begin with ``only``, or with one of it.
    """
    mutations = _mutations(sound)
    taken = [family for family in (*FAMILIES, *mutations) if family[0].startswith(only)]
    places = ((step, family) for step in count() for family in taken)
    for step, (family, kind, suffix) in islice(places, after, after + number):
        key, size = (family, kind, suffix), 1 + step % _LARGEST_STEP
        changed = mutations.get(key)
        yield HostileFile(
            kind=kind,
            name=f"{family.replace(' ', '-')}-{step}{suffix}",
            family=family,
            content=changed(size, random.Random(f"{seed} {family} {step}")) if changed else _of_size(key, size, seed),
        )


@cache
def _of_size(key: Family, size: int, seed: int) -> bytes:
    return FAMILIES[key](size, random.Random(f"{seed} {key[0]} {size}"))


def torch_zip(body: bytes, **others: bytes) -> bytes:
    """Return a checkpoint with this pickle in it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in {"data.pkl": body, "version": b"3\n", "byteorder": b"little", **others}.items():
            archive.writestr(f"archive/{name}", content)
    return file.getvalue()


def text(value: str) -> bytes:
    """Return the opcode that puts a text on the stack."""
    encoded = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def memo(place: int, *, get: bool = False) -> bytes:
    """Return the opcode that keeps the top of the stack under a number, or gets it back."""
    return (b"j" if get else b"r") + struct.pack("<I", place)


def doubled_tuples(step: int, _: random.Random) -> bytes:
    levels = 10 + 7 * step
    body = b")" + memo(0) + b"".join(memo(i, get=True) + b"\x86" + memo(i + 1) for i in range(levels))
    return torch_zip(b"\x80\x02}" + body + b"K\x00s.")


def deep_tuples(step: int, _: random.Random) -> bytes:
    return torch_zip(b"\x80\x02})" + b"\x85" * (100_000 * step) + b"K\x00s.")


def shared_dicts(step: int, _: random.Random) -> bytes:
    body = b"}" + memo(0)
    for level in range(20 * step):
        items = b"".join(text(f"k{i}") + memo(level, get=True) for i in range(50))
        body += b"0}" + memo(level + 1) + b"(" + items + b"u"
    return torch_zip(b"\x80\x02" + body + b".")


def slow_codec(step: int, _: random.Random) -> bytes:
    return torch_zip(
        b"\x80\x02}" + text("a") + b"c_codecs\nencode\n" + text("é" * 5000 * step) + text("punycode") + b"\x86Rs."
    )


def state_of_a_dict(step: int, _: random.Random) -> bytes:
    name = ("items", "keys", "get", "__len__", "numel", "values")[step % 6]
    body = b"ccollections\nOrderedDict\n)R}" + text(name) + b"K\x05sb"
    return torch_zip(b"\x80\x02" + body + b".")


def code(step: int, _: random.Random) -> bytes:
    command = ("os\nsystem", "builtins\neval", "posix\nmkdir", "subprocess\nPopen")[step % 4]
    return torch_zip(b"\x80\x02c" + command.encode() + b"\n" + text("x") + b"\x85R.")


TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
    b"X\x03\x00\x00\x00cpuK\x04tQK\x00K\x04\x85K\x01\x85\x89NtR"
)
"""The opcodes of a tensor of four numbers in storage 0."""


def shared_dicts_with_weights(step: int, _: random.Random) -> bytes:
    body = b"}" + text("w") + TENSOR + b"s" + memo(0)
    for level in range(20 * step):
        items = b"".join(text(f"k{i}") + memo(level, get=True) for i in range(50))
        body += b"0}" + memo(level + 1) + b"(" + items + b"u"
    return torch_zip(b"\x80\x02" + body + b".", **{"data/0": bytes(16)})


def far_memo(step: int, _: random.Random) -> bytes:
    return torch_zip(b"\x80\x02}" + memo(2**32 - step) + b".")


def copied_text(step: int, _: random.Random) -> bytes:
    once = b"c_codecs\nencode\n" + memo(1, get=True) + text("latin1") + b"\x86R0"
    return torch_zip(b"\x80\x02" + text("x" * 10_000 * step) + memo(1) + b"0" + once * 20_000 + b"}.")


def copied_arguments(step: int, _: random.Random) -> bytes:
    many = b"(" + b"N" * 10_000 * step + b"t" + memo(1) + b"0"
    once = b"ctorch\nSize\n" + memo(1, get=True) + b"R0"
    return torch_zip(b"\x80\x02" + many + once * 20_000 + b"}.")


def far_strides(step: int, _: random.Random) -> bytes:
    far = TENSOR.replace(b"K\x04\x85K\x01\x85", b"J" + struct.pack("<i", 10**step % 2**31) + b"\x85K\x01\x85")
    return torch_zip(b"\x80\x02}" + text("w") + far + b"s.", **{"data/0": bytes(16)})


def long_numbers(step: int, _: random.Random) -> bytes:
    return torch_zip(
        b"\x80\x02}" + b"\x8b" + struct.pack("<i", 100_000 * step) + b"\x7f" * (100_000 * step) + b"K\x00s."
    )


def strange_names(step: int, _: random.Random) -> bytes:
    return torch_zip(pickle.dumps({"\ud800" + "x" * step: 1, "=cmd": 2}, protocol=2))


def many_tensors(step: int, _: random.Random) -> bytes:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"t{i}": entry for i in range(2000 * step)}).encode()
    return struct.pack("<Q", len(header)) + header


def huge_shapes(step: int, _: random.Random) -> bytes:
    shape = [10 ** (3 * step % 18)] * (1 + step % 5)
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


def zip_bomb(step: int, _: random.Random) -> bytes:
    return _zipped({f"0/{step}.bmp": bytes(5_000_000 * step)})


def climbing_names(step: int, _: random.Random) -> bytes:
    return _zipped({"../" * step + "out.png": b"x", "/etc/out.png": b"x", "0/a\x00b.png": b"x", "\ud7ff" * step: b"x"})


def many_names(step: int, _: random.Random) -> bytes:
    return _zipped({f"{i % 10}/{i}.png": b"" for i in range(3000 * step)})


def wide_picture(step: int, _: random.Random) -> bytes:
    header = struct.pack(">IIBBBBB", 10_000 * step, 10_000 * step, 8, 2, 0, 0, 0)
    return _zipped({"0/a.png": b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + bytes(40)})


def tar_in_gzip(step: int, chance: random.Random) -> bytes:
    return gzip.compress(bytes(2_000_000 * step) + chance.randbytes(100))


def wrong_measurements(step: int, _: random.Random) -> bytes:
    return _run_file({"measurements": [1] * (20_000 * step)})


def deep_json(step: int, _: random.Random) -> bytes:
    return _zipped({"run.json": b"[" * (5000 * step), "result.json": b'{"a":' * (5000 * step)})


def _lying(name: str, step: int, method: int) -> Member:
    """Return a member that unpacks to 200 or 400 MB and declares 1 kB times ``step``."""
    declared = bytes(1000 * step)
    return Member(
        name=name, packed=_much(2 - step % 2, method), declares=len(declared), method=method, beginning=declared
    )


@cache
def _much(times: int, method: int) -> bytes:
    return PACKED[method](bytes(200_000_000 * times))


def _method(step: int) -> int:
    return list(METHODS.values())[1 + step % 3]


def lying_picture(step: int, _: random.Random) -> bytes:
    return zip_of(_lying("0/a.png", step, _method(step)), _lying("1/b.png", step, _method(step + 1)))


def lying_label_table(step: int, _: random.Random) -> bytes:
    sound = png(1)
    picture = Member(name="a.png", packed=sound, declares=len(sound), method=0, beginning=sound)
    return zip_of(picture, _lying("labels.csv", step, _method(step)))


def lying_archive_inside(step: int, _: random.Random) -> bytes:
    inner = zip_of(_lying("0/a.png", step, _method(step)))
    return zip_of(
        Member(name="0/inner.zip", packed=inner, declares=len(inner), method=0, beginning=inner),
        Member(name="0/b.png", packed=inner, declares=len(inner), method=0, beginning=inner),
    )


def lying_record(step: int, _: random.Random) -> bytes:
    names = ("run.json", "result.json")
    return zip_of(_lying(names[step % 2], step, _method(step)), _lying(names[1 - step % 2], step, _method(step)))


def lying_weights(step: int, _: random.Random) -> bytes:
    return zip_of(_lying("archive/data.pkl", step, _method(step)), _lying("archive/data/0", step, _method(step)))


def slow_picture(step: int, _: random.Random) -> bytes:
    """Return one small picture that takes far more work than its pixels, alone or behind sound ones."""
    name = list(SLOW_PICTURES)[step % len(SLOW_PICTURES)]
    sound = {f"0/{place}.png": png(place) for place in range(step % 3)}
    return _zipped(sound | {f"1/z-{name}": SLOW_PICTURES[name](1 + step // len(SLOW_PICTURES) % 10)})


def large_run(step: int, _: random.Random) -> bytes:
    """Return a run file of as many layers and levels as are taken, or more."""
    return large_run_file(90 * step, 8 + step % 5)


def marked_checkpoint(step: int, _: random.Random) -> bytes:
    keys = b"".join(text(f"{place} {MARKUP}") + TENSOR + b"s" for place in range(step))
    return torch_zip(b"\x80\x02}" + keys + b".", **{"data/0": bytes(16)})


def marked_names(step: int, _: random.Random) -> bytes:
    flat = MARKUP.replace("/", "\u2215")
    return _zipped({f"{name}/{place} {name}.png": png(place) for place in range(step) for name in (MARKUP, flat)})


@cache
def _marked_run() -> bytes:
    return marked_run_file(SOUND_RUN)[0]


def marked_run(_step: int, _: random.Random) -> bytes:
    return _marked_run()


def marked_table(step: int, _: random.Random) -> bytes:
    lines = [f"{MARKUP} {place},0.5,70,90,1" for place in range(step)]
    return "\n".join(["parameter,sparsity,top1,top5,loss", *lines, MARKUP * (step % 2)]).encode()


def broken_table(step: int, chance: random.Random) -> bytes:
    cells = ("=cmd|' /C calc'!A0", "nan", "1e999", "-1", "x" * 100 * step, "0.5", "\x00", '"')
    rows = [",".join(chance.choice(cells) for _ in range(5)) for _ in range(50 * step)]
    return "\n".join(["parameter,sparsity,top1,top5,loss", *rows]).encode()


FAMILIES: dict[Family, Maker] = {
    ("doubled tuples", "checkpoint", ".pth"): doubled_tuples,
    ("deep tuples", "checkpoint", ".pth"): deep_tuples,
    ("shared dicts", "checkpoint", ".pth"): shared_dicts,
    ("shared dicts with weights", "checkpoint", ".pth"): shared_dicts_with_weights,
    ("far memo", "checkpoint", ".pth"): far_memo,
    ("copied text", "checkpoint", ".pth"): copied_text,
    ("copied arguments", "checkpoint", ".pth"): copied_arguments,
    ("far strides", "checkpoint", ".pth"): far_strides,
    ("slow codec", "checkpoint", ".pth"): slow_codec,
    ("state of a dict", "checkpoint", ".pth"): state_of_a_dict,
    ("code", "checkpoint", ".pth"): code,
    ("long numbers", "checkpoint", ".pth"): long_numbers,
    ("strange names", "checkpoint", ".pth"): strange_names,
    ("many tensors", "checkpoint", ".safetensors"): many_tensors,
    ("huge shapes", "checkpoint", ".safetensors"): huge_shapes,
    ("bomb", "images", ".zip"): zip_bomb,
    ("climbing names", "images", ".zip"): climbing_names,
    ("many names", "images", ".zip"): many_names,
    ("wide picture", "images", ".zip"): wide_picture,
    ("gzip", "images", ".tar.gz"): tar_in_gzip,
    ("wrong measurements", "run file", ".zip"): wrong_measurements,
    ("deep json", "run file", ".zip"): deep_json,
    ("lying picture", "images", ".zip"): lying_picture,
    ("lying label table", "images", ".zip"): lying_label_table,
    ("lying archive inside", "images", ".zip"): lying_archive_inside,
    ("lying record", "run file", ".zip"): lying_record,
    ("lying weights", "checkpoint", ".pth"): lying_weights,
    ("slow picture", "images", ".zip"): slow_picture,
    ("large run", "run file", ".zip"): large_run,
    ("marked checkpoint", "checkpoint", ".pth"): marked_checkpoint,
    ("marked names", "images", ".zip"): marked_names,
    ("marked run", "run file", ".zip"): marked_run,
    ("marked table", "table", ".csv"): marked_table,
    ("broken table", "table", ".csv"): broken_table,
}


def _mutations(sound: Sound) -> dict[Family, Maker]:
    """Return makers of sound files with a few bytes changed, a piece left out, or a piece doubled."""

    def of(content: bytes) -> Maker:
        def mutated(_: int, chance: random.Random) -> bytes:
            changed = bytearray(content)
            for _ in range(chance.randint(1, 8)):
                place = chance.randrange(max(1, len(changed)))
                how = chance.randrange(4)
                if how == 0:
                    changed[place : place + 1] = bytes([chance.randrange(256)])
                elif how == 1:
                    del changed[place : place + chance.randint(1, 50)]
                elif how == 2:
                    changed[place:place] = changed[place : place + chance.randint(1, 50)]
                else:
                    del changed[max(place, 10) :]
            return bytes(changed) or b"x"

        return mutated

    return {
        ("mutated checkpoint", "checkpoint", ".pth"): of(sound.checkpoint),
        ("mutated safetensors", "checkpoint", ".safetensors"): of(sound.safetensors),
        ("mutated pictures", "images", ".zip"): of(sound.pictures),
        ("mutated run file", "run file", ".zip"): of(sound.run_file),
        ("mutated table", "table", ".csv"): of(sound.table),
    }


def _zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name.replace("\x00", "_") or "x"), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def _run_file(data: dict[str, object]) -> bytes:
    head = {"type": "RunFileHead", "version": 1, "data": {"title": "x", "written_by": ""}}
    result = {"type": "RunResult", "version": 1, "data": data}
    return _zipped({"run.json": json.dumps(head).encode(), "result.json": json.dumps(result).encode()})
