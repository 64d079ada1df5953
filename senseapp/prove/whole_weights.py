"""Which parts in float of an int8 file are worth weights of 32 bits rather than 8: the smallest first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

# times the bytes of the file, which may be half as large again as all-int8 with the small weights that it has in 32
# bits, and the share of the damage that weights in 32 bits must take away for them
_BYTES = ((1.1, 0.05), (1.4, 0.2))


def with_whole_weights(
    write: Callable[[Collection[str]], bytes],
    in_float: Sequence[str],
    damage: float,
    damage_of: Callable[[bytes], float],
) -> tuple[tuple[str, ...], bytes, float]:
    """Return the nodes whose weights are in 32 bits, the file, and its damage; no nodes where that is not worth it.

    Args:
        write: returns the file with the nodes ``in_float``, where weights of the given ones are in 32 bits.
        in_float: the nodes that compute in float.
        damage: of the file with all weights in 8 bits.
        damage_of: returns that of a file.
    """
    best, least, chosen = write(()), damage, tuple[str, ...]()
    small = len(best)
    sizes = {node: len(write((node,))) - small for node in in_float}
    ranked = [node for node in sorted(sizes, key=sizes.__getitem__) if sizes[node]]
    for most, gain in _BYTES:
        fitting, size = list[str](), small
        for node in ranked:
            size += sizes[node]
            fitting += [node] if size <= most * small else []
        if not fitting or len(fitting) == len(chosen):
            continue
        candidate = write(fitting)
        found = damage_of(candidate)
        if found <= (1 - gain) * damage and found < least:
            best, least, chosen = candidate, found, tuple(fitting)
    return chosen, best, least
