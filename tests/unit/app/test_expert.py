"""What the switch Expert hides: mean and deviation of pixels, and notes on repair."""

from __future__ import annotations

import pytest

from senseapp.app.common import expert
from senseapp.app.common.expert import notes_shown, reading_shown

READ = (
    "Images: 32 × 32 pixels, less a mean of 0.304, over a std of 0.323, crop (it comes with the network).",
    "Images: 8 × 8 pixels, less a mean of 0.5, 0.4, 1e-05, over a std of 0.2, 0.2, 0.2, BGR, stretch.",
    "Task: Classification.",
)


@pytest.mark.parametrize("is_expert", [False, True])
def test_everyday_words_leave_out_what_only_experts_read(monkeypatch: pytest.MonkeyPatch, is_expert: bool) -> None:
    monkeypatch.setattr(expert, "expert", lambda: is_expert)
    notes = ("Delivered with repair: it is better.", "Checked on 269 images.")
    if is_expert:
        assert (reading_shown(READ), notes_shown(notes)) == (list(READ), list(notes))
    else:
        assert reading_shown(READ) == [
            "Images: 32 × 32 pixels, crop (it comes with the network).",
            "Images: 8 × 8 pixels, BGR, stretch.",
            "Task: Classification.",
        ]
        assert notes_shown(notes) == ["Checked on 269 images."]
