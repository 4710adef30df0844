"""Names of claims are known before anything runs."""

from grpo_perf.types import Target
from grpo_perf.verdict import claim_names
from tests.verdict.measurements import BASE_TIER, TIER

ALWAYS = ["measurement", "training_health"]


def test_cpu_base_tier_has_no_relative_claims() -> None:
    assert claim_names(device="cpu", tier=BASE_TIER, targets={}) == ALWAYS


def test_cpu_tier_is_judged_against_its_base() -> None:
    assert claim_names(device="cpu", tier=TIER, targets={}) == [
        *ALWAYS,
        "loop_time_s",
        "epoch_time_s",
        "effective_tokens_per_hour",
        "memory_used_gib",
        "phase_to_rest/update_actor",
    ]


def test_gpu_judges_the_base_tier_too() -> None:
    assert claim_names(device="gpu", tier=BASE_TIER, targets={"busy_fraction": Target(minimum=0.45)}) == [
        *ALWAYS,
        "busy_fraction",
        "loop_time_s",
        "epoch_time_s",
        "effective_tokens_per_hour",
        "idle_s_per_step",
        "memory_used_gib",
    ]


def test_gpu_targets_are_no_claims_on_cpu() -> None:
    targets = {"busy_fraction": Target(minimum=0.45), "idle_fraction/gen": Target(maximum=0.3)}
    assert claim_names(device="cpu", tier=BASE_TIER, targets=targets) == ALWAYS
    targets["host_busy_fraction"] = Target(minimum=0.5)
    assert claim_names(device="cpu", tier=BASE_TIER, targets=targets) == [*ALWAYS, "host_busy_fraction"]


def test_health_limits_are_no_claims_of_their_own() -> None:
    assert claim_names(device="gpu", tier=BASE_TIER, targets={"rollout_kl": Target(maximum=0.01)})[2] == "loop_time_s"


def test_a_metric_with_target_and_baseline_is_one_claim() -> None:
    names = claim_names(device="gpu", tier=BASE_TIER, targets={"idle_s_per_step": Target(maximum=2.0)})
    assert names.count("idle_s_per_step") == 1
