"""Nothing in an override is evaluated, and later settings replace earlier ones."""

import pytest

from grpo_perf.catalog.overrides import check_overrides, expand_overrides, merge_overrides, render_overrides
from grpo_perf.errors import UsageError
from grpo_perf.types import Overrides, OverrideValue


def refusal(overrides: Overrides) -> str:
    with pytest.raises(UsageError) as caught:
        check_overrides(overrides, "x.toml")
    text = str(caught.value)
    assert text.startswith("x.toml: ")
    return text


def test_accepts_what_verl_takes() -> None:
    check_overrides(
        {
            "trainer.nnodes": 1,
            "+actor.x": None,
            "++a.b.c_1": ["a", 1, True],
            "a.engine_kwargs": {"vllm": "x y", "n": 1.5},
            "model_engine": "megatron",
        },
        "x.toml",
    )


@pytest.mark.parametrize("key", ["a b", "a/b", "a@b", "~a", "+++a", "a..b", ".a", "a.", "a=b", "", "a\n", "a$b", "a-b"])
def test_keys_outside_the_grammar(key: str) -> None:
    assert repr(key) in refusal({key: 1})


def test_leading_dashes_have_a_hint() -> None:
    assert "no leading '--'" in refusal({"--trainer.nnodes": 1})


@pytest.mark.parametrize("key", ["a._target_", "_target_", "a._partial_.b", "+a._args_"])
def test_object_construction_is_refused(key: str) -> None:
    assert "names an object to construct" in refusal({key: "os.system"})
    assert "names an object to construct" in refusal({"a.b": {"_target_": "os.system"}})


@pytest.mark.parametrize("key", ["hydra.run.dir", "+hydra.searchpath", "hydra"])
def test_hydra_itself_is_out_of_reach(key: str) -> None:
    assert "would change Hydra itself" in refusal({key: "x"})


@pytest.mark.parametrize("key", ["global_profiler.finish_hook_cmd", "ray_kwargs.ray_init.runtime_env.py_executable"])
def test_commands_are_refused(key: str) -> None:
    assert "would run a command" in refusal({key: "rm -rf /"})


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "a${b}", "\\${b}", "${"])
def test_interpolation_is_refused(value: str) -> None:
    for wrapped in (value, [value], {"k": value}):
        assert "Hydra would interpolate" in refusal({"a.b": wrapped})


@pytest.mark.parametrize(
    ("value", "expected"),
    [("???", "missing value"), ("a\nb", "control characters"), ("a\0", "control characters"), (float("nan"), "finite")],
)
def test_values_that_mean_something_else(value: OverrideValue, expected: str) -> None:
    assert expected in refusal({"a.b": value})


def test_later_layers_replace_earlier_ones_whatever_the_prefix() -> None:
    merged = merge_overrides({"a.b": 1, "+a.c": 2, "d": 3}, {"a.b": 4}, {"a.c": 5, "++d": 6})
    # `+` against none: `++` holds for a key that verl has and for one it has not
    assert merged == {"a.b": 4, "++a.c": 5, "++d": 6}


def test_placeholders() -> None:
    values = {"inside": "/opt/in side"}
    overrides: Overrides = {"a": "{inside}/x.py", "b": ["{inside}"], "c": {"k": "{inside}"}, "d": 1}
    assert expand_overrides(overrides, values, "x") == {
        "a": "/opt/in side/x.py",
        "b": ["/opt/in side"],
        "c": {"k": "/opt/in side"},
        "d": 1,
    }
    with pytest.raises(
        UsageError, match=r"x: override 'a' holds the unknown placeholder \{home\}. There is: \{inside\}"
    ):
        expand_overrides({"a": "{home}/x"}, values, "x")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (3, "3"),
        (-1, "-1"),
        (1e-6, "1e-06"),
        ("fsdp2", "fsdp2"),
        ("/data/a-b_c.parquet", "/data/a-b_c.parquet"),
        ("a b", "'a b'"),
        ("", "''"),
        ("true", "'true'"),
        ("NULL", "'NULL'"),
        ("8", "'8'"),
        ("1e3", "'1e3'"),
        ("inf", "'inf'"),
        ("a,b", "'a,b'"),
        ("choice(a,b)", "'choice(a,b)'"),
        ("it's", r"'it\'s'"),
        ("c:\\", r"'c:\\'"),
        (r"a\'b", r"'a\\\'b'"),
        (["console", "a b", 1], "[console,'a b',1]"),
        ({"x": "a:b", "n": None}, "{x:'a:b',n:null}"),
        ([], "[]"),
        ({}, "{}"),
    ],
)
def test_rendering(value: OverrideValue, expected: str) -> None:
    assert render_overrides({"+k.x": value}) == [f"+k.x={expected}"]
