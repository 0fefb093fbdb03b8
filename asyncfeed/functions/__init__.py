"""The user's functions: checks before they are called, and how they are sent to other processes."""
