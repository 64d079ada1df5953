"""The runtime LiteRT (TensorFlow Lite); its description loads neither torch nor LiteRT."""

from senseapp.descriptions.runtimes import RuntimeDescription

LITERT = RuntimeDescription(
    name="litert",
    label="LiteRT",
    file_title="LiteRT file",
    suffix=".tflite",
    operations="senseapp.runtimes.litert.operations:OPERATIONS",
    package="litert_torch",
    added_by="pip install '.[litert]'",
    has_int8=True,
    has_int8_ends=True,
    opened_by="LiteRT and TensorFlow Lite on Android, iOS, Linux and microcontrollers",
    runs_on="on phones and small devices",
    loading="from ai_edge_litert.interpreter import Interpreter; "
    'network = Interpreter("{name}").get_signature_runner(); (name,) = network.get_input_details()',
    running="scores = network(**{name: images[:1]})  # one image a call",
    converters="litert-quantizer",
    on_device="adb push benchmark_model {name} /data/local/tmp/\n"
    "adb shell chmod +x /data/local/tmp/benchmark_model\n"
    "adb shell /data/local/tmp/benchmark_model --graph=/data/local/tmp/{name} --num_threads=1 "
    "--enable_op_profiling=true > phone.txt\n"
    "vela {name} --verbose-performance --verbose-cycle-estimate > vela.txt  # estimates for a microcontroller",
)
