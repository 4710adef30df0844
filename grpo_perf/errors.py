"""Errors that a person reads: what is wrong, which value, where, and the next command."""


class PerfError(Exception):
    """Root of every error raised on purpose; its message ends with what to do next."""


class UsageError(PerfError):
    """The request itself is wrong (unknown tier, bad option, no GPU for `-m gpu`): exit code 2."""


class RecordError(PerfError):
    """A run folder is truncated, foreign or of another schema version."""


class BaselineError(PerfError):
    """A baseline file is hand-edited, of an unknown schema, or may not be written."""


class EngineError(PerfError):
    """The engine could not start at all; a run that started and failed is an INVALID record instead."""
