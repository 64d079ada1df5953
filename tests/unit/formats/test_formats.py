import json
from dataclasses import replace

import pytest
import yaml
from torch import nn

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.core.errors import InvalidSchedule
from senseapp.formats.plain import read_schedule
from senseapp.formats.registry import FORMATS
from senseapp.records.schedule import Schedule, ScheduleEntry
from senseapp.solve.problem import manual_schedule
from tests.schedule_cases import SIZES, profile_of, run_of

PROFILE = profile_of(SIZES)
NAMES = (
    "json csv yaml fasterai-sparsifier fasterai-pruner distiller sparseml nni2 nni3 torch-pruning torchao modelopt "
    "model-explorer"
)


def schedule_of(compression, levels, members=None):
    entries = [
        ScheduleEntry(
            layer=layer,
            members=(members or {}).get(layer, (layer,)),
            compression=compression if level else "none",
            level=level,
        )
        for layer, level in levels.items()
    ]
    return Schedule(model="toy", method="optimal", entries=tuple(entries), metric="kl")


SPARSE = schedule_of("sparsity", {"conv1": 0.005, "conv2": 0.07, "conv3": 0.8, "fc": 0})
PRUNED = schedule_of("pruning", {"conv1": 0.25, "conv3": 0.01}, {"conv1": ("conv1", "conv2")})
QUANTIZED = schedule_of("quantization", {"conv1": 8, "conv2": 4, "conv3": 3, "fc": 0})
BY_COMPRESSION = {"sparsity": SPARSE, "pruning": PRUNED, "quantization": QUANTIZED}


def written(name, schedule, profile=PROFILE):
    return FORMATS[name].write(schedule, profile)


@pytest.mark.parametrize("name", [name for name in NAMES.split() if name != "model-explorer"])
@pytest.mark.parametrize("compression", list(BY_COMPRESSION))
def test_each_format_writes_what_it_can_express_and_refuses_the_rest(name, compression):
    schedule = BY_COMPRESSION[compression]
    if compression in (FORMATS[name].compressions or BY_COMPRESSION):
        assert written(name, schedule)
        assert FORMATS[name].refusal(schedule) == ""
    else:
        with pytest.raises(InvalidSchedule, match=f"contains {compression}"):
            written(name, schedule)


def test_only_native_files_hold_two_compressions():
    both = replace(SPARSE, entries=(SPARSE.entries[0], QUANTIZED.entries[0]))
    for name in ("json", "csv", "yaml"):
        assert written(name, both)
    with pytest.raises(InvalidSchedule, match="holds one compression"):
        written("nni3", both)
    with pytest.raises(InvalidSchedule, match="needs the network itself"):
        written("model-explorer", SPARSE)


def test_fasterai_sparsifier_gets_percent():
    assert json.loads(written("fasterai-sparsifier", SPARSE)) == {"conv1": 0.5, "conv2": 7.0, "conv3": 80.0}


def test_torch_pruning_gets_fractions():
    fractions = {"conv1": 0.25, "conv2": 0.25, "conv3": 0.01}
    assert json.loads(written("torch-pruning", PRUNED)) == json.loads(written("fasterai-pruner", PRUNED)) == fractions


def test_distiller_gets_fractions_by_parameter_name():
    recipe = yaml.safe_load(written("distiller", SPARSE))
    assert recipe["version"] == 1
    ((name, pruner),) = recipe["pruners"].items()
    assert pruner["class"] == "SparsityLevelParameterPruner"
    levels = {"conv1.weight": 0.005, "conv2.weight": 0.07, "conv3.weight": 0.8}
    assert pruner["levels"] == {**levels, **{f"module.{name}": level for name, level in levels.items()}, "*": 0.0}
    assert recipe["policies"] == [{"pruner": {"instance_name": name}, "epochs": [0]}]


class _Tagged(yaml.SafeLoader):
    """Reads any ``!Modifier`` as (name, settings), as a recipe reader would."""


_Tagged.add_multi_constructor("!", lambda loader, tag, node: (tag, loader.construct_mapping(node, deep=True)))


def test_sparseml_gets_one_modifier_per_distinct_sparsity():
    even = schedule_of("sparsity", {"conv1": 0.5, "conv2": 0.8, "conv3": 0.5, "fc": 0.02})
    first, *pruning = yaml.load(written("sparseml", even), _Tagged)["modifiers"]
    assert first == ("EpochRangeModifier", {"start_epoch": 0.0, "end_epoch": 60.0})
    assert {name for name, _ in pruning} == {"GMPruningModifier"}
    assert {settings["final_sparsity"]: settings["params"] for _, settings in pruning} == {
        0.02: ["fc.weight"],
        0.5: ["conv1.weight", "conv3.weight"],
        0.8: ["conv2.weight"],
    }
    for _, settings in pruning:
        assert settings["init_sparsity"] <= settings["final_sparsity"]
        assert settings["end_epoch"] <= first[1]["end_epoch"]
        assert settings["mask_type"] == "unstructured"


