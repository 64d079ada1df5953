"""Reports of one small network as each tool writes them: times per layer by name, and rows that are of no layer."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from senseapp.records.profile import LayerProfile, ModelProfile
from tests.schedule_cases import profile_of

MILLISECONDS = {"stem.conv": 1.5, "blocks.0.dw": 0.25, "blocks.0.pw": 0.5, "head": 0.125}
"""What each layer takes in every report below, exactly."""
OTHER = 0.0625
"""Milliseconds of the pooling, which is no layer."""
_SHAPES = {"stem.conv": (8, 3, 3, 3), "blocks.0.dw": (8, 1, 3, 3), "blocks.0.pw": (16, 8, 1, 1), "head": (5, 16)}
_OUTPUTS = {"stem.conv": (8, 16, 16), "blocks.0.dw": (8, 16, 16), "blocks.0.pw": (16, 16, 16), "head": (5,)}


def profile() -> ModelProfile:
    """A stem, a depthwise and a pointwise convolution, and a linear head."""
    made = profile_of({"stem.conv": 216, "blocks.0.dw": 72, "blocks.0.pw": 128, "head": 80})
    return replace(made, layers=tuple(_shaped(layer) for layer in made.layers))


def _shaped(layer: LayerProfile) -> LayerProfile:
    return replace(
        layer,
        layer_type="Linear" if layer.name == "head" else "Conv2d",
        weight_shape=_SHAPES[layer.name],
        input_shape={"stem.conv": (3, 16, 16), "head": (16,)}.get(layer.name, (8, 16, 16)),
        output_shape=_OUTPUTS[layer.name],
    )


def rows(names: Mapping[str, str], kinds: Mapping[str, str], pool: tuple[str, str]) -> list[tuple[str, str, float]]:
    """Return name, type and milliseconds of each row, as a tool calls them; pooling comes before the head."""
    found = [(names[layer], kinds[layer], spent) for layer, spent in MILLISECONDS.items()]
    return [*found[:3], (*pool, OTHER), found[3]]


ONNX_NAMES = {
    "stem.conv": "/stem/stem.conv/Conv",
    "blocks.0.dw": "/blocks/blocks.0/blocks.0.dw/Conv",
    "blocks.0.pw": "/blocks/blocks.0/blocks.0.pw/Conv",
    "head": "/head/Gemm",
}
ONNX_KINDS = {"stem.conv": "Conv", "blocks.0.dw": "Conv", "blocks.0.pw": "Conv", "head": "Gemm"}
ONNX_POOL = ("/pool/GlobalAveragePool", "GlobalAveragePool")


def ai_hub(*, names: Mapping[str, str] = ONNX_NAMES, **more: Any) -> str:
    """A profile job of Qualcomm AI Hub: whole microseconds, and 0.0625 ms of pooling as 62.5 rounded up."""
    layers = [
        {
            "name": name,
            "type": kind,
            "compute_unit": "NPU",
            "execution_time": round(1000 * spent),
            "execution_cycles": 9,
        }
        for name, kind, spent in rows(names, ONNX_KINDS, ONNX_POOL)
    ]
    summary = {
        "estimated_inference_time": 2500,
        "all_inference_times": [2500, 2600],
        "inference_memory_peak_range": [0, 1],
    }
    return json.dumps({"execution_summary": summary, "execution_detail": layers, **more})


def openvino_rows() -> list[list[str]]:
    """The cells of one pass."""
    kinds = {"stem.conv": "Convolution", "blocks.0.dw": "GroupConvolution", "blocks.0.pw": "Convolution"}
    names = {layer: f"{name}/WithoutBiases" for layer, name in ONNX_NAMES.items()}
    cells = [
        [name, "EXECUTED", kind, "jit_avx2_FP32", f"{spent:.6f}", f"{spent:.6f}"]
        for name, kind, spent in rows(names, kinds | {"head": "FullyConnected"}, ("/pool/ReduceMean", "ReduceMean"))
    ]
    gone = ["/relu/Relu", "OPTIMIZED_OUT", "Relu", "undef", "0.000000", "0.000000"]
    return [*cells[:1], gone, *cells[1:]]


OPENVINO_HEADER = ["layerName", "execStatus", "layerType", "execType", "realTime (ms)", "cpuTime (ms)"]


def openvino_csv(*, passes: int = 3, mark: str = ";") -> str:
    """Detailed counters of ``benchmark_app``; the first pass takes four times as long."""
    blocks = []
    for place in range(passes):
        slow = 4 if place == 0 else 1
        cells = [[*row[:4], f"{slow * float(row[4]):.6f}", row[5]] for row in openvino_rows()]
        total = ["Total", "", "", "", f"{slow * (sum(MILLISECONDS.values()) + OTHER):.4f}", "0"]
        blocks.append("\n".join(mark.join(row) for row in [OPENVINO_HEADER, *cells, total]) + "\n\n")
    return "".join(blocks)


def openvino_json() -> str:
    """The same counters as JSON, of the mean of all passes."""
    keys = ("name", "status", "node_type", "exec_type")
    nodes = [
        dict(zip(keys, row, strict=False)) | {"real_time": float(row[4]), "cpu_time": 0} for row in openvino_rows()
    ]
    return json.dumps({"report_type": "average", "avg_performance": {"nodes": nodes, "total_real_time": 2.4375}})


TFLITE_NAMES = {
    "stem.conv": "net/stem/conv/Relu;net/stem/conv/BiasAdd;net/stem/conv/Conv2D",
    "blocks.0.dw": "net/blocks/0/dw/depthwise",
    "blocks.0.pw": "net/blocks/0/pw/Conv2D",
    "head": "net/head/MatMul",
}
TFLITE_KINDS = {
    "stem.conv": "CONV_2D",
    "blocks.0.dw": "DEPTHWISE_CONV_2D",
    "blocks.0.pw": "CONV_2D",
    "head": "FULLY_CONNECTED",
}


def tflite(*, as_csv: bool = False, starts: bool = False) -> str:
    """What ``benchmark_model`` prints, or its CSV; with ``starts`` as older versions do."""
    head = [
        "node type",
        *(["start"] if starts else []),
        "first",
        "avg_ms",
        "%",
        "cdf%",
        "mem KB",
        "times called",
        "name",
    ]
    cells = [["ModifyGraphWithDelegate", "9.5", "9.5", "100%", "100%", "0", "1", "ModifyGraphWithDelegate/0"]]
    initial = [[*row[:1], *(["0"] if starts else []), *row[1:]] for row in cells]
    operations = [
        [kind, *(["0.011"] if starts else []), "4.5", f"{spent:g}", "10.5%", "10.5%", "0", "1", f"[{name}]:{place}"]
        for place, (name, kind, spent) in enumerate(rows(TFLITE_NAMES, TFLITE_KINDS, ("net/pool/Mean", "MEAN")))
    ]

    def table(title: str, part: list[list[str]]) -> list[str]:
        bar = "=" * 30
        if as_csv:
            return [f"{bar} {title} {bar}", ", ".join(head), *(", ".join(row) for row in part), ""]
        shown = [f"[{name}]" for name in head]
        return [f"{bar} {title} {bar}", *("\t".join(f"{cell:>12}" for cell in row) for row in [shown, *part]), ""]

    by_time = sorted(operations, key=lambda row: -float(row[3 if starts else 2]))
    return "\n".join(
        [
            "INFO: Loaded model net.tflite",
            "Profiling Info for Benchmark Initialization:",
            *table("Run Order", initial),
            *table("Top by Computation Time", initial),
            "Operator-wise Profiling Info for Regular Benchmark Runs:",
            *table("Run Order", operations),
            *table("Top by Computation Time", by_time),
            "Number of nodes executed: 5",
            "",
        ]
    )


XNNPACK_KINDS = {
    "stem.conv": "Convolution (NHWC, F32) IGEMM",
    "blocks.0.dw": "Convolution (NHWC, F32) DWConv",
    "blocks.0.pw": "Convolution (NHWC, F32) GEMM",
    "head": "Fully Connected (NC, F32) GEMM",
}
_NAMELESS = {layer: f"{kind} #1" for layer, kind in XNNPACK_KINDS.items()}
XNNPACK_ROWS = rows(_NAMELESS, XNNPACK_KINDS, ("Global Average Pooling (NWC, F32) #1", "Global Average Pooling"))


def etdump(*, passes: int = 3) -> str:
    """An ETDump as JSON, of a network that is one call of a delegate; the first pass takes four times as long."""
    runs: list[dict[str, Any]] = [
        {"name": "Default", "events": [_event("Method::init", 9.0), _event("Program::load_method", 9.5)]}
    ]
    for place in range(passes):
        slow = 4 if place == 0 else 1
        inside = [
            _event("", slow * spent, delegate_debug_id_str=f"{name} {number}", instruction_id=0)
            for number, (name, _, spent) in enumerate(XNNPACK_ROWS)
        ]
        whole = slow * 2.5
        outside = [("DELEGATE_CALL", whole), ("OPERATOR_CALL", whole), ("Method::execute", whole)]
        runs.append({"name": "Execute", "events": [*inside, *(_event(name, spent) for name, spent in outside)]})
    return json.dumps({"version": 0, "run_data": runs})


def _event(name: str, milliseconds: float, **more: Any) -> dict[str, Any]:
    start = 1_000_000
    return {"profile_event": {"name": name, "start_time": start, "end_time": start + round(1e6 * milliseconds), **more}}


def inspector(*, orient: str = "columns", unit: str = " (ms)", per_millisecond: float = 1.0) -> str:
    """The Inspector's table with modules of an ETRecord, as pandas writes it."""
    modules = {
        name: {f"aten_{place}": {"L__self__": ["", "Net"], f"L__self___{layer}": [layer, "torch.nn.Module"]}}
        for place, (name, layer) in enumerate(zip(_NAMELESS.values(), MILLISECONDS, strict=True))
    }
    frame = [
        {
            "event_block_name": "Execute",
            "event_name": name,
            f"p50{unit}": per_millisecond * spent,
            f"avg{unit}": 9 * per_millisecond * spent,
            "op_types": [kind],
            "module_hierarchy": modules.get(name, {}),
            "is_delegated_op": delegated,
        }
        for name, kind, spent, delegated in [
            *((*row, True) for row in XNNPACK_ROWS),
            ("DELEGATE_CALL", "", 2.5, False),
            ("Method::execute", "", 2.5, False),
            ("Method::init", "", 9.0, False),
        ]
    ]
    if orient == "records":
        return json.dumps(frame)
    return json.dumps({name: {str(place): row[name] for place, row in enumerate(frame)} for name in frame[0]})


