"""A statsd server that receives the metrics of the stack's processes."""

import socket
import threading
from collections import Counter
from types import TracebackType
from typing import Self


class Metrics:
    """Listens until the end of the block. Only the project's own metrics are sent: ``settings`` says so."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self.counters: Counter[str] = Counter()
        self.gauges: dict[str, float] = {}
        self.settings = {
            "AIRFLOW__METRICS__METRICS_ALLOW_LIST": "jetstream",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_PORT": str(self._socket.getsockname()[1]),
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        """Receive until an empty datagram arrives."""
        while datagram := self._socket.recv(65_536).decode():
            name, _, value = datagram.rpartition(":")
            number, _, kind = value.partition("|")
            if kind == "c":
                self.counters[name] += int(number)
            elif kind == "g":
                self.gauges[name] = float(number)
