"""From bytes to samples: one decoder per file format."""
