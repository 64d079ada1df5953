"""``models``: search the architectures of timm and torchvision."""

import argparse

EPILOG = """\
examples:
  python -m senseapp models --search vit_tiny
  python -m senseapp models --library torchvision
"""

_ROW = "{:<56} {:>9} {:>9} {:>11} {:>6}  {}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``models``."""
    parser.add_argument("--search", default="", metavar="TEXT", help="part of a name; the likeliest comes first")
    parser.add_argument("--library", choices=("timm", "torchvision"), help="only this library")


def run(arguments: argparse.Namespace) -> None:
    """Print one line per architecture."""
    from senseapp.networks.sources.catalogue import search  # reads the catalogue, which the other commands do without

    found = search(arguments.search, library=arguments.library, limit=None)
    if not found:
        print(f"No architecture matches {arguments.search!r}.")
        return
    print(_ROW.format("model", "params", "MACs", "input", "layers", "weights"))
    for entry in found:
        print(
            _ROW.format(
                entry.title,
                f"{entry.num_params / 1e6:.2f} M",
                "unknown" if entry.macs is None else f"{entry.macs / 1e9:.2f} G",
                "×".join(str(side) for side in entry.input_shape),
                entry.num_layers,
                "published" if entry.pretrained else "none",
            ).rstrip()
        )
