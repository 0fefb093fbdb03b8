"""Samples into batches: one array for each leaf, in aligned memory that is reused."""
