"""The record outside the system under test: append-only files of JSON lines."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Record:
    """One append-only file. Several processes may write to it, because each line is a single write."""

    def __init__(self, file: Path, *, durable: bool = True) -> None:
        """`durable`: each line is synchronised to disk before `append` returns."""
        self.file = file
        self._durable = durable
        self._read = 0

    def append(self, *lines: dict[str, Any]) -> None:
        """Write the lines in one write."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, text)
            if self._durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def news(self) -> Iterator[dict[str, Any]]:
        """Return the lines appended since the last call. An incomplete line is left for the next call."""
        if not self.file.exists():
            return
        with self.file.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                yield json.loads(line)

    def all(self) -> list[dict[str, Any]]:
        """Return all lines."""
        return list(Record(self.file).news())