def onnxruntime() -> str:
    """A profile of onnxruntime, of three runs of which the last takes longer."""
    events: list[dict[str, Any]] = [{"cat": "Session", "name": "model_run", "dur": 9000, "ph": "X"}]
    for slow in (1, 1, 7):
        events += [
            {
                "cat": "Node",
                "name": f"{name}_kernel_time",
                "dur": slow * 1000 * spent,
                "ph": "X",
                "args": {"op_name": kind, "output_type_shape": [{"float": [1, 8, 16, 16]}]},
            }
            for name, kind, spent in rows(ONNX_NAMES, ONNX_KINDS, ONNX_POOL)
        ]
    return json.dumps(events)


def trtexec() -> str:
    """A profile of TensorRT, whose layers are fused with what follows them."""
    layers = rows({layer: f"{name} + /relu/Relu" for layer, name in ONNX_NAMES.items()}, ONNX_KINDS, ONNX_POOL)
    return json.dumps(
        [{"count": 100}, *({"name": name, "averageMs": 2 * ms, "medianMs": ms} for name, _, ms in layers)]
    )


LITERT_NAMES = {
    "stem.conv": "Net/torch.nn.modules.container.Sequential_stem/torch.nn.modules.conv.Conv2d_conv;1",
    "blocks.0.dw": "Net/a.Sequential_blocks/a.Block_0/torch.nn.modules.activation.ReLU_act;;Net/a.Sequential_blocks/"
    "a.Block_0/torch.nn.modules.conv.Conv2d_dw;1",
    "blocks.0.pw": "Net/a.Sequential_blocks/a.Block_0/torch.nn.modules.conv.Conv2d_pw;1",
    "head": "Net/torch.nn.modules.linear.Linear_head",
}
"""As ``litert-torch`` writes them."""


