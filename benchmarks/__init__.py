"""Benchmarks of this project and of alternatives, in the same run on a real nats-server. `make bench` prints ratios."""
