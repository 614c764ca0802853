"""Ours and the alternative side by side, in one run, on a real nats-server; prints ratios. `make bench`."""
