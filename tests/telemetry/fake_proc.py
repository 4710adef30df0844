"""A /proc in a folder: processes are data, started and ended at will."""

import shutil
from pathlib import Path


class FakeProc:
    """Writes the few files that the host sampler reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest_pid = 1
        self.start(1, parent=0)

    def __str__(self) -> str:
        return str(self._path)

    def start(self, pid: int, *, parent: int, ticks: int = 0, environ: str = "", started: int = 0) -> None:
        (self._path / str(pid)).mkdir()
        self.run(pid, parent=parent, ticks=ticks, started=started)
        (self._path / str(pid) / "environ").write_text(environ)
        self._newest_pid = pid
        (self._path / "loadavg").write_text(f"0.17 0.20 0.29 1/86 {pid}\n")

    def run(self, pid: int, *, parent: int, ticks: int, started: int = 0) -> None:
        """The process has used so many ticks, two thirds of them in the kernel."""
        user, kernel = ticks - ticks * 2 // 3, ticks * 2 // 3
        text = f"{pid} (a (b) c) S {parent} 0 0 0 -1 0 0 0 0 0 {user} {kernel} 0 0 20 0 1 0 {started} 0 0\n"
        (self._path / str(pid) / "stat").write_text(text)

    def set_memory(self, pid: int, *, resident: int, shared: int, pss_kib: int | None = None) -> None:
        """Pages, pages, KiB."""
        (self._path / str(pid) / "statm").write_text(f"9999 {resident} {shared} 1 0 5 0\n")
        if pss_kib is not None:
            (self._path / str(pid) / "smaps_rollup").write_text(f"55-7f ---p [rollup]\nRss: 1 kB\nPss: {pss_kib} kB\n")

    def end(self, pid: int) -> None:
        shutil.rmtree(self._path / str(pid))
