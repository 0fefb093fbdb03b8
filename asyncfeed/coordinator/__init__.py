"""Coordinator: threads, tasks and feeds that stop together; and the binding of a feed to a coordinator."""

from asyncfeed.coordinator.binding import CoordinatorBinding
from asyncfeed.coordinator.coordinator import Coordinator

__all__ = ["Coordinator", "CoordinatorBinding"]
