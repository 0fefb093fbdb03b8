"""Bridges to the frameworks that train. Each imports its framework only when it is called."""
