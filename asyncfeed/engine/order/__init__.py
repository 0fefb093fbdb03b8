"""The order in which results are sent. No module here does IO or knows an event loop."""
