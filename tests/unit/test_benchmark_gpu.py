"""The benchmark of graphics cards in its tiny form, on the processor: it has never seen a card where the tests run."""

from __future__ import annotations

import pytest

from benchmarks import gpu


@pytest.mark.slow
def test_it_measures_each_network_and_finds_what_the_processor_finds(capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main(["--tiny", "--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("| test_")]
    assert [row.split(",")[0] for row in rows] == ["| test_resnet", "| test_vit"]
    for row in rows:
        assert all(f"{what} " in row for what in ("exact sweep", "quick scan", "adapted weights", "plain loop"))
        assert "| 0.0e+00 |" in row  # the same device, to the bit


def test_without_a_card_only_the_tiny_form_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["--device", "cpu"])
    assert "there is no graphics card here" in capsys.readouterr().err
