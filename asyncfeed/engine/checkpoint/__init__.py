"""Checkpoints: where a run stands from its consumer's side, and how a run goes on from there."""
