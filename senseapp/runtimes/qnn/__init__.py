"""The simulator of Qualcomm's HTP, the NPU of its phones; its description loads neither torch nor the simulator."""

from senseapp.descriptions.runtimes import ProcessorDescription

QNN = ProcessorDescription(
    name="qnn",
    label="Qualcomm's HTP",
    operations="senseapp.runtimes.qnn.simulator:simulated",
    package="onnxruntime_qnn",
    added_by="pip install '.[qnn]' on Linux or Windows",
)
