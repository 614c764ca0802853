"""Configurations of servers that tests start for themselves."""

from collections.abc import Callable

from demo.nats_server import NatsServer

Serve = Callable[[str], NatsServer]
"""Starts a server with a configuration."""

PASSWORD = "hidden-7d1"
USER = f'authorization {{ user: airflow, password: "{PASSWORD}" }}'
TOKEN = f'authorization {{ token: "{PASSWORD}" }}'
