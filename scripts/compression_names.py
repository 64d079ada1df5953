"""Find code that asks which compression it has in front of it, instead of asking its description.

``python -m scripts.compression_names`` exits with 1 and one line per place where a module outside the folders of the
compressions writes the name of one as a value (compared, a key, an element, an argument) or tests for the class of its
settings. Readers and writers of other tools' files may name compressions: those files do.
"""

import ast
import sys
from collections.abc import Iterator

from scripts.markup import report, searched
from senseapp import descriptions

_OWN_FOLDERS = {"compressions", "descriptions"}
_OTHER_TOOLS = {"config_formats", "distiller", "fraction_formats"}
"""Folders and modules that read or write files of other tools."""
_TYPE_TESTS = {"isinstance", "issubclass"}
_ASK = "ask its description in senseapp.compressions instead"


def names_in(source: str, _file: str = "") -> Iterator[tuple[int, str]]:
    """Yield line and reason of each place in ``source`` that depends on which compression there is.

    A default of a parameter is none: it says what is usual, and nothing is decided by it.
    """
    tree = ast.parse(source)
    kinds = set(descriptions.names())
    classes = {description.config.__name__ for description in descriptions.all_descriptions()}
    defaults = {id(node) for node in _defaults(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in kinds and id(node) not in defaults:
            yield node.lineno, f"names {node.value!r}; {_ASK}"
        elif isinstance(node, ast.MatchClass) and (tested := _named(node.cls) & classes):
            yield node.cls.lineno, f"tests for {', '.join(sorted(tested))}; {_ASK}"
        elif _tests_types(node) and (tested := _named(node) & classes):
            yield getattr(node, "lineno", 0), f"tests for {', '.join(sorted(tested))}; {_ASK}"


def _defaults(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            yield from (each for each in (*node.defaults, *node.kw_defaults) if each is not None)


def _tests_types(node: ast.AST) -> bool:
    """Return whether ``node`` is ``isinstance(…)``, ``issubclass(…)`` or a comparison, as of ``type(…)``."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TYPE_TESTS
    return called or isinstance(node, ast.Compare)


def _named(node: ast.AST) -> set[str]:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


if __name__ == "__main__":
    files = (file for file in searched() if not {*file.with_suffix("").parts} & (_OWN_FOLDERS | _OTHER_TOOLS))
    sys.exit(report(names_in, files, "No code outside its folder depends on which compression there is."))
