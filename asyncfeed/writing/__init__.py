"""Samples to bytes, and bytes to files that are there whole or not at all."""
