"""The appended Arrow IPC stream of samples: a kill at any moment leaves every batch before it readable."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from grpo_perf.record import SAMPLE_SCHEMA
from grpo_perf.telemetry.gpus import Row

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""Source: Arrow columnar format, IPC streaming format (continuation marker and length 0)."""


class SampleStream:
    """Writes rows; each batch is one write(2), so the file never waits in a buffer of this process."""

    def __init__(self, path: Path) -> None:
        """Raises: OSError: the file cannot be created, or a sampler has written to it before."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if os.fstat(self._descriptor).st_size:
            os.close(self._descriptor)
            raise FileExistsError(17, "holds the samples of another sampler", str(path))
        self.num_rows = 0
        """Rows that are in the file."""
        self._num_bytes = 0
        self._has_header = False

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows as one batch.

        Raises:
            OSError: the disk is full or gone; the file then ends after the last whole batch.
        """
        header = b"" if self._has_header else SAMPLE_SCHEMA.serialize().to_pybytes()
        batch = pa.RecordBatch.from_pylist(list(rows), schema=SAMPLE_SCHEMA)
        self._write(header + batch.serialize().to_pybytes())
        self._has_header = True
        self.num_rows += len(rows)

    def close(self) -> None:
        """Mark the end of the stream; readers do without it, so a full disk is no error here."""
        if self._descriptor < 0:
            return
        if self._has_header:
            with suppress(OSError):
                self._write(_END_OF_STREAM)
        os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            with suppress(OSError):  # a device or a pipe cannot be cut; readers drop half a batch anyway
                os.ftruncate(self._descriptor, self._num_bytes)
            raise
        self._num_bytes += len(data)
