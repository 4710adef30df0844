"""Which differences forbid, which are the subject, which warn."""

from grpo_perf.types import Fingerprint, Scalar
from grpo_perf.verdict.identity import compare_host, compare_identity, compare_subject


def make(**identity: Scalar) -> Fingerprint:
    return Fingerprint(identity=identity)


def test_same_identity_has_no_difference() -> None:
    assert compare_identity(make(device_name="H200", mig=False), make(device_name="H200", mig=False)) == []


def test_each_differing_field_is_named() -> None:
    differences = compare_identity(make(device_name="H100", num_devices=1), make(device_name="H200", num_devices=8))
    assert differences == ["device_name H100 -> H200", "num_devices 1 -> 8"]


def test_a_field_that_only_one_side_has_differs() -> None:
    assert compare_identity(make(), make(flash_attn="real")) == ["flash_attn n/a -> real"]
    assert compare_identity(make(flash_attn="real"), make(flash_attn=None)) == ["flash_attn real -> n/a"]


def test_missing_and_none_are_the_same() -> None:
    assert compare_identity(make(), make(mig=None)) == []


def test_memory_as_another_driver_counts_it_is_the_same() -> None:
    assert compare_identity(make(memory_gib=139.8), make(memory_gib=140.4)) == []
    assert compare_identity(make(power_limit_w=700.0), make(power_limit_w=700)) == []
    assert compare_identity(make(power_limit_w=700.0), make(power_limit_w=650.0)) == ["power_limit_w 700.0 -> 650.0"]


def test_a_switch_is_no_number() -> None:
    assert compare_identity(make(mig=True), make(mig=1)) == ["mig True -> 1"]
    assert compare_identity(make(x=1.0), make(x=True)) == ["x 1.0 -> True"]


def test_subject_lists_versions_and_overrides() -> None:
    before = Fingerprint(subject={"verl": "0.9.0", "ray": None, "override:actor.lr": 1e-6, "override:a.b": True})
    after = Fingerprint(subject={"verl": "0.9.1", "ray": "2.50", "override:actor.lr": 1e-6, "override:c.d": None})
    assert compare_subject(before, after) == ["a.b True -> (not set)", "ray n/a -> 2.50", "verl 0.9.0 -> 0.9.1"]


def test_host_differences_are_warnings() -> None:
    before, after = (
        Fingerprint(host={"driver": "580", "kernel": "6"}),
        Fingerprint(host={"driver": "590", "kernel": "6"}),
    )
    assert compare_host(before, after) == ["host differs from the baseline: driver 580 -> 590"]