def test_nni2_names_types_and_fractions_or_bits():
    assert json.loads(written("nni2", PRUNED))[0] == {
        "op_names": ["conv1"],
        "op_types": ["Conv2d"],
        "sparsity_per_layer": 0.25,
    }
    assert json.loads(written("nni2", QUANTIZED))[1] == {
        "op_names": ["conv2"],
        "op_types": ["Conv2d"],
        "quant_types": ["weight"],
        "quant_bits": {"weight": 4},
    }


def test_nni3_gives_ratios_or_integer_types():
    assert json.loads(written("nni3", SPARSE)) == [
        {"op_names": ["conv1"], "sparse_ratio": 0.005},
        {"op_names": ["conv2"], "sparse_ratio": 0.07},
        {"op_names": ["conv3"], "sparse_ratio": 0.8},
    ]
    entry = json.loads(written("nni3", QUANTIZED))[2]
    assert (entry["quant_dtype"], entry["granularity"], entry["target_names"]) == ("int3", "out_channel", ["weight"])


def transposed(name):
    layers = tuple(replace(layer, channel_axis=1) if layer.name == name else layer for layer in PROFILE.layers)
    return replace(PROFILE, layers=layers)


def test_transposed_convolutions_have_their_channels_on_the_other_axis():
    profile = transposed("conv1")
    assert json.loads(written("nni3", QUANTIZED, profile))[0]["granularity"] == "in_channel"
    assert json.loads(written("modelopt", QUANTIZED, profile))["quant_cfg"][1]["cfg"]["axis"] == 1
    config = json.loads(written("torchao", QUANTIZED, profile))
    assert list(config["_data"]["fqn_to_config"]) == ["conv2", "conv3"]
    assert config["_notes"][-1].endswith("layers other than Conv2d and Linear: conv1.")
    with pytest.raises(InvalidSchedule, match="all of these layers are"):
        written("torchao", schedule_of("quantization", {"conv1": 8}), profile)


