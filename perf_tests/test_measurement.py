"""The measurement checked against truth. `-m gpu` alone leaves these out; they are asked for by name:

pytest perf_tests -m truth                           everything: a few minutes, and two runs of a cell
pytest perf_tests -m truth -k known_load             two minutes, without verl
"""

import pytest

from grpo_perf.campaigns import SHARED_LOADS, TRUTH_LOADS, name_shared
from grpo_perf.suite import CellClaim
from grpo_perf.truth import Truth, describe_overhead

MAX_ERROR = 0.01
"""One point of busy fraction."""
MAX_OVERHEAD = 0.005
MAX_ERROR_OF_SWITCHES = 0.03
"""Two processes that take turns every few ms: the GPU is busy with changing between them too."""
COPIES_WITHIN_GPU = ("d2d", "memset")


@pytest.mark.gpu
@pytest.mark.truth
@pytest.mark.parametrize("load", [*TRUTH_LOADS, *map(name_shared, SHARED_LOADS)])
def test_known_load(perf_truth: Truth, load: str) -> None:
    """The busy fraction is that of the kernels, as they stamped it themselves; copies from the host are not busy."""
    result = perf_truth.known_loads[load]
    errors = [abs(result.kernels.error)]
    if load.startswith(COPIES_WITHIN_GPU):
        # Done by the copy engine or by a kernel of the driver's, as the driver likes: docs/h200.md says which.
        errors.append(abs(result.both.error))
    is_switching = load == name_shared("duty:30:10")
    assert min(errors) <= (MAX_ERROR_OF_SWITCHES if is_switching else MAX_ERROR)


@pytest.mark.perf(cells="qwen2.5-1.5b/recommended")
@pytest.mark.truth
def test_traced_step(perf_truth: Truth, grpo_cell: CellClaim) -> None:
    """In a step of verl, over the samples that lie wholly inside a phase, busy is what the kernels say."""
    found = perf_truth.trace_step(grpo_cell.spec.name)
    assert abs(found.kernels["all"].error) <= MAX_ERROR


@pytest.mark.perf(cells="qwen2.5-1.5b/recommended")
@pytest.mark.truth
def test_overhead(perf_truth: Truth, grpo_cell: CellClaim) -> None:
    """Spans and sampler cost less than half a percent of the loop time."""
    found = perf_truth.measure_overhead(grpo_cell.spec.name)
    assert min(len(found.watched_s), len(found.unwatched_s)) >= 10
    assert found.change.point <= MAX_OVERHEAD, describe_overhead(found)
