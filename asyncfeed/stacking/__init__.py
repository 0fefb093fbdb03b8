"""Samples into batches: one array for each leaf, in memory that is aligned and used again."""
