"""Targets: where a compressed network will run, which decides the runtime of its files and what is said of them."""

from dataclasses import dataclass

from senseapp.descriptions.runtimes import RUNTIMES, RuntimeDescription, runtime_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A computer or device that files are made for.

    Attributes:
        name, label: in settings and on the command line; the name people see.
        runtime_name: of the runtime that writes and measures its files.
        measured: what was measured on this computer and what was not, in a sentence; empty where files run here.
        loading: Python that opens the file ``{name}`` there; empty where the runtime's own does.
        takes_any: whether files for other runtimes are compared with its own, as they run there too.
    """

    name: str
    label: str
    runtime_name: str
    measured: str = ""
    loading: str = ""
    takes_any: bool = False

    @property
    def runtime(self) -> RuntimeDescription:
        """The runtime that writes and measures its files."""
        return runtime_words(self.runtime_name)

    def runs(self, runtime: str) -> bool:
        """Return whether files for the runtime of this name are for it."""
        return self.takes_any or runtime == self.runtime_name

    def check_installed(self) -> None:
        """Raise InvalidSpec, with how it is added, if the runtime of its files is not installed here."""
        RUNTIMES.named(self.runtime_name).check_installed()


_HERE = "Measured in {} on this computer"
_QNN = (
    'import onnxruntime; session = onnxruntime.InferenceSession("{name}", providers=["QNNExecutionProvider"], '
    'provider_options=[{"backend_path": "libQnnHtp.so"}])  # QnnHtp.dll on Windows'
)
TARGETS = {
    each.name: each
    for each in (
        Target(name="computer", label="This computer (.onnx)", runtime_name="onnxruntime", takes_any=True),
        Target(
            name="intel",
            label="Intel (OpenVINO)",
            runtime_name="openvino",
            measured=f"{_HERE.format('OpenVINO')}; not on Intel's graphics or NPUs.",
        ),
        Target(
            name="phone",
            label="Phone (LiteRT)",
            runtime_name="litert",
            measured=f"{_HERE.format('LiteRT')}: its times are not a phone's; measure there with benchmark_model.",
        ),
        Target(
            name="qualcomm",
            label="Qualcomm NPU (.onnx)",
            runtime_name="onnxruntime",
            measured=f"{_HERE.format('onnxruntime')}; not measured on the device.",
            loading=_QNN,
        ),
        Target(
            name="other",
            label="Other (.onnx)",
            runtime_name="onnxruntime",
            measured=f"{_HERE.format('onnxruntime')}; not measured on the device.",
        ),
    )
}
"""All targets by name, in the order in which they are offered; the first is also that of earlier runs."""
USUAL_TARGET = next(iter(TARGETS))


def target_of_file(runtime: str, wanted: str) -> Target:
    """Return the target of a file for a runtime: ``wanted``, if it is for that one, else the first that is.

    >>> target_of_file("litert", "computer").name, target_of_file("onnxruntime", "qualcomm").name
    ('phone', 'qualcomm')
    """
    own = [each for each in TARGETS.values() if each.runtime_name == runtime]
    return next((each for each in own if each.name == wanted), own[0] if own else TARGETS[USUAL_TARGET])
