"""All that a run may need: importing this imports it, so that no run imports anything on the loop it runs on.

`engine/ready.py` imports it on a thread. It takes 50 to 100 ms, of which the engine is two thirds.
"""

from __future__ import annotations

import numpy.random
import optree

import asyncfeed.engine.loops
import asyncfeed.engine.run
import asyncfeed.formats.npy
import asyncfeed.stages.generator
import asyncfeed.stages.load_batch

__all__ = ["asyncfeed", "numpy", "optree"]

COMPLETE = True
"""The last line: a module that has it has imported all of the above."""
