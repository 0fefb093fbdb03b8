"""Imports all modules that a run may need, so that no run imports or looks up anything on its loop.

`engine/ready.py` imports this module on a thread. That takes 50 to 100 ms, two thirds of it for the engine.
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
import asyncfeed.stages.read_together
import asyncfeed.state.envelope
import asyncfeed.state.fingerprint
import asyncfeed.state.merging
from asyncfeed.machine import usable_cores, usable_memory

__all__ = ["asyncfeed", "numpy", "optree"]

usable_memory()  # these two read files of the system, and cache what they find
usable_cores()

COMPLETE = True
"""Set on the last line, so a module that has this name is completely imported."""
