"""Find classes of one name in two modules: ``python -m scripts.class_names`` exits with 1 and a line for each name."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def defined_twice(sources: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    """Return the names of module-level classes of more than one of ``sources``, (path, text), with the paths."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, source in sources:
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def main() -> int:
    """Print what occurs twice, and return the exit status."""
    paths = sorted((_ROOT / "senseapp").rglob("*.py"))
    twice = defined_twice((str(path.relative_to(_ROOT)), path.read_text(encoding="utf-8")) for path in paths)
    for name, places in twice.items():
        print(f"class {name} is defined in {', '.join(places)}")
    return 1 if twice else 0


if __name__ == "__main__":
    sys.exit(main())
