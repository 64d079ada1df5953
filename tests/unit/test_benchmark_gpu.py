"""The benchmark of graphics cards in its tiny form, on the processor: it has never seen a card where the tests run."""

from __future__ import annotations

import pytest

from benchmarks import gpu


@pytest.mark.wide
@pytest.mark.slow
def test_it_measures_each_network_and_finds_what_the_processor_finds(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--tiny", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| test_")]
    large, small = [row for row in rows if len(row) > 5], [row for row in rows if len(row) == 5]
    assert [row[0].split(",")[0] for row in large] == ["| test_resnet", "| test_vit"]
    for row in large:
        assert all(f"{what} " in row[1] for what in ("exact sweep", "quick scan", "adapted weights", "plain loop"))
        assert row[3] == "0.0e+00"  # the same device, to the bit
    assert len(small) == 9
    others = [line.split(" | ") for line in lines if line.startswith(("| ONNX", "| detector", "| LR-ASPP"))]
    assert len(others) == 3
    assert all(row[3] == "median 0.0e+00, farthest 0.0e+00" for row in [*small, *others])


def test_a_case_that_fails_is_printed_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    def failing() -> str:
        raise RuntimeError("no such kernel")

    assert not gpu._attempted(failing)
    assert gpu._attempted(lambda: "the next one")
    printed = capsys.readouterr().out
    assert "RuntimeError: no such kernel" in printed
    assert printed.endswith("the next one\n")


def test_without_a_card_only_the_tiny_form_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["--device", "cpu"])
    assert "there is no graphics card here" in capsys.readouterr().err
