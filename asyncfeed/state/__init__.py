"""Saved states: which pipeline a state belongs to, its outer form, and files that are there whole or not at all.

This package knows nothing of runs. What a state says of a run is its body, which the engine writes and reads.
"""
