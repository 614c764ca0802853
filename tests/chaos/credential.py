"""The pipelines' credential on the single server. It is valid for a few seconds, and is renewed in its file in time,
unless a strike stops that."""

from __future__ import annotations

import time
from pathlib import Path

from tests.jetstream_client.servers import Nkey, Operator

VALID = 15
"""Seconds. Every connection of the pipelines ends at least as often."""


class Credential:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """The folder of the files."""
        self._operator = Operator()
        self._user = Nkey()
        self.config = self._operator.config
        """The configuration of the server."""
        self.file = folder / "pipelines.creds"
        self.lasting = folder / "lasting.creds"
        """Another file, with a credential that does not expire, for publishers."""
        folder.mkdir(mode=0o700, parents=True)
        observer = Nkey()
        lasting = self._operator.credentials(observer)
        self.lasting.write_text(lasting)
        jwt = lasting.splitlines()[1].encode()
        self.options = {"user_jwt_cb": lambda: jwt, "signature_cb": observer.sign}
        """The same for observers, as options of nats-py."""
        self._renewed = 0.0
        self._stopped = False
        self.renew()

    def renew(self) -> None:
        """Renew it, if it is time and no strike forbids it."""
        if self._stopped or time.time() - self._renewed < VALID / 3:
            return
        self._renewed = time.time()
        new = self.file.with_suffix(".new")
        new.write_text(self._operator.credentials(self._user, expires=int(self._renewed) + VALID))
        new.replace(self.file)

    def expire(self) -> None:
        """Stop renewing it: connections end, and new ones are refused, as soon as it has expired."""
        self._stopped = True

    def return_to_life(self) -> None:
        self._stopped = False
        self._renewed = 0.0
        self.renew()
