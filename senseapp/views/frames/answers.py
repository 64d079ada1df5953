"""What each class loses when a model is compressed, and where two files differ, in words and rows."""

from __future__ import annotations

from senseapp.records.changed_answers import ChangedAnswers
from senseapp.records.file_answers import AnswerDifferences, GivenAnswer
from senseapp.views.words import format as fmt

CLASS_COLUMNS = ("Class", "Images", "Drop", "Interval", "Mark")


def class_note(found: ChangedAnswers) -> str:
    """Say what the drops of classes are, and how their intervals are corrected."""
    what = "of right answers" if found.by_labels else "of answers that stay the same, by the original's answer"
    listed = f", the {len(found.classes)} that lose most" if len(found.classes) < found.num_classes else ""
    return (
        f"Drop {what} in {fmt.plural(found.num_classes, 'class', 'classes')}{listed}; {100 * found.drop:.1f} points on "
        f"average. Intervals hold for all classes together with 95 % (Bonferroni)."
    )


def class_rows(found: ChangedAnswers) -> list[tuple[str, int, str, str, str]]:
    """Return class, images, drop, interval, and the mark of those whose interval excludes the mean."""
    marks = {True: "loses more", False: "loses less"}
    return [
        (
            each.name,
            each.num_images,
            f"{100 * each.drop:.1f} points",
            f"{100 * each.low:.1f} to {100 * each.high:.1f}",
            marks[each.drop > found.drop] if each.stands_out else "",
        )
        for each in found.classes
    ]


def difference_sentence(found: AnswerDifferences) -> str:
    """Say how many pictures A and B answer differently, and which of them has more of these right."""
    if not found.num_images:
        return "A and B were measured on different images, so there is nothing to compare."
    total = fmt.plural(found.num_images, "held-out picture")
    if not found.different:
        return f"A and B give the same answers to {total}."
    some = f"{len(found.different)} of {total} {'is' if len(found.different) == 1 else 'are'} answered differently"
    if found.only_first is None or found.only_second is None:
        return f"{some}."
    neither = len(found.different) - found.only_first - found.only_second
    return f"{some}: A alone is right on {found.only_first}, B alone on {found.only_second}, neither on {neither}."


def difference_line(side: str, answer: GivenAnswer, label: str | None) -> str:
    """Return what one side says of a picture: ``A: crow (61 %), right``."""
    right = ", right" if label is not None and answer.text == label else ""
    return f"{side}: {answer.text} ({fmt.percent(answer.sure)}){right}"
