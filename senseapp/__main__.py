"""``python -m senseapp``."""

import sys

from senseapp.allocator import share_one_arena
from senseapp.cli import main
from senseapp.threads import limit_spinning

share_one_arena()
limit_spinning()
sys.exit(main())
