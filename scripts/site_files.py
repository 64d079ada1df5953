"""A hook of MkDocs: files of the repository outside ``docs/`` become part of the site, and links lead to them.

The reference of commands is made of their parsers. Pages and links stay as they must be for readers of the repository:
``../assets/screenshots/results.png`` in ``docs/start.md`` is a picture there, and in the site.
"""

import argparse
import os
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "assets/README.md", "benchmarks/RESULTS.md")
"""Taken into the site where they lie in the repository; pages of ``docs/`` lie at its top."""
PICTURES = ("assets/icon.png", "assets/screenshots/*.png")
COMMANDS_PAGE = "reference/commands.md"
_DOCS = "docs/"
_LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages and pictures that lie outside of the folder of documents."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, COMMANDS_PAGE, content=commands_page()))
    for name in (*PAGES, *(str(path.relative_to(ROOT)) for pattern in PICTURES for path in sorted(ROOT.glob(pattern)))):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def commands_page() -> str:
    """Return what ``--help`` of each command says, in Markdown."""
    from senseapp.cli.main import COMMANDS, build_parser

    os.environ["COLUMNS"] = "100"  # argparse wraps at it
    (commands,) = (each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    parts = [f"## {name}\n\n```text\n{commands.choices[name].format_help().strip()}\n```" for name in COMMANDS]
    return "\n\n".join(["# Commands", "What `senseapp COMMAND --help` says.", *parts]) + "\n"


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return the text with links between documents and the rest of the repository as they are in the site."""
    del config, files
    return site_links(markdown, page.file.src_uri)


def site_links(markdown: str, page: str) -> str:
    """Return ``markdown`` with relative links of the repository turned into those of the site.

    Args:
        markdown: of a page.
        page: its path in the site.
    """
    outside = page in PAGES
    here = posixpath.dirname(page if outside else _DOCS + page)

    def turned(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[2]))
        in_site = target.removeprefix(_DOCS)
        path = posixpath.relpath(in_site, posixpath.dirname(page) or ".")
        return f"{link[1]}{path}{link[3] or ''}{link[4]}"

    return _LINK.sub(turned, markdown)
