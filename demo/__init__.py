"""Real services as child processes, and the demo that runs on them. This package is not part of the wheel."""
