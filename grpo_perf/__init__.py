"""Performance regression suite for GRPO pipelines on verl: measure idle, attribute it, judge it."""

__version__ = "0.1.0"
