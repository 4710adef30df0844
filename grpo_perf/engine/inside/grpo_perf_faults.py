"""Slows phases down on purpose, so that the gate itself can be tested. Standard library only.

A fault is `PHASE:+PERCENT%`: the trainer sleeps for that share of the phase before the phase's timer stops, so that
verl's own `timing_s/<phase>` shows it too.
"""

import re
import time

PATTERN = re.compile(r"(?P<phase>[a-z_0-9]+):\+(?P<percent>[0-9]+(?:\.[0-9]+)?)%")


class Faults:
    """The faults of one run, by phase."""

    def __init__(self, fractions):
        self.fractions = fractions

    @classmethod
    def parse(cls, text):
        """Faults from `update_actor:+50%,gen:+10%`; ValueError for anything else."""
        fractions = {}
        for spec in text.split(","):
            match = PATTERN.fullmatch(spec.strip())
            if match is None:
                raise ValueError(f"fault {spec!r} is not PHASE:+PERCENT%, for example update_actor:+50%")
            fractions[match["phase"]] = float(match["percent"]) / 100
        return cls(fractions)

    def apply(self, name, open_names, elapsed_s):
        """Sleep if `name` is a faulty phase of the trainer: only there is a `step` timer running in the thread."""
        fraction = self.fractions.get(name)
        if fraction and "step" in open_names:
            time.sleep(fraction * elapsed_s)
