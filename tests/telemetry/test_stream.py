import errno
import os
from pathlib import Path

import pytest

from grpo_perf.record import SAMPLE_SCHEMA, read_samples
from grpo_perf.telemetry.gpus import Row
from grpo_perf.telemetry.stream import SampleStream


def rows(first: int, count: int) -> list[Row]:
    return [{"t0_ns": number, "t1_ns": number + 1, "device": -1} for number in range(first, first + count)]


def write_batches(path: Path, *, close: bool) -> list[int]:
    """Three batches of two rows; file sizes after each."""
    stream = SampleStream(path / "samples.arrow")
    sizes = []
    for first in (0, 2, 4):
        stream.append(rows(first, 2))
        sizes.append((path / "samples.arrow").stat().st_size)
    assert stream.num_rows == 6
    if close:
        stream.close()
        stream.close()
    return sizes


@pytest.mark.parametrize("close", [True, False])
def test_rows_are_readable_closed_or_not(tmp_path: Path, close: bool) -> None:
    write_batches(tmp_path, close=close)
    samples = read_samples(tmp_path)
    assert samples.schema == SAMPLE_SCHEMA
    assert samples["t0_ns"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert samples["busy_fraction"].to_pylist() == [None] * 6


def test_a_kill_at_any_byte_keeps_all_batches_before_it(tmp_path: Path) -> None:
    sizes = write_batches(tmp_path, close=False)
    whole = (tmp_path / "samples.arrow").read_bytes()
    for length in range(0, len(whole) + 1, 7):
        (tmp_path / "samples.arrow").write_bytes(whole[:length])
        num_batches = sum(size <= length for size in sizes)
        assert read_samples(tmp_path).num_rows == 2 * num_batches


def test_a_full_disk_is_an_error_that_counts_no_rows() -> None:
    stream = SampleStream(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left") as caught:
        stream.append(rows(0, 2))
    assert caught.value.errno == errno.ENOSPC
    assert stream.num_rows == 0
    stream.close()


def test_a_disk_that_fills_up_leaves_whole_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SampleStream(tmp_path / "samples.arrow")
    stream.append(rows(0, 2))
    real_write = os.write
    room = [100]

    def write(descriptor: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, data[: room.pop()])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        stream.append(rows(2, 2))
    stream.close()
    assert read_samples(tmp_path)["t0_ns"].to_pylist() == [0, 1]


def test_samples_of_another_sampler_are_never_written_over(tmp_path: Path) -> None:
    write_batches(tmp_path, close=True)
    with pytest.raises(FileExistsError, match="holds the samples of another sampler"):
        SampleStream(tmp_path / "samples.arrow")
    assert read_samples(tmp_path).num_rows == 6
