"""What becomes a baseline, with numbers worked by hand, and what never does."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from grpo_perf.baseline import make_baseline
from grpo_perf.errors import BaselineError
from grpo_perf.types import Baseline, JudgeContext, Measurement, MetricValue, Provenance, Tier, Verdict
from grpo_perf.verdict import judge
from tests.verdict.measurements import BASE_TIER, TIER, make_measurement, series

PROVENANCE = Provenance(run_ids=["run-1"], commit="abc1234", reason="first")


def make(runs: Sequence[Measurement], *, tier: Tier = TIER, references: Sequence[Measurement] = ()) -> Baseline:
    return make_baseline(runs, tier=tier, references=references, num_warmup_steps=2, provenance=PROVENANCE)


def make_base(*loops: float, **changes: object) -> Measurement:
    return make_measurement(loops or [20.0] * 3, hardware="cpu", tier="untuned", run_id="base", **changes)  # type: ignore[arg-type]


def test_absolute_baseline_of_one_run() -> None:
    baseline = make([make_measurement([9.0, 10.0, 12.0])])
    loop_time = baseline.metrics["loop_time_s"]
    assert (baseline.kind, baseline.base_tier, baseline.num_runs) == ("absolute", None, 1)
    assert (baseline.schema_version, baseline.num_warmup_steps) == (1, 2)
    assert loop_time.samples == [[9.0, 10.0, 12.0]]
    assert loop_time.median == 10.0
    assert loop_time.spread == pytest.approx(1.4826)  # deviations 1 0 2 -> MAD 1
    assert baseline.provenance == PROVENANCE
    assert baseline.fingerprint.subject["verl"] == "0.9.0"


def test_absolute_baseline_of_three_runs() -> None:
    runs = [make_measurement([loop] * 3, run_id=str(loop)) for loop in (9.0, 10.0, 12.0)]
    baseline = make(runs)
    assert baseline.num_runs == 3
    assert baseline.metrics["loop_time_s"].samples == [[9.0] * 3, [10.0] * 3, [12.0] * 3]
    assert baseline.metrics["loop_time_s"].median == 10.0


def test_epoch_scatters_as_its_loops() -> None:
    assert make([make_measurement([9.0, 10.0, 12.0])]).metrics["epoch_time_s"].samples == [[1152.0, 1280.0, 1536.0]]


def test_memory_is_the_peak() -> None:
    run = make_measurement([10.0] * 3, metrics={"memory_used_gib": series("memory_used_gib", [50.0, 60.0, 55.0])})
    assert make([run]).metrics["memory_used_gib"].median == 60.0


def test_what_is_stored() -> None:
    assert sorted(make([make_measurement()]).metrics) == [
        "busy_fraction",
        "effective_tokens_per_hour",
        "epoch_time_s",
        "idle_fraction",
        "idle_s_per_step",
        "idle_s_per_step/gen",
        "idle_s_per_step/ref",
        "loop_time_s",
        "memory_used_gib",
        "phase_s/gen",
        "phase_s/ref",
        "phase_s/update_actor",
    ]


def test_what_was_not_measured_is_not_stored() -> None:
    blind = make_measurement(metrics={"idle_s_per_step": MetricValue(value=None, reason="no GPM")})
    stored = make([make_measurement(run_id="0"), blind]).metrics
    assert "idle_s_per_step" not in stored
    assert "loop_time_s" in stored


def test_ratio_baseline_on_cpu() -> None:
    # 10 / 20 and 12 / 20, run by run
    runs = [make_measurement([loop] * 3, hardware="cpu", run_id=str(loop)) for loop in (10.0, 12.0)]
    baseline = make(runs, references=[make_base(), make_base()])
    assert (baseline.kind, baseline.base_tier, baseline.num_runs) == ("ratio", "untuned", 2)
    assert baseline.metrics["loop_time_s"].samples == [[0.5], [0.6]]
    assert baseline.metrics["loop_time_s"].median == pytest.approx(0.55)
    assert baseline.metrics["phase_s/update_actor"].samples == [[0.5], [pytest.approx(0.6)]]
    assert baseline.metrics["effective_tokens_per_hour"].samples == [[2.0], [pytest.approx(20 / 12)]]
    assert "host_busy_fraction" in baseline.metrics


def test_ratio_of_unequal_numbers_of_runs_uses_all_references_together() -> None:
    run = make_measurement([10.0] * 3, hardware="cpu")
    references = [make_base(16.0, 16.0), make_base(20.0, 20.0), make_base(25.0, 25.0)]
    assert make([run], references=references).metrics["loop_time_s"].samples == [[0.5]]


def test_spread_of_a_ratio_comes_from_the_loops() -> None:
    run = make_measurement([10.0] * 5, hardware="cpu")
    assert make([run], references=[make_base()]).metrics["loop_time_s"].spread == 0.0
    # Medians of five redraws of 16 18 20 22 24: within 18..22 in most draws, so the ratio scatters around 0.5 by 0.05.
    scattered = make([run], references=[make_base(16.0, 18.0, 20.0, 22.0, 24.0)]).metrics["loop_time_s"]
    assert scattered.median == 0.5
    assert 0.02 < scattered.spread < 0.08


def test_a_phase_without_time_in_the_base_has_no_ratio() -> None:
    base = make_base(metrics={"phase_s/ref": series("phase_s", [0.0, 1.0, 1.0])})
    stored = make([make_measurement(hardware="cpu")], references=[base]).metrics
    assert "phase_s/ref" not in stored
    assert "phase_s/gen" in stored


def test_a_baseline_passes_its_own_run() -> None:
    run, base = make_measurement([9.9, 10.0, 10.1], hardware="cpu"), make_base(19.9, 20.0, 20.1)
    context = JudgeContext(baseline=make([run], references=[base]), references=[base])
    assert judge(run, tier=TIER, targets={}, context=context).verdict is Verdict.PASS
    gpu = make_measurement([9.9, 10.0, 10.1])
    context = JudgeContext(baseline=make([gpu]))
    assert judge(gpu, tier=TIER, targets={}, context=context).verdict is Verdict.PASS


def test_the_base_tier_on_cpu_has_an_absolute_baseline() -> None:
    assert make([make_base()], tier=BASE_TIER).kind == "absolute"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"invalid_reasons": ["GPU 0 was throttled"]}, "Run run-1 of qwen2.5-1.5b/dynamic-batch is invalid: GPU 0 was"),
        ({"faults": ["gen:+50%"]}, r"was slowed down on purpose \(gen:\+50%\) and never becomes a baseline"),
        ({"loops": [10.0]}, r"has 1 steady loop\(s\); a baseline needs 2"),
        ({"metrics": {"loop_time_s": None}}, "has no loop time"),
    ],
)
def test_a_run_that_never_becomes_a_baseline(change: dict[str, object], message: str) -> None:
    with pytest.raises(BaselineError, match=message) as caught:
        make([make_measurement(**change)])  # type: ignore[arg-type]
    assert "pytest perf_tests -m gpu -k dynamic-batch --perf-baseline=create" in str(caught.value)


def test_a_bad_reference_is_refused_too() -> None:
    with pytest.raises(BaselineError, match="Run base of cpu-tiny/untuned was slowed down on purpose"):
        make([make_measurement(hardware="cpu")], references=[make_base(faults=["gen:+50%"])])


def test_a_cpu_cell_without_its_base_is_refused() -> None:
    with pytest.raises(
        BaselineError, match="is a ratio to tier 'untuned', and this session has no run of that"
    ) as caught:
        make([make_measurement(hardware="cpu")])
    assert "bash ci/perf.sh -k dynamic-batch --perf-baseline=create" in str(caught.value)


def test_no_run_is_refused() -> None:
    with pytest.raises(BaselineError, match="No run to make a baseline of 'dynamic-batch' from"):
        make([])


def test_runs_of_different_cells_are_refused() -> None:
    with pytest.raises(BaselineError, match="are of different cells"):
        make([make_measurement(), make_measurement(run_id="run-2", tier="memory")])


def test_runs_of_different_versions_are_refused() -> None:
    with pytest.raises(BaselineError, match=r"differ: verl 0\.9\.0 -> 0\.9\.1"):
        make([make_measurement(), make_measurement(run_id="run-2", subject={"verl": "0.9.1"})])


def test_the_tier_may_be_of_another_name_in_references_only() -> None:
    run = make_measurement(hardware="cpu")
    assert make([run], references=[replace(make_base(), run_id="other")]).tier == "dynamic-batch"
