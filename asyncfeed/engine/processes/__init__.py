"""Worker processes: a stage whose function runs in processes of their own."""
