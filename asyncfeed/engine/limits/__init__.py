"""How much may be in flight: bytes, and calls at a time."""
