"""The record that is kept outside the system under test: append-only files of JSON lines, each line on disk."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Record:
    """One append-only file. Several processes may write to it: a line is one write."""

    def __init__(self, file: Path, *, durable: bool = True) -> None:
        """`durable`: each line is synchronised to disk before `append` returns."""
        self.file = file
        self._durable = durable
        self._read = 0

    def append(self, *lines: dict[str, Any]) -> None:
        """Write the lines at once."""
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
        """The lines that were appended since the last call. A line that is not complete yet comes next time."""
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
        """Every line."""
        return list(Record(self.file).news())
