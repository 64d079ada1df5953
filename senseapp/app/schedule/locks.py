"""Locks and limits of single layers as a text in the address: ``1a2b~3f0.5~7a0.1~7b0.9``.

The first part is a check sum of the names of the layers, so that the text is never taken for another network. Then
come places in the network with what was set: ``f`` for a layer that is locked at a level, ``a`` for at least, ``b``
for at most.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from senseapp.app.common.address import Form, number
from senseapp.app.common.state import LayerEdits

_PART = re.compile(r"(\d{1,5})([fab])([0-9.e-]{1,20})")
_BETWEEN = "~"


def edits_form(layers: Sequence[str], bounds: tuple[float, float]) -> Form[LayerEdits]:
    """Return the form of what was set for single ``layers``, within the ``bounds`` of levels."""
    places = {layer: place for place, layer in enumerate(layers)}
    check, level = f"{zlib.crc32(' '.join(layers).encode()) & 0xFFFF:04x}", number(*sorted(bounds))
    typed = number()  # the schedule says what is wrong with a level out of bounds; a link with one is not taken

    def write(edits: LayerEdits) -> str:
        if unknown := (edits.fixed.keys() | edits.bounds.keys()) - places.keys():
            raise ValueError(f"no such layers: {unknown}")
        parts = [(places[layer], "f", value) for layer, value in edits.fixed.items()]
        for layer, (least, most) in edits.bounds.items():
            parts += [(places[layer], kind, end) for kind, end in (("a", least), ("b", most)) if end is not None]
        return _BETWEEN.join([check, *(f"{place}{kind}{typed.write(value)}" for place, kind, value in sorted(parts))])

    def read(text: str) -> LayerEdits:
        begins, *parts = text.split(_BETWEEN)
        if begins != check:
            raise ValueError("of another network")
        edits = LayerEdits()
        for part in parts:
            found = _PART.fullmatch(part)
            if found is None or int(found[1]) >= len(layers):
                raise ValueError("no such layer")
            layer, value = layers[int(found[1])], level.read(found[3])
            if found[2] == "f":
                edits.fixed[layer] = value
            else:
                least, most = edits.bounds.get(layer, (None, None))
                edits.bounds[layer] = (value, most) if found[2] == "a" else (least, value)
        return edits

    return Form(write, read)
