"""The table of ONNX operators, in one module for each kind."""

from senseapp.networks.onnx.operators import (  # noqa: F401  each enters its operators in the table
    elementwise,
    products,
    resize,
    shapes,
    windows,
)
from senseapp.networks.onnx.operators.registry import NEVER_RUN, TABLE, FormNotRead, entry_of, is_read, operation_of

__all__ = ["NEVER_RUN", "TABLE", "FormNotRead", "entry_of", "is_read", "operation_of"]
