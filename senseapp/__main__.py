"""``python -m senseapp``."""

import sys

from senseapp.cli import main

sys.exit(main())
