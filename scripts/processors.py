"""Run the tests of runtimes and int8 files as other processors would: ``python -m scripts.processors [NAME ...]``.

onnxruntime looks at the processor alone, and OpenVINO, told by its variable to keep to AVX2, crashes on a processor
that has more; so AVX2 is a processor that QEMU emulates (Debian: ``qemu-user``), which takes some ten times as long.
QEMU knows no AVX-512: without VNNI and with it, OpenVINO and torch are told by variables what to use, and onnxruntime
uses all that there is.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

_ROOT = Path(__file__).resolve().parent.parent
_TESTS = (
    "unit/runtimes/test_*.py",
    *(f"unit/prove/test_{name}.py" for name in ("int8_files", "deploy", "quantized_nodes", "check")),
    "unit/test_deploy_of_dead_networks.py",
)
_EMULATED = "avx2"
_PROCESSORS = {
    _EMULATED: ("avx2", {}),
    "avx512": ("avx512_f", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512"}),
    "vnni": ("avx512_vnni", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI", "ATEN_CPU_CAPABILITY": "avx512"}),
    "amx": ("amx_int8", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}),
}
"""What the machine must have, and the variables that hide the rest, by name."""


def run(name: str) -> bool:
    """Run the tests as one processor would; return whether they pass, or cannot be run here."""
    needed, variables = _PROCESSORS[name]
    emulator = next(filter(None, map(shutil.which, ("qemu-x86_64", "qemu-x86_64-static"))), None)
    if name == _EMULATED and emulator is None:
        print(f"{name}: not run, as qemu-user is not installed", flush=True)
        return True
    if not torch.cpu.get_capabilities().get(needed):
        print(f"{name}: not run, as this processor has no {needed}", flush=True)
        return True
    print(name, flush=True)
    files = sorted(str(path) for pattern in _TESTS for path in (_ROOT / "tests").glob(pattern))
    program = [emulator, "-cpu", "Haswell"] if name == _EMULATED and emulator else []
    tests = [*program, sys.executable, "-m", "pytest", "-q", "-n", "0", "--timeout", "0", *files]
    environment = os.environ | variables | {"OMP_NUM_THREADS": "1"}
    return not subprocess.run(tests, cwd=_ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    passed = [run(name) for name in sys.argv[1:] or _PROCESSORS]
    sys.exit(not all(passed))
