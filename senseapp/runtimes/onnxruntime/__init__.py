"""The runtime onnxruntime; its description loads neither torch nor onnxruntime."""

from senseapp.descriptions.runtimes import RuntimeDescription

ONNXRUNTIME = RuntimeDescription(
    name="onnxruntime",
    label="onnxruntime",
    file_title=".onnx file",
    suffix=".onnx",
    operations="senseapp.runtimes.onnxruntime.operations:OPERATIONS",
    has_int8=True,
    converters="onnxruntime, NNCF and Qualcomm's NPU",
    opened_by="onnxruntime and other programs that open .onnx",
    runs_on="on phones, servers and in browsers",
    loading='import onnxruntime; session = onnxruntime.InferenceSession("{name}")',
    running="scores = session.run(None, {session.get_inputs()[0].name: images})[0]",
    warm_up=("torch.onnx", "onnxscript", "senseapp.runtimes.onnxruntime.operations"),
)
