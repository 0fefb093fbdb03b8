"""Worker processes: how a stage calls its function in other processes."""
