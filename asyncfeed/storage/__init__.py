"""Where bytes come from: local files, and the protocol that object stores will follow."""
