"""Names of modules from what exporters leave in a file: text only, never a path or code."""

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from itertools import accumulate, zip_longest

from senseapp.core.foreign_values import BadValue, items, read_python

_SCOPES = "pkg.torch.onnx.name_scopes"
# modules in modules, and characters of one: far above torch's networks; names of functions add some
_DEEPEST, _LONGEST = 24, 120
_MODULE = re.compile(r"\._*[A-Z][A-Za-z0-9]*_(\w+)$")  # a part of a path as litert-torch writes it: class, then name
FOLDED = "ConvBnFusion_W_"
"""Before the name of a weight that onnxruntime folded a norm into."""


def module_path(metadata: Mapping[str, str], node_name: str) -> str | None:
    """Return the dotted path of the module that a node was exported from; None where the file does not say.

    torch's newer exporter stores the modules around a node, outermost first, the node itself last; its older one names
    nodes ``/layer1/layer1.0/conv1/Conv``. Of all metadata only the module names are read.
    """
    stored = metadata.get(_SCOPES, "")
    with suppress(BadValue):
        scopes = items(read_python(stored), "scopes") if len(stored) < 10_000 else []
        if named := [each for each in scopes if isinstance(each, str)]:
            return named[-2] if len(named) > 1 else ""
    if node_name.startswith("/") and node_name.count("/") < _DEEPEST * 4:
        return ".".join(_merged(node_name.split("/")[1:-1]))
    return None


def _merged(parts: list[str]) -> list[str]:
    """Return path parts without those that the next one repeats: layer1, layer1.0 → layer1.0."""
    parts = list(filter(None, parts))
    return [part for part, after in zip_longest(parts, parts[1:], fillvalue="") if not after.startswith(f"{part}.")]


def modules_in(name: str) -> tuple[str, ...]:
    """Return the modules that litert-torch puts into the names of operators.

    >>> modules_in("Net/torch.nn.modules.container.Sequential_stem/torch.nn.modules.conv.Conv2d_0;1")
    ('stem.0',)
    """
    paths = ([_MODULE.search(part) for part in path.split("/")] for path in name.split(";"))
    return tuple(filter(None, (".".join(part[1] for part in path if part is not None) for path in paths)))


def tells_of_folding(weight: str, bias: str) -> bool:
    """Return whether a convolution's tensors have the names of those with a norm folded in.

    torch's older exporter numbers them, the newer one names the new bias by the weight, and onnxruntime puts a word
    before the weight's name.

    >>> tells_of_folding("onnx::Conv_20", "onnx::Conv_21"), tells_of_folding("0.weight", "0.weight_bias")
    (True, True)
    >>> tells_of_folding("0.weight", "0.bias")
    False
    """
    return weight.startswith(("onnx::Conv", FOLDED)) or (bool(weight) and bias == f"{weight}_bias")


class Names:
    """Gives out unique dotted names; a name inside that of a leaf is joined by an underscore instead of a dot.

    ``reserved`` tells of words that a torch module cannot hold as an attribute.
    """

    def __init__(self, reserved: frozenset[str]) -> None:
        self._reserved = reserved
        self._leaves: set[str] = set()
        self._scopes: set[str] = set()
        self._counters = Counter[str]()

    def claim(self, wanted: str) -> str:
        """Return a name near ``wanted`` that no leaf or scope has yet, and take it for a leaf."""
        parts = self._parts(wanted)
        base = name = reduce(lambda path, part: f"{path}{'_' if path in self._leaves else '.'}{part}", parts)
        while name in self._leaves or name in self._scopes:
            self._counters[base] += 1
            name = f"{base}_{self._counters[base]}"
        self._leaves.add(name)
        self._scopes.update(accumulate(name.split(".")[:-1], "{}.{}".format))
        return name

    def _parts(self, wanted: str) -> list[str]:
        told = filter(str.strip, wanted[: 10 * _LONGEST].split("."))
        parts = [re.sub(r"\W", "_", part, flags=re.ASCII) for part in told] or ["node"]
        parts = [f"{part}_" if part in self._reserved else part for part in parts]
        if len(parts) > _DEEPEST:
            parts = [*parts[: _DEEPEST - 1], "_".join(parts[_DEEPEST - 1 :])]
        return [part[:_LONGEST] for part in parts]
