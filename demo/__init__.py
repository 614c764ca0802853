"""Real services as child processes, and the demo that runs on them. Not part of the wheel."""
