"""Every mistake in a TOML file is an error that names file, field and remedy."""

from pathlib import Path

import pytest

from grpo_perf.catalog import load_catalog, nearest
from grpo_perf.errors import UsageError
from tests.catalog.folders import BASE, FAST, WORKLOAD, write_catalog


def message_of(root: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_catalog(root)
    return str(caught.value)


def test_reads_workloads_and_tiers_by_file_name(tmp_path: Path) -> None:
    catalog = load_catalog(write_catalog(tmp_path))
    assert list(catalog.workloads) == ["tiny"]
    assert list(catalog.tiers) == ["base", "fast"]
    workload = catalog.workloads["tiny"]
    assert (workload.name, workload.device, workload.model.hidden_size) == ("tiny", "cpu", 64)
    assert catalog.tiers["fast"].targets["1xNVIDIA-H200"]["tiny"]["busy_fraction"].minimum == 0.3


def test_a_folder_without_tiers_is_no_catalogue(tmp_path: Path) -> None:
    text = message_of(tmp_path)
    assert str(tmp_path) in text
    assert "--perf-catalog" in text


def test_unknown_field_names_the_nearest_and_the_file(tmp_path: Path) -> None:
    text = message_of(write_catalog(tmp_path, workload_tiny=WORKLOAD.replace("train_batch_size", "train_batchsize")))
    assert "tiny.toml: unknown field 'train_batchsize'. Did you mean 'train_batch_size'?" in text


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (
            "workload_tiny",
            WORKLOAD + "hiden_size = 3\n",
            "unknown field 'model.hiden_size'. Did you mean 'hidden_size'?",
        ),
        ("tier_base", "builds-on = 'x'\n" + BASE, "unknown field 'builds-on'. Did you mean 'builds_on'?"),
        ("tier_base", BASE + "\n[cpu.override]\na = 1\n", "unknown field 'cpu.override'. Did you mean 'overrides'?"),
        (
            "tier_fast",
            FAST.replace("relative", "relativ"),
            "unknown field 'tolerances.loop_time_s.relativ'. Did you mean 'relative'?",
        ),
        (
            "tier_fast",
            FAST.replace("{ maximum", "{ maximun"),
            "unknown field 'targets.1xNVIDIA-H200.tiny.idle_fraction.maximun'. Did you mean 'maximum'?",
        ),
    ],
)
def test_unknown_nested_fields(tmp_path: Path, kind: str, text: str, expected: str) -> None:
    assert expected in message_of(write_catalog(tmp_path, **{kind: text}))


def test_missing_field(tmp_path: Path) -> None:
    text = message_of(write_catalog(tmp_path, workload_tiny=WORKLOAD.replace("rollout_n = 4\n", "")))
    assert "tiny.toml: 'rollout_n' is missing. Add it." in text


def test_mistyped_field(tmp_path: Path) -> None:
    text = message_of(write_catalog(tmp_path, workload_tiny=WORKLOAD.replace("rollout_n = 4", 'rollout_n = "4"')))
    assert "tiny.toml: rollout_n: Expected `int`, got `str`." in text


def test_bad_toml_names_file_and_line(tmp_path: Path) -> None:
    text = message_of(write_catalog(tmp_path, tier_base='description = "x"\n\nbroken = = 1\n'))
    assert "base.toml:3: not valid TOML" in text


def test_file_that_is_not_utf8(tmp_path: Path) -> None:
    write_catalog(tmp_path)
    (tmp_path / "tiers" / "base.toml").write_bytes(b'description = "\xff"\n')
    assert "base.toml cannot be read" in message_of(tmp_path)


@pytest.mark.parametrize("stem", ["Big", "a b", "a..b", ".hidden", "tier_x"])
def test_file_names_that_are_no_names(tmp_path: Path, stem: str) -> None:
    write_catalog(tmp_path)
    (tmp_path / "tiers" / f"{stem}.toml").write_text(BASE)
    assert "is not a usable name" in message_of(tmp_path)


def test_name_must_be_the_file_stem(tmp_path: Path) -> None:
    assert "name is 'other', but the file is base.toml" in message_of(
        write_catalog(tmp_path, tier_base='name = "other"\n' + BASE)
    )


def test_builds_on_an_unknown_tier(tmp_path: Path) -> None:
    text = message_of(write_catalog(tmp_path, tier_fast=FAST.replace('"base"', '"bse"')))
    assert "fast.toml: builds_on: there is no tier 'bse'. Did you mean 'base'? Tiers: base, fast." in text


def test_builds_on_in_a_circle(tmp_path: Path) -> None:
    text = message_of(write_catalog(tmp_path, tier_base='builds_on = "fast"\n' + BASE))
    assert "builds_on goes in a circle: base -> fast -> base" in text


def test_workload_names_an_unknown_tier(tmp_path: Path) -> None:
    text = message_of(write_catalog(tmp_path, workload_tiny=WORKLOAD.replace('"fast"', '"fsat"')))
    assert "tiny.toml: tiers: there is no tier 'fsat'. Did you mean 'fast'?" in text


def test_unquoted_dotted_keys_are_explained(tmp_path: Path) -> None:
    text = message_of(write_catalog(tmp_path, tier_base='description = "x"\n[overrides]\ntrainer.use_v1 = true\n'))
    assert "'trainer' is a table. Quote dotted keys in TOML: \"trainer.use_v1\" = ..." in text
    deeper = 'description = "x"\n[overrides]\na.b.c = true\n'
    assert "Quote dotted keys in TOML" in message_of(write_catalog(tmp_path, tier_base=deeper))


def test_the_string_null_is_null(tmp_path: Path) -> None:
    text = 'description = "x"\n[overrides]\n"trainer.nnodes" = "null"\n[cpu.overrides]\n"a.b" = "null"\n'
    tier = load_catalog(write_catalog(tmp_path, tier_base=text)).tiers["base"]
    assert tier.overrides == {"trainer.nnodes": None}
    assert tier.cpu.overrides == {"a.b": None}


def test_nearest() -> None:
    assert nearest("dynamic-bacth", ["untuned", "dynamic-batch"]) == "dynamic-batch"
    assert nearest("zzz", ["untuned", "dynamic-batch"]) is None
