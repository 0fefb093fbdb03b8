"""The steps that run the sources, stages and merges of a pipeline."""
