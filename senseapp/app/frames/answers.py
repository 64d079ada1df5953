"""What each class loses when a model is compressed, in words and rows."""

from __future__ import annotations

from senseapp.app.words import format as fmt
from senseapp.records.changed_answers import ChangedAnswers

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