def vela() -> str:
    """What Vela prints of a network at 500 MHz; it computes the pooling as a product."""
    operators = {"stem.conv": "Conv2D", "blocks.0.dw": "DepthwiseConv2D", "blocks.0.pw": "Conv2D"}
    made = [
        (kind, kind if kind != "Mean" else "DepthwiseConv2D", "NPU", f"{500_000 * spent:.0f}", name)
        for name, kind, spent in rows(LITERT_NAMES, operators | {"head": "FullyConnected"}, ("net/pool;1", "Mean"))
    ]
    made.insert(1, ("Conv2D", "Relu", "NPU", "0", LITERT_NAMES["stem.conv"]))
    widths = (20, 20, 6, 10, 20)

    def line(cells: tuple[str, ...]) -> str:
        return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))

    table = [("Original Operator", "NNG Operator", "Target", "Op Cycles", "Name"), tuple("-" * each for each in widths)]
    total = 500_000 * (sum(MILLISECONDS.values()) + OTHER)
    return "\n".join(
        [
            "Warning: No memory mode specified.",
            "Performance for NPU Graph net",
            *map(line, [*table, *made]),
            "",
            "Network summary for net",
            "Accelerator configuration               Ethos_U55_256",
            "Accelerator clock                                 500 MHz",
            "",
            "NPU operators = 6 (100.0%)",
            f"Total cycles                          {total:12.0f} cycles/batch",
            "",
        ]
    )


VELA_SUMMARY = (
    "experiment,network,accelerator_configuration,system_config,memory_mode,core_clock,inferences_per_second,"
    "batch_size,inference_time,nn_macs,cycles_npu,cycles_total\n"
    "default,net,Ethos_U55_256,Ethos_U55_High_End_Embedded,Shared_Sram,500000000.0,400.0,1,0.0025,496,9,1250000\n"
)
"""Some columns of Vela's summary, which has no operations."""
CALLS = (
    "INFO: Inference timings in us: Init: 9480, First inference: 3456, Warmup (avg): 2600.5, Inference (avg): 2500\n"
)
"""What ``benchmark_model`` prints of whole calls."""

SOUND = {
    "onnxruntime": onnxruntime(),
    "trtexec": trtexec(),
    "AI Hub": ai_hub(),
    "OpenVINO CSV": openvino_csv(),
    "OpenVINO JSON": openvino_json(),
    "TFLite": tflite(),
    "TFLite, older": tflite(starts=True),
    "TFLite CSV": tflite(as_csv=True),
    "TFLite CSV, older": tflite(as_csv=True, starts=True),
    "ETDump": etdump(),
    "Inspector": inspector(),
    "Inspector records": inspector(orient="records"),
    "Inspector in us": inspector(unit=" (us)", per_millisecond=1000.0),
    "Vela": vela(),
}
"""One sound report of each form, by what it is."""
