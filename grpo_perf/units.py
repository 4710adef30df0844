"""Numbers as people read them. Inside the code fractions are 0..1; percent exists only here."""

import math

NA = "n/a"
NS_PER_S = 1_000_000_000
BYTES_PER_GIB = 1 << 30


def format_percent(fraction: float | None, *, digits: int = 1, signed: bool = False) -> str:
    """A fraction (0..1) as `12.3 %`; None is `n/a`."""
    if fraction is None or not math.isfinite(fraction):
        return NA
    return f"{fraction * 100:{'+' if signed else ''}.{digits}f} %"


def format_number(value: float | None, unit: str = "") -> str:
    """A number with three significant digits and its unit; None is `n/a`."""
    if value is None or not math.isfinite(value):
        return NA
    if unit == "fraction":
        return format_percent(value)
    magnitude = abs(value)
    text = f"{value:,.0f}" if magnitude >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def seconds(ns: int) -> float:
    """Nanoseconds as seconds."""
    return ns / NS_PER_S
