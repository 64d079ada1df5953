"""``python -m senseapp``, and the console command ``senseapp``."""

import sys

from senseapp.core.process import become_measuring, become_serving


def main() -> int:
    """Run the command that the arguments name, in an environment that suits it, and return the exit status."""
    if sys.argv[1:2] == ["serve"]:
        become_serving()
    else:
        become_measuring()
    from senseapp.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
