"""Phases that explain a change, by seconds and share."""

from dataclasses import replace

import pytest

from grpo_perf.verdict.explain import blame, explain, name_culprits
from tests.verdict.measurements import make_baseline, make_measurement, make_ratio_baseline


def make_slower(**phases: float):  # type: ignore[no-untyped-def]
    """A run of phases in seconds; its loop is their sum."""
    return make_measurement([sum(phases.values())] * 5, phases=phases)


def test_the_phase_that_grew_is_blamed() -> None:
    # loop 10 -> 11.5: update_actor 4 -> 5.4, gen 5 -> 5.1
    slower = make_slower(gen=5.1, ref=1.0, update_actor=5.4)
    assert blame([slower], make_baseline(), []) == [
        "update_actor +1.4 s (93 % of the change)",
        "gen +0.1 s (7 % of the change)",
    ]


def test_an_unchanged_loop_has_nobody_to_blame() -> None:
    assert blame([make_measurement()], make_baseline(), []) == []


def test_a_new_phase_is_blamed_in_full() -> None:
    slower = make_slower(gen=5.0, ref=1.0, update_actor=4.0, reward=2.0)
    assert blame([slower], make_baseline(), []) == ["reward +2 s (100 % of the change)"]


def test_a_vanished_phase_explains_a_gain() -> None:
    faster = make_slower(gen=5.0, update_actor=4.0)
    assert blame([faster], make_baseline(), []) == ["ref -1 s (100 % of the change)"]


def test_a_phase_that_works_against_the_change_comes_last() -> None:
    slower = make_slower(gen=4.5, ref=1.0, update_actor=6.0)  # 10 -> 11.5
    assert blame([slower], make_baseline(), []) == [
        "update_actor +2 s (133 % of the change)",
        "gen -0.5 s (-33 % of the change)",
    ]


def test_offsetting_phases_have_no_share() -> None:
    # The loop stays at 10 s: a share of no change says nothing.
    mixed = make_slower(gen=4.0, ref=1.0, update_actor=5.0)
    assert blame([mixed], make_baseline(), []) == ["update_actor +1 s", "gen -1 s"]


def test_ratio_baseline_expects_the_base_times_its_ratio() -> None:
    # Base phases 5 1 4 at ratio 0.5 lead to expect 2.5 0.5 2.0; update_actor takes 4.0 instead.
    base = make_measurement(hardware="cpu", tier="untuned", run_id="base")
    slower = make_measurement([7.0] * 5, hardware="cpu", phases={"gen": 2.5, "ref": 0.5, "update_actor": 4.0})
    assert blame([slower], make_ratio_baseline(0.5), [base]) == ["update_actor +2 s (100 % of the change)"]


def test_ratio_baseline_without_a_phase_does_not_call_it_new() -> None:
    base = make_measurement(hardware="cpu", tier="untuned", run_id="base")
    slower = make_measurement([7.0] * 5, hardware="cpu", phases={"gen": 2.5, "ref": 0.5, "update_actor": 4.0})
    stored = make_ratio_baseline(0.5)
    without_ref = replace(stored, metrics={name: m for name, m in stored.metrics.items() if name != "phase_s/ref"})
    assert blame([slower], without_ref, [base]) == ["update_actor +2 s (100 % of the change)"]


def test_idle_is_explained_by_idle() -> None:
    # idle 4 -> 8 a loop: 3 -> 6 in gen, 1 -> 2 in ref
    slower = make_measurement([20.0] * 5)
    changes = explain("idle_s_per_step", [slower], make_baseline(), [])
    assert [(change.phase, change.amount, change.unit) for change in changes] == [
        ("gen", pytest.approx(3.0), "GPU-s"),
        ("ref", pytest.approx(1.0), "GPU-s"),
    ]
    assert name_culprits(changes) == "gen +3 GPU-s (75 % of it), ref +1 GPU-s (25 % of it)"


def test_one_line_names_the_main_phase_only() -> None:
    slower = make_slower(gen=5.1, ref=1.0, update_actor=5.4)
    assert name_culprits(explain("loop_time_s", [slower], make_baseline(), [])) == "update_actor +1.4 s (93 % of it)"
    assert name_culprits([]) == ""


def test_memory_has_no_phases() -> None:
    assert explain("memory_used_gib", [make_measurement()], make_baseline(), []) == []


def test_baseline_without_phases_explains_nothing() -> None:
    stored = make_baseline()
    bare = replace(stored, metrics={"loop_time_s": stored.metrics["loop_time_s"]})
    assert blame([make_measurement([20.0] * 5)], bare, []) == []
