"""Makes test data of a real run folder: `python tests/data/thin_run.py RUN TARGET [OLD=NEW ...]`.

Leaves out the log, nine of ten spans of single requests, and the samples of the start-up; replaces paths of the machine
it ran on. What is measured from the trainer's spans, the steps and the steady window's samples stays as it was.
"""

import json
import shutil
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

REQUEST_SPANS = ("generate_sequences", "compute_score")
KEEP_EVERY = 10
KEEP_BEFORE_NS = 2_000_000_000
"""Of the samples, before the first step."""


def thin_run(source: Path, target: Path, replacements: dict[str, str]) -> None:
    """Copy what tests need."""
    target.mkdir(parents=True)
    text = (source / "run.json").read_text()
    for old, new in replacements.items():
        text = text.replace(old, new)
    (target / "run.json").write_text(text)
    shutil.copy(source / "steps.jsonl", target / "steps.jsonl")
    lines = (source / "spans.jsonl").read_text().splitlines()
    requests = [line for line in lines if json.loads(line)["name"] in REQUEST_SPANS]
    dropped = set(requests) - set(requests[::KEEP_EVERY])
    kept = [line for line in lines if line not in dropped]
    (target / "spans.jsonl").write_text("\n".join(kept) + "\n")
    first_ns = min(span["t0_ns"] for span in map(json.loads, lines) if span["name"] == "step")
    samples = pq.read_table(source / "samples.parquet")
    samples = samples.filter(pc.greater(samples["t1_ns"], first_ns - KEEP_BEFORE_NS))
    pq.write_table(samples, target / "samples.parquet", compression="zstd")


if __name__ == "__main__":
    thin_run(Path(sys.argv[1]), Path(sys.argv[2]), dict(argument.split("=", 1) for argument in sys.argv[3:]))
