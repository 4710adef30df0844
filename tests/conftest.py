"""The measured interpreter for tests that ask a real verl."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def verl_python() -> Path:
    """A Python with verl installed, named by GRPO_PERF_TEST_PYTHON (ci/test.sh sets it)."""
    path = os.environ.get("GRPO_PERF_TEST_PYTHON")
    if not path:
        pytest.skip("GRPO_PERF_TEST_PYTHON names no Python with verl in it")
    return Path(path)
