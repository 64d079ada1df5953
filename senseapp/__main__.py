"""``python -m senseapp``."""

import sys

from senseapp.core.process import become_measuring

if __name__ == "__main__":
    become_measuring()
    from senseapp.cli.main import main

    sys.exit(main())
