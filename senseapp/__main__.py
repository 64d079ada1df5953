"""``python -m senseapp``."""

import sys

from senseapp.allocator import share_one_arena
from senseapp.cli import main
from senseapp.threads import sleep_while_waiting

share_one_arena()
sleep_while_waiting()
sys.exit(main())
