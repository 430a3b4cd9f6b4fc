"""Random faults against a running daemon (`make chaos`), long soaks of memory, and repeated ends of the daemon."""
