"""``python -m senseapp``."""

import sys

from senseapp.process_settings import become_measuring

if __name__ == "__main__":
    become_measuring()
    from senseapp.cli import main

    sys.exit(main())
