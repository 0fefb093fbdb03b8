"""Coordinator: threads, tasks and feeds that stop together; and what ties a feed to one."""

from asyncfeed.coordinator.binding import CoordinatorBinding
from asyncfeed.coordinator.coordinator import Coordinator

__all__ = ["Coordinator", "CoordinatorBinding"]
