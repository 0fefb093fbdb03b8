"""Functions of the user's: what is checked before they are called, and how they are sent to other processes."""
