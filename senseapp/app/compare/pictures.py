"""Pictures that two files answer differently, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import bound, named
from senseapp.app.common.decided import decided
from senseapp.app.common.notices import answer_or_wait
from senseapp.core.markdown import md
from senseapp.records.answers import AnswerSide, DifferentAnswer, differences
from senseapp.records.candidate import Candidate
from senseapp.records.jobs import RunRecord
from senseapp.tasks import task_named
from senseapp.views.frames.files import difference_line, difference_sentence
from senseapp.views.words import format as fmt

_MOST_PICTURES = 24  # four rows on a wide screen, each a picture that the server reads
_WIDTH = 150  # pixels: a line of a caption holds an answer with its probability
_SIDES = {"first": "Compare", "second": "With"}
"""Names of both files in the address, and the labels of their fields."""
KnownFiles = Sequence[tuple[str, RunRecord, tuple[Candidate, ...]]]
"""The letter of each run (empty for a single one), the run and its files."""


def with_side(side: str, title: str) -> str:
    """Return the title of a run behind its letter, if it has one."""
    return f"{side} · {title}" if side else title


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """One network to compare: a file of the run that ``side`` stands for, or the original (``file`` None)."""

    side: str
    record: RunRecord
    files: tuple[Candidate, ...]
    file: Candidate | None

    @property
    def label(self) -> str:
        size = f", {fmt.bytes_size(self.file.figures.file_bytes)}" if self.file is not None else ""
        return f"{with_side(self.side, self.record.title)}: {self.name}{size}"

    @property
    def name(self) -> str:
        return self.file.made_of if self.file is not None else "the original"

    @property
    def text(self) -> str:
        """Names the choice in the address."""
        return f"{self.record.run_id[:8]}.{self.file.file if self.file else 'original'}"

    def answers(self) -> AnswerSide | None:
        """Return its answers; None where they were not kept."""
        work = backend.service().work
        for each in self.files if self.file is None else (self.file,):
            if (found := work.answers(self.record.run_id, each)) is not None:
                return found.side(original=self.file is None)
        return None


def pictures_view(known: KnownFiles) -> None:
    """Show a choice of two files, and the pictures on which their predictions differ."""
    st.markdown(md("## Which pictures do two files answer differently?"))
    _, first, _ = known[0]
    if reason := task_named(first.spec.model.task).not_compared:
        st.caption(reason)
        return
    images = attrgetter("kind", "name", "path")
    alike = [each for each in known if images(each[1].spec.data) == images(first.spec.data)]
    if others := [each[1].title for each in known if each not in alike]:
        st.caption(f"Left out, as they were measured on other images than {first.title}: {', '.join(others)}.")
    chosen = _choose(alike)
    if chosen[0].text == chosen[1].text:
        st.caption("Choose two different files, or a file and the original.")
        return
    sides = [each.answers() for each in chosen]
    if sides[0] is not None and sides[1] is not None:
        of_one_run = chosen[0].record is chosen[1].record
        names = [each.name if of_one_run else each.side for each in chosen]
        _show(first, names, sides[0], sides[1])
        return
    for each, side in zip(chosen, sides, strict=True):
        if side is None:
            st.caption(f"{each.label}: its answers were not kept. Make the file again to see this.")


def _choose(known: KnownFiles) -> list[_Choice]:
    """Return two networks: at first the best files of two runs, or the original of one and its best file."""
    by_text: dict[str, _Choice] = {}
    best = []
    for side, record, files in known:
        choose = partial(_Choice, side=side, record=record, files=files)
        best.append(choose(file=decided(record, files).choice or files[0]))
        by_text |= {each.text: each for each in (choose(file=file) for file in (*files, None))}
    usual = best[:2] if len(best) > 1 else [[*by_text.values()][-1], best[0]]
    form = named({text: text for text in by_text})
    texts = [
        column.selectbox(
            title,
            list(by_text),
            format_func=lambda text: by_text[text].label,
            **bound("compare", f"file-{side}", form, first.text, key=f"compare.file.{side}"),
        )
        for column, (side, title), first in zip(st.columns(2), _SIDES.items(), usual, strict=True)
    ]
    return [by_text[text] for text in texts]


def _show(record: RunRecord, names: Sequence[str], first: AnswerSide, second: AnswerSide) -> None:
    found = differences(first, second)
    st.markdown(md("**{}**", difference_sentence(found, names)))
    shown = found.different[:_MOST_PICTURES]
    if not shown:
        return
    pictures: dict[str, bytes] = {}
    if record.read_only:
        st.caption("Only the owner of the run sees its pictures.")
    elif record.spec.data.kind != "random":
        wanted = tuple(each.image for each in shown)
        pictures = answer_or_wait(lambda: backend.pictures_of(record.run_id, wanted), "Reading these pictures") or {}
    if len(shown) < len(found.different):
        st.caption(f"The {len(shown)} that both are surest of.")
    with st.container(horizontal=True, gap="small", key="compare_pictures"):
        for each in shown:
            _picture(each, names, pictures.get(each.image, b""))


def _picture(each: DifferentAnswer, names: Sequence[str], png: bytes) -> None:
    with st.container(width=_WIDTH, gap="xsmall"):
        if png:
            st.image(png, width=_WIDTH)
        lines = [each.label if each.label is not None else each.image]
        lines += [
            difference_line(name, answer, each.label)
            for name, answer in zip(names, (each.first, each.second), strict=True)
        ]
        st.caption(md("  \n").join(md("{}", line) for line in lines))
