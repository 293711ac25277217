"""What we use of the alfworld package. Imported in the benchmark's process only.

Importing alfworld makes a folder in the user's home, unless `ALFWORLD_DATA` names one that is there already.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import sys

os.environ.setdefault("ALFWORLD_DATA", sys.prefix)

from alfworld.agents.environment.alfred_tw_env import AlfredDemangler  # noqa: E402
from alfworld.gen import constants, goal_library  # noqa: E402
from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH  # noqa: E402

__all__ = ["ALFRED_PDDL_PATH", "ALFRED_TWL2_PATH", "AlfredDemangler", "constants", "goal_library"]
