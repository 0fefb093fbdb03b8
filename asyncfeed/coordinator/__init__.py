"""Coordinator: threads, tasks and feeds that stop together; and what ties a feed to one."""

from asyncfeed.coordinator.coordinator import Coordinator
from asyncfeed.coordinator.tie import Tie

__all__ = ["Coordinator", "Tie"]
