"""Names of files say what the files hold, whatever the run is called."""

import pytest

from senseapp.records.candidate import file_name, named, network_name
from senseapp.records.deployment import DeploySettings
from senseapp.records.promise import images_text
from senseapp.records.schedule import Schedule, ScheduleEntry
from senseapp.records.spec import ModelSpec
from tests.deployments import a_candidate, a_deployment


def schedule(**levels: tuple[str, float]) -> Schedule:
    entries = tuple(
        ScheduleEntry(layer=layer, members=(layer,), compression=kind, level=level)
        for layer, (kind, level) in levels.items()
    )
    return Schedule(model="demo", method="optimal", entries=entries)


PRUNED, ZEROS = schedule(a=("pruning", 0.5), b=("none", 0.0)), schedule(a=("sparsity", 0.5))
BITS, WIDTHS = schedule(a=("quantization", 4)), schedule(a=("quantization", 4), b=("quantization", 8))


@pytest.mark.parametrize(
    ("form", "made_of", "expected"),
    [
        ("int8", None, "digits-int8.onnx"),
        ("int8", PRUNED, "digits-pruned-int8.onnx"),
        ("mixed", None, "digits-partly-int8.onnx"),
        ("onnx", ZEROS, "digits-sparse.onnx"),
        ("onnx", BITS, "digits-4bit.onnx"),
        ("weights", WIDTHS, "digits-4-8bit.safetensors"),
        ("weights", schedule(a=("sparsity", 0.0), b=("none", 0.0)), "digits.safetensors"),
        ("weights", schedule(a=("sparsity", 0.5), b=("quantization", 8)), "digits-sparse-8bit.safetensors"),
    ],
)
def test_the_name_says_what_is_inside(form, made_of, expected) -> None:
    assert file_name(ModelSpec(), a_candidate(form, schedule=made_of)) == expected


def test_images_that_chose_a_schedule_are_said_in_the_same_words_everywhere() -> None:
    seen = images_text(200, held_out=False)
    assert seen == "200 images also used to make or choose it"
    assert seen in a_candidate("weights", schedule=ZEROS, held_out=False).headline
    assert a_candidate("weights", schedule=ZEROS).measured_on == images_text(200, held_out=True)


def test_files_of_one_schedule_are_told_apart_in_words() -> None:
    made = [a_candidate(form, schedule=PRUNED).made_of for form in ("onnx", "int8", "weights")]
    assert made[0] == ".onnx file in full precision, fewer channels in 1 of 2 layers"
    assert len(set(made)) == 3
    assert a_candidate("onnx", schedule=WIDTHS).made_of == ".onnx file, 4 to 8 bits a weight, layer by layer"
    as_large = a_candidate("onnx", schedule=WIDTHS, size=18_700_000).made_of
    assert as_large == ".onnx file, 4 to 8 bits a weight, layer by layer, stored about as large as the original"


def test_a_file_with_16_bit_activations_says_so() -> None:
    settings = DeploySettings(kind="int8", runtime="litert", activation_bits=16)
    candidate = a_candidate(
        "int8", file=f"deployed-{16 * 'a'}.tflite", deployment=a_deployment(settings=settings, in_float=())
    )
    assert file_name(ModelSpec(), candidate) == "digits-w8a16.tflite"
    assert candidate.made_of == "LiteRT file in 8-bit numbers, 16-bit activations"


def test_a_file_that_computes_in_float_with_weights_in_8_bits() -> None:
    candidate = a_candidate("onnx", deployment=a_deployment(in_float=("conv1",)))
    assert file_name(ModelSpec(), candidate) == "digits-int8-weights.onnx"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ModelSpec(), "digits"),
        (ModelSpec(library="demo", name="efficientnet_lite0"), "efficientnet-lite0"),
        (ModelSpec(library="timm", name="resnet18.a1_in1k"), "resnet18-a1-in1k"),
        (ModelSpec(library="auto", checkpoint="/home/a/My net.v2.pth"), "my-net-v2"),
        (ModelSpec(library="auto", checkpoint="C:\\a\\…\\n.pth"), "n"),
        (ModelSpec(library="auto", checkpoint="/a/网络.pth"), "network"),
    ],
)
def test_the_network_comes_first(model, expected) -> None:
    assert network_name(model) == expected
    assert named(model, ZEROS, ".pt2") == f"{expected}-sparse.pt2"