class _Features(nn.Module):
    """Named as torchvision's AlexNet and VGG are."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 1))
        self.classifier = nn.Sequential(nn.Linear(4, 2))


def _as_it_is(model):
    return model


def _features_wrapped(model):
    model.features = nn.DataParallel(model.features)
    return model


@pytest.mark.parametrize("wrapped", [_as_it_is, nn.DataParallel, _features_wrapped])
def test_distiller_finds_every_weight_however_the_model_is_wrapped(wrapped):
    """Its pruner asks for ``levels.get(name, levels["*"])`` of every named parameter, and takes a miss for 0."""
    model = _Features()
    profile = profile_model_of(model)
    schedule = schedule_of("sparsity", {"features.0": 0.5, "classifier.0": 0.25})
    levels = yaml.safe_load(written("distiller", schedule, profile))["pruners"]["senseapp_levels"]["levels"]
    found = [levels.get(name, levels["*"]) for name, _ in wrapped(model).named_parameters() if "weight" in name]
    assert found == [0.5, 0.25]


def test_no_name_of_a_layer_ends_a_comment():
    profile = replace(PROFILE, layers=(replace(PROFILE.layers[0], name="a\nb: 1", parameter="a\nb: 1.weight"),))
    schedule = replace(schedule_of("sparsity", {"a\nb: 1": 0.5}), file_notes=("a\nb: 1 is odd.",))
    for name in ("distiller", "sparseml"):
        assert written(name, schedule, profile).startswith("# a b: 1 is odd.\n")


def profile_model_of(model):
    layers = tuple(
        replace(PROFILE.layers[0], name=name, parameter=f"{name}.weight")
        for name, module in model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    )
    return replace(PROFILE, layers=layers)


def changed(**fields):
    """Return the profile with another first layer."""
    return replace(PROFILE, layers=(replace(PROFILE.layers[0], **fields), *PROFILE.layers[1:]))


def test_torchao_leaves_grouped_convolutions_out_and_says_so():
    profile = changed(weight_shape=(8, 1, 3, 3), input_shape=(8, 5, 5))
    config = json.loads(written("torchao", QUANTIZED, profile))
    assert list(config["_data"]["fqn_to_config"]) == ["conv2", "conv3"]
    grid, left_out = config["_notes"]
    assert "from -8 to 7" in grid
    assert left_out.endswith(": conv1.")


def test_the_joint_projection_of_attention_is_left_out_where_no_tool_finds_it():
    profile = changed(layer_type="MultiheadAttention", parameter="conv1.in_proj_weight")
    for name in ("modelopt", "nni3", "torchao"):
        assert FORMATS[name].notes(QUANTIZED, profile)[-1].endswith(": conv1.")
        assert '"conv1' not in written(name, QUANTIZED, profile)


SETTINGS = {
    "sparsity": SparsityConfig(granularity="filter"),
    "quantization": QuantizationConfig(granularity="tensor", activations=True),
}


@pytest.mark.parametrize(
    ("name", "compression"),
    [
        (name, compression)
        for name in NAMES.split()
        for compression in SETTINGS
        if name != "model-explorer" and compression in (FORMATS[name].compressions or SETTINGS)
    ],
)
def test_what_a_file_cannot_say_stands_in_it(name, compression):
    target, config = FORMATS[name], SETTINGS[compression]
    run = run_of(
        SIZES,
        {"conv1": (0.1,)},
        (4,) if compression == "quantization" else (0.5,),
        config=config,
        compression=compression,
    )
    schedule = manual_schedule(run, {"conv1": 4 if compression == "quantization" else 0.5})
    assert schedule.file_notes == config.schedule_notes
    text = " ".join(written(name, schedule).replace("\n  ", " ").split())
    assert all(note in text for note in config.schedule_notes)
    assert len(config.schedule_notes) == (2 if compression == "quantization" else 1)
    if target.mixes:
        assert read_schedule(written(name, schedule), PROFILE).entries == schedule.entries


def test_the_lines_that_apply_a_file_are_python_and_name_it():
    for name, target in FORMATS.items():
        for schedule in BY_COMPRESSION.values():
            lines = target.lines(schedule, "some.json")
            assert '"some.json"' in lines or " some.json " in lines, name
            if not target.mixes:
                compile(lines, name, "exec")
    assert "some.pt2" in FORMATS["model-explorer"].lines(SPARSE, "some.json")


def test_modelopt_turns_everything_off_first():
    config = json.loads(written("modelopt", QUANTIZED))
    assert config["algorithm"] == "max"
    assert config["quant_cfg"] == [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "conv1.weight_quantizer", "cfg": {"num_bits": 8, "axis": 0}},
        {"quantizer_name": "conv2.weight_quantizer", "cfg": {"num_bits": 4, "axis": 0}},
        {"quantizer_name": "conv3.weight_quantizer", "cfg": {"num_bits": 3, "axis": 0}},
    ]


def test_torchao_has_the_structure_of_its_own_writer():
    config = json.loads(written("torchao", QUANTIZED))
    assert (config["_type"], config["_version"]) == ("FqnToConfig", 1)
    layers = config["_data"]["fqn_to_config"]
    assert config["_data"]["module_fqn_to_config"] == layers
    assert list(layers) == ["conv1", "conv2", "conv3"]
    assert [layer["_data"]["weight_dtype"]["_data"] for layer in layers.values()] == ["int8", "int4", "int3"]
    assert {(layer["_type"], layer["_version"]) for layer in layers.values()} == {("IntxWeightOnlyConfig", 2)}


@pytest.mark.parametrize("name", [name for name in NAMES.split() if name != "model-explorer"])
def test_a_schedule_of_another_model_names_the_first_missing_layers(name):
    other = schedule_of(
        (FORMATS[name].compressions or ("sparsity",))[0],
        dict.fromkeys(("a", "b", "c", "d", "conv1"), 4 if name in ("torchao", "modelopt") else 0.5),
    )
    with pytest.raises(InvalidSchedule, match=r"4 of its 5 layers do not exist in toy \(a, b, c and 1 more\)"):
        written(name, other)


@pytest.mark.parametrize(
    ("compression", "level"),
    [
        ("sparsity", 1.0),
        ("sparsity", -0.1),
        ("sparsity", float("nan")),
        ("pruning", 30.0),
        ("quantization", 1.0),
        ("quantization", 9.0),
        ("quantization", float("nan")),
        ("magic", 0.5),
    ],
)
def test_levels_out_of_range_are_never_written(compression, level):
    with pytest.raises(InvalidSchedule, match="conv1"):
        written("json", schedule_of(compression, {"conv1": level}))
