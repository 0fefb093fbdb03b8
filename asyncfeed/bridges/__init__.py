"""Bridges to what trains; each imports its framework only when it is called."""
