"""All that a run may need: importing this imports it, so that no run imports or looks up anything on its loop.

`engine/ready.py` imports it on a thread. It takes 50 to 100 ms, of which the engine is two thirds.
"""

from __future__ import annotations

import numpy.random
import optree

import asyncfeed.engine.driver
import asyncfeed.engine.loops
import asyncfeed.engine.run
import asyncfeed.formats.npy
import asyncfeed.randomness.generator
import asyncfeed.reading.stream
import asyncfeed.stages.fetch
import asyncfeed.stages.load_batch
from asyncfeed.machine import usable_cores, usable_memory

__all__ = ["asyncfeed", "numpy", "optree"]

usable_memory()  # what it finds is kept: it reads files of the system
usable_cores()

COMPLETE = True
"""The last line: a module that has it has done all of the above."""
