"""Makes test data of a real run folder: `python tests/data/thin_run.py RUN TARGET [OLD=NEW ...]`.

Leaves the log out, drops spans of single requests in all but every tenth, and replaces paths of the machine it ran on.
What is measured from the trainer's spans, the steps and the samples stays as it was.
"""

import json
import shutil
import sys
from pathlib import Path

REQUEST_SPANS = ("generate_sequences", "compute_score")
KEEP_EVERY = 10


def thin_run(source: Path, target: Path, replacements: dict[str, str]) -> None:
    """Copy what tests need."""
    target.mkdir(parents=True)
    text = (source / "run.json").read_text()
    for old, new in replacements.items():
        text = text.replace(old, new)
    (target / "run.json").write_text(text)
    for name in ("steps.jsonl", "samples.parquet"):
        shutil.copy(source / name, target / name)
    lines = (source / "spans.jsonl").read_text().splitlines()
    requests = [line for line in lines if json.loads(line)["name"] in REQUEST_SPANS]
    dropped = set(requests) - set(requests[::KEEP_EVERY])
    kept = [line for line in lines if line not in dropped]
    (target / "spans.jsonl").write_text("\n".join(kept) + "\n")


if __name__ == "__main__":
    thin_run(Path(sys.argv[1]), Path(sys.argv[2]), dict(argument.split("=", 1) for argument in sys.argv[3:]))
