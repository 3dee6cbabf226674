"""How many lives a state machine is led through.

RUNNEL_EXAMPLES    300 unless told, which takes seconds for each machine; make machines does more
"""

import os

EXAMPLES = int(os.environ.get("RUNNEL_EXAMPLES", "300"))
