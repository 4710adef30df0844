"""The one function from a record to all its metrics."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from grpo_perf.metrics import REGISTRY, get_metric
from grpo_perf.record import load_run
from grpo_perf.timeline import measure
from grpo_perf.types import Measurement
from tests.builders import change_samples, make_record, write_record

DATA = Path(__file__).parent.parent / "data"


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_every_metric_of_the_registry_is_there(device: str) -> None:
    metrics = measure(make_record(device="cpu" if device == "cpu" else "gpu")).metrics
    assert set(REGISTRY) - {"phase_s", "phase_to_rest"} <= set(metrics)
    for name, value in metrics.items():
        assert get_metric(name)
        assert (value.value is None) == (value.reason is not None), name


def test_what_a_gpu_run_cannot_tell() -> None:
    missing = {name: value.reason for name, value in measure(make_record()).metrics.items() if value.value is None}
    assert missing == {"wait_s_per_step": "needs several GPUs and a trace"}


def test_families_have_the_same_phases() -> None:
    metrics = measure(make_record()).metrics
    phases = {name.partition("/")[2] for name in metrics if name.startswith("phase_s/")}
    assert phases == {
        "gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights", "unaccounted", "gap",
    }  # fmt: skip
    for family in ("idle_s_per_step", "idle_fraction", "host_idle_s_per_step"):
        assert {name.partition("/")[2] for name in metrics if name.startswith(f"{family}/")} == phases


def test_identity_of_the_run_comes_from_its_meta() -> None:
    record = make_record(faults=["update_actor:+50%"])
    found = measure(record)
    assert (found.run_id, found.workload, found.tier) == ("run-1", "qwen2.5-1.5b", "dynamic-batch")
    assert (found.hardware, found.num_loops, found.faults) == ("1xNVIDIA-H200", 4, ["update_actor:+50%"])
    assert found.fingerprint == record.meta.fingerprint


def test_start_up() -> None:
    assert measure(make_record()).value("start_up_s") == 30.0
    metrics = measure(make_record(launched_ns=None)).metrics
    assert metrics["start_up_s"].reason == "the launch was not recorded"
    metrics = measure(replace(make_record(), spans=[])).metrics
    assert metrics["start_up_s"].reason == "no step began"


def test_without_a_steady_loop_everything_says_why() -> None:
    metrics = measure(make_record(loops=0)).metrics
    reason = "no steady loop: 1 steady steps recorded after 1 of warm-up"
    assert metrics["loop_time_s"].reason == reason
    assert metrics["idle_s_per_step"].reason == reason
    assert metrics["grad_norm"].value == 2.0  # the one steady step was logged
    assert metrics["start_up_s"].value == 30.0


def test_a_measurement_survives_its_record_on_disk(tmp_path: Path) -> None:
    """Measured again from the folder it is the same, and it is plain JSON without NaN."""
    record = change_samples(make_record(busy={"gen": 0.5}), power_w=lambda _: None)
    found = measure(record)
    assert measure(load_run(write_record(tmp_path / "run", record))) == found
    text = json.dumps(msgspec.to_builtins(found), allow_nan=False)
    assert msgspec.json.decode(text, type=Measurement) == found


def test_the_recorded_cpu_run() -> None:
    """Numbers read off its spans: starts of `step` at 14.481144, 15.253963 and 15.847431 s."""
    found = measure(load_run(DATA / "cpu_first"))
    assert found.num_loops == 2
    assert found.metrics["loop_time_s"].series == pytest.approx([0.772819, 0.593468], abs=1e-6)
    assert found.metrics["phase_s/gen"].series == pytest.approx([0.378127, 0.268292], abs=1e-6)
    assert found.metrics["phase_s/update_weights"].series == pytest.approx([0.038392, 0.029369], abs=1e-6)
    assert found.metrics["gap_s"].series == pytest.approx([0.025630, 0.013993], abs=1e-6)
    assert found.metrics["effective_tokens_per_hour"].series == pytest.approx(
        [750 * 3600 / 0.772819, 768 * 3600 / 0.593468], rel=1e-5
    )
    assert found.value("timing_error_fraction") == 0.0
    assert found.value("rollout_kl") == pytest.approx(9.66e-8, rel=1e-2)
    phases = [value.series for name, value in found.metrics.items() if name.startswith("phase_s/")]
    assert [sum(loop) for loop in zip(*phases, strict=True)] == pytest.approx(found.metrics["loop_time_s"].series)


def test_a_phase_beside_the_rest_of_its_loop() -> None:
    # gen 1.0 s of a loop of 4.0 s: 1 / 3; what verl does not call a phase has none
    metrics = measure(make_record()).metrics
    assert metrics["phase_to_rest/gen"].value == pytest.approx(1 / 3)
    assert "phase_to_rest/gap" not in metrics
