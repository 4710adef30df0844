"""Hands out stored runs as if they had just been measured: for tests, and for `--perf-engine=replay:DIR`."""

import secrets
import shutil
from dataclasses import replace
from pathlib import Path

from grpo_perf.engine.base import Progress, RunRequest
from grpo_perf.errors import EngineError, RecordError, UsageError
from grpo_perf.record import RunMeta, load_meta, save_meta
from grpo_perf.types import Hardware, JudgeContext


class ReplayEngine:
    """Copies the stored run of a cell under a new run id; several of one cell are handed out oldest first."""

    def __init__(self, source: Path) -> None:
        """Find the run folders.

        Raises:
            UsageError: `source` is neither a run folder nor a folder of run folders.
        """
        self.source = source
        self._stored = find_runs(source)
        self._num_handed_out: dict[str, int] = {}
        if not self._stored:
            raise UsageError(
                f"No run folder in {source} (a run folder has a run.json). Measure one: grpo-perf run CELL"
            )

    @property
    def hardware(self) -> Hardware:
        """Where the stored runs were measured.

        Raises:
            UsageError: on more than one kind of machine.
        """
        found = {meta.hardware.key: meta.hardware for _, meta in self._stored}
        if len(found) > 1:
            raise UsageError(f"The runs in {self.source} are of {', '.join(sorted(found))}. Replay one at a time.")
        return next(iter(found.values()))

    def run(self, request: RunRequest, progress: Progress) -> Path:
        """A copy of the next stored run of the cell; the last one again when there are no more.

        Raises:
            EngineError: there is no stored run of the cell, or the copy cannot be written.
        """
        name = request.cell.name
        stored, meta = self._next(name)
        run_id = f"{stored.absolute().name}-replay-{secrets.token_hex(2)}"
        target = request.runs_dir / run_id
        progress(f"replay of {stored}")
        try:
            request.runs_dir.mkdir(parents=True, exist_ok=True)
            # Names that no room knows are left out: a foreign folder cannot fill the disk or place links.
            shutil.copytree(stored, target, ignore=_unknown)
        except (OSError, shutil.Error) as error:
            raise EngineError(
                f"Cannot copy {stored} to {target}: {error}. Choose another place: --perf-runs DIR"
            ) from error
        save_meta(target, _as_measured_now(meta, run_id, request))
        return target

    def _next(self, name: str) -> tuple[Path, RunMeta]:
        runs = [(path, meta) for path, meta in self._stored if _cell_name(meta) == name]
        if not runs:
            known = ", ".join(sorted({_cell_name(meta) for _, meta in self._stored}))
            raise EngineError(
                f"No stored run of {name!r} in {self.source}; it has {known}. Choose one of them with -k."
            )
        index = self._num_handed_out.get(name, 0)
        self._num_handed_out[name] = index + 1
        return runs[min(index, len(runs) - 1)]


def find_runs(source: Path) -> list[tuple[Path, RunMeta]]:
    """Readable run folders at or right below `source`, oldest first; others in it are passed over."""
    folders = [source] if (source / "run.json").is_file() else sorted(source.glob("*/run.json"))
    found = []
    for path in folders:
        folder = path if path.is_dir() else path.parent
        try:
            found.append((folder, load_meta(folder)))
        except RecordError:
            if folder == source:
                raise
    return sorted(found, key=lambda run: (run[1].created_unix_s, run[0].name))


def _as_measured_now(meta: RunMeta, run_id: str, request: RunRequest) -> RunMeta:
    """The stored run under the tier, targets and faults of the request, not yet judged."""
    return replace(
        meta,
        run_id=run_id,
        engine="replay",
        tier=request.cell.tier,
        targets=request.cell.targets,
        faults=list(dict.fromkeys([*meta.faults, *request.faults])),
        context=JudgeContext(),
    )


def _cell_name(meta: RunMeta) -> str:
    return f"{meta.workload.name}/{meta.tier.name}"


_KNOWN = ("run.json", "steps.jsonl", "spans.jsonl", "samples.arrow", "samples.parquet", "log.txt", "parts")


def _unknown(folder: str, names: list[str]) -> set[str]:
    here = Path(folder)
    kept = [name for name in names if name in _KNOWN or (here.name == "parts" and name.endswith(".jsonl"))]
    return set(names) - {name for name in kept if not (here / name).is_symlink()}
