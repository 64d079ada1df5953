"""The check that no two modules of the package have a class of one name."""

from __future__ import annotations

from scripts.class_names import defined_twice


def test_a_name_in_two_modules_is_found_and_one_in_a_class_is_not():
    sources = [
        ("a.py", "class One:\n    class Two: ...\n"),
        ("b.py", "class Two: ...\nclass _Three: ...\n"),
        ("c.py", "class _Three(One): ...\n"),
    ]
    assert defined_twice(sources) == {"_Three": ["b.py", "c.py"]}
