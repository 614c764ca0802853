"""The real nats-server, as the package's plugin for pytest starts it."""

from jetstream_testing.nats_server import NatsServer

__all__ = ["NatsServer"]
