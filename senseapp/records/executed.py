"""What a runtime executes in a call of a file: its nodes, and the share of products that compute in integers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from senseapp.core.registry import grouped
from senseapp.core.texts import first_names, plural


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedNode:
    """A node that a runtime executes in a call of a file, named as in the file; what is no product, as in the runtime.

    Attributes:
        macs: multiply-accumulates; 0 of what is no product.
        is_rounded: whether the file rounds all that a product reads to integers.
        was_kept: whether a search left it in float.
    """

    name: str
    kind: str
    in_integers: bool
    macs: int = 0
    is_rounded: bool = False
    was_kept: bool = False

    @property
    def reason(self) -> str:
        """Why it is in float."""
        if self.is_rounded:
            return "the runtime computes it in float"
        return "8 bits harm the answers" if self.was_kept else "not quantized"


LEAST_INTEGERS = 0.5
"""Share of the multiplications in integers from which on a file is called one in 8-bit numbers."""
LEAST_WORDS = f"A file is called one in 8-bit numbers from {100 * LEAST_INTEGERS:.0f} % of its multiplications on."


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerShare:
    """How many nodes a runtime executes in a call of a file, and how many of them in integers.

    Nodes that only convert numbers do not count; ``products`` are the convolutions and matrix products.
    """

    nodes: int
    integer_nodes: int
    products: tuple[ExecutedNode, ...]

    @classmethod
    def of(cls, nodes: Sequence[ExecutedNode], *, kept: Collection[str], layers: Mapping[str, str]) -> Self | None:
        """Return that of ``nodes``; None without products. A search ``kept`` some in float; ``layers`` are of nodes."""
        products = tuple(
            replace(each, name=layers.get(each.name, each.name), was_kept=each.name in kept)
            for each in nodes
            if each.macs
        )
        inside = sum(each.in_integers for each in nodes)
        return cls(nodes=len(nodes), integer_nodes=inside, products=products) if products else None

    @property
    def in_float(self) -> list[ExecutedNode]:
        """The products in float, the largest first."""
        return sorted((each for each in self.products if not each.in_integers), key=lambda each: -each.macs)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of a call."""
        return sum(each.macs for each in self.products)

    @property
    def share(self) -> float:
        """Of the multiplications, in integers."""
        return 1 - sum(each.macs for each in self.in_float) / self.macs

    @property
    def sentence(self) -> str:
        """``94 % of the multiplications are computed in integers (52 of 55 products); 3 stay in float: …``."""
        left, count = self.in_float, len(self.products)
        share = f"{min(100 * self.share, 99.9 if left else 100):.1f}".removesuffix(".0")
        said = f"{share} % of the multiplications are computed in integers ({count - len(left)} of "
        said += plural(count, "product")
        by_reason = grouped((each.reason, each.name) for each in left).items()
        parts = "; ".join(f"{first_names(names)} ({reason})" for reason, names in by_reason)
        said += f"); {'1 stays' if len(left) == 1 else f'{len(left)} stay'} in float: {parts}." if left else ")."
        # OpenVINO multiplies weights of 8 bits in integers where their input is rounded for another node
        if vain := [each.name for each in self.products if each.in_integers and each.was_kept]:
            said += f" Left in float by the file, but computed in integers by the runtime: {first_names(vain)}."
        return said if self.share >= LEAST_INTEGERS else f"{said} {LEAST_WORDS}"
