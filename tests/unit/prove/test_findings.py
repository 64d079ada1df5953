"""What is said of a file that runs, from made-up figures."""

from types import SimpleNamespace

import pytest

from senseapp.core.errors import UnsupportedModel
from senseapp.prove.findings import alike_everywhere, findings, saturation
from senseapp.records.deployment import DeploySettings
from tests.deployments import a_change, some_figures, usual_figures


def said(settings: DeploySettings | None = None, **other):
    setting = "quantize_static, per channel, unsigned activations, min-max"
    return findings(usual_figures(**other), settings or DeploySettings(), images=200, own_setting=setting)


def test_a_good_file_has_one_sentence():
    assert said() == (
        "Measured on 200 images: 95.5 % of the answers stay as they were, in 62 % of the original's time here, "
        "at 27 % of its size.",
    )


def test_labels_speak_before_agreement():
    changes = (a_change("top1", 0.02, baseline=0.9), a_change("agreement", 0.1), a_change("kl", 0.01))
    file = some_figures(0.0052, 0.62, 5_100_000)
    labelled = type(file)(changes=changes, seconds=file.seconds, time_ratio=file.time_ratio, file_bytes=5_100_000)
    assert "Right answers 88.0 %, the original's 90.0 %," in said(file=labelled)[0]


@pytest.mark.parametrize(
    ("share", "words"),
    [(1.2, "but slower than the original here, 1.20 times its time"), (1.0, "in no less time here that can be told")],
)
def test_no_time_saved_is_in_the_first_sentence(share, words):
    assert words in said(file=some_figures(0.0084 * share, share, 5_100_000, kl=0.001))[0]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (some_figures(0.0052, 0.62, 5, kl=2.0), "unsigned activations, min-max does less harm"),
        (some_figures(0.0052, 0.62, 5, kl=0.9), "min-max is quicker than this file, and does no more harm"),
    ],
)
def test_what_speaks_against_a_file_is_said(file, words):
    first, *against = said(file=file)
    assert any(words in sentence for sentence in against)
    assert words not in first


def test_a_float_file_competes_with_the_original_alone():
    figures = {name: value for name, value in usual_figures().items() if name in ("file", "original")}
    assert len(findings(figures, DeploySettings(kind="float"), images=200)) == 1


def judged_as(changed, *, spread=0.0):
    """Return a judgement that changes this share of the answers of 200 images; networks judged beside it are shares."""
    damages = [changed + spread * (-1) ** image for image in range(64)]
    return SimpleNamespace(
        changes=(a_change("agreement", changed),),
        judge=SimpleNamespace(judged=lambda network, threshold: judged_as(network)),
        **{"start": 0, "stop": 200, "damages": lambda parts: damages[:parts]},
    )


@pytest.mark.parametrize("here_saturates", [True, False])
def test_it_is_said_how_a_file_answers_on_processors_of_the_other_kind(here_saturates, monkeypatch):
    """Of a network that changes 40 % of the answers here, and elsewhere 2 %."""
    monkeypatch.setattr("senseapp.prove.findings.saturates", lambda: here_saturates)
    (sentence,) = saturation("net.onnx", judged_as(0.4), lambda: 0.02)
    assert sentence == (
        "On this processor, which has no VNNI, sums of products of 8 bits saturate in net.onnx: 60.0 % of the answers "
        "stay as they were; with VNNI or AMX, computed on the same images: 98.0 % of the answers stay as they were."
        if here_saturates
        else "On processors without VNNI or AMX, sums of products of 8 bits saturate in net.onnx, computed on the same "
        "images: 98.0 % of the answers stay as they were; here, with VNNI: 60.0 % of the answers stay as they were."
    )
    assert not saturation("net.onnx", judged_as(0.4), lambda: 0.4)
    assert not saturation("net.onnx", judged_as(0.4), lambda: None)
    assert not saturation("net.onnx", judged_as(0.4, spread=3.0), lambda: 0.41)  # as chance would have it

    def refuse():
        raise UnsupportedModel("It holds operators of integers.")

    (sentence,) = saturation("net.onnx", judged_as(0.4), refuse)
    assert "may saturate in net.onnx, and " in sentence
    assert sentence.endswith("It holds operators of integers.")
    assert ("with VNNI or AMX they do not" if here_saturates else "here they do not") in sentence
    assert alike_everywhere().endswith(f"this one is {'without' if here_saturates else 'with'} VNNI.")


def test_more_changed_answers_than_allowed_are_said():
    limited = DeploySettings(kind="quickest", most_changed=0.02)
    file = some_figures(0.0052, 0.62, 5, lost=0.045, kl=0.01)
    assert any(
        "4.5 % of the answers change (95 % interval 3.5 to 5.5), more than the 2 %" in each
        for each in said(limited, file=file)
    )
    assert len(said(DeploySettings(kind="quickest", most_changed=0.05), file=file)) == 1
