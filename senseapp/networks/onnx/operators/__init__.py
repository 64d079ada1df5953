"""The table of ONNX operators, in one module for each kind."""

from senseapp.networks.onnx.operators import (
    elementwise,
    normalisation,
    products,
    quantized,
    recurrent,
    reductions,
    resize,
    selection,
    shapes,
    windows,
)
from senseapp.networks.onnx.operators.registry import (
    NEVER_RUN,
    REFUSED,
    TABLE,
    Attributes,
    FormNotRead,
    Operator,
    entry_of,
    operation_of,
)

__all__ = [
    "NEVER_RUN",
    "REFUSED",
    "TABLE",
    "Attributes",
    "FormNotRead",
    "Operator",
    "elementwise",
    "entry_of",
    "normalisation",
    "operation_of",
    "products",
    "quantized",
    "recurrent",
    "reductions",
    "resize",
    "selection",
    "shapes",
    "windows",
]
