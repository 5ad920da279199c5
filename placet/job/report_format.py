"""Numbers as a reader wants them: bytes, durations, rates and counts in few digits."""

import math

MISSING = "–"


def number(value: float, digits: int = 4) -> str:
    """A number in `digits` significant digits, without a needless exponent.

    >>> number(1.89354), number(12345.6), number(0.000312), number(3.0)
    ('1.894', '12,346', '0.000312', '3')
    """
    if not math.isfinite(value):
        return MISSING if math.isnan(value) else ("∞" if value > 0 else "−∞")
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-5:
        text = f"{value:.{digits - 1}e}"
        mantissa, exponent = text.split("e")
        return f"{_trimmed(mantissa)}e{int(exponent)}".replace("-", "−")
    if size == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    return _trimmed(f"{value:,.{decimals}f}").replace("-", "−")


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float) -> str:
    """A count with a decimal prefix: 8192 -> '8.19 k', 25_000_000 -> '25 M'."""
    if not math.isfinite(value):
        return MISSING
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{number(value / factor, 3)} {prefix}"
    return number(value, 3)


def bytes_(value: float) -> str:
    """Bytes with a binary prefix: 6_700_000 -> '6.39 MiB'."""
    if not math.isfinite(value):
        return MISSING
    for factor, prefix in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB")):
        if abs(value) >= factor:
            return f"{number(value / factor, 3)} {prefix}"
    if abs(value) >= 2**10:
        return f"{number(value / 2**10, 3)} KiB"
    return f"{number(value, 3)} B"


def seconds(value: float) -> str:
    """A duration: '2 h 03 min', '3 min 12 s', '1.24 s', '48.1 ms', '310 µs'."""
    if not math.isfinite(value):
        return MISSING
    if value >= 3600:
        hours, minutes = divmod(round(value / 60), 60)
        return f"{hours} h {minutes:02d} min"
    if value >= 60:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes} min {rest:02d} s"
    if value >= 1 or value <= 0:
        return f"{number(value, 3)} s"
    if value >= 1e-3:
        return f"{number(value * 1e3, 3)} ms"
    return f"{number(value * 1e6, 3)} µs"


def percent(share: float) -> str:
    """A share of one: 0.1234 -> '12%', 0.0123 -> '1.2%'."""
    if not math.isfinite(share):
        return MISSING
    return f"{share * 100:.0f}%" if share >= 0.0995 else f"{share * 100:.1f}%"


def words(name: str) -> str:
    """A metric's key as words: 'bits_per_byte' -> 'bits per byte'."""
    return name.replace("_", " ").replace(".", " ").strip()


def ratio(value: float) -> str:
    """A ratio to a bound with two decimals: '1.00', '2.50'; '∞' above a bound of 0."""
    return f"{value:,.2f}" if math.isfinite(value) else number(value)
