"""The table of ONNX operators, in one module for each kind."""

from senseapp.networks.onnx.operators import (
    attention,
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
    operation_of,
)

__all__ = [
    "NEVER_RUN",
    "REFUSED",
    "TABLE",
    "Attributes",
    "FormNotRead",
    "Operator",
    "attention",
    "elementwise",
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
