"""The runtime OpenVINO; its description loads neither torch nor OpenVINO."""

from senseapp.descriptions.runtimes import RuntimeDescription

OPENVINO = RuntimeDescription(
    name="openvino",
    label="OpenVINO",
    file_title="OpenVINO ONNX",
    suffix=".onnx",
    operations="senseapp.runtimes.openvino.operations:OPERATIONS",
    package="openvino",
    added_by="pip install '.[openvino]'",
    has_int8=True,
    converters="onnxruntime, NNCF and Qualcomm's NPU",
    opened_by="OpenVINO, onnxruntime and other programs that open .onnx",
    runs_on="on processors of PCs and servers",
    loading='import openvino; core = openvino.Core(); network = core.read_model("{name}"); '
    "network.reshape({0: images.shape}); "
    'session = core.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})',
    running="scores = session([images])[0]",
)
