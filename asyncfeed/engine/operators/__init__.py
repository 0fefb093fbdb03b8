"""What runs the stages of a pipeline: sources, calls of functions, one item to many, and merges."""
