"""Numbers with their units, for people."""

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def duration(nanoseconds: float) -> str:
    """Returns a time with three digits: "12.3 ms"; no time is "0"."""
    if not nanoseconds:
        return "0"
    for unit, name in _TIMES:
        if abs(nanoseconds) >= unit:
            return f"{_three_digits(nanoseconds / unit)} {name}"
    return f"{_three_digits(nanoseconds)} ns"


def amount(size: float) -> str:
    """Returns a number of bytes with three digits, in powers of 1000: "1.23 MB"."""
    for unit, name in _BYTES:
        if abs(size) >= unit:
            return f"{_three_digits(size / unit)} {name}"
    return f"{size:.0f} B"


def percent(part: float, whole: float = 1.0) -> str:
    """Returns a part as "12.3 %"; of nothing it is none."""
    return f"{100 * part / whole if whole else 0.0:.1f} %"


def count(number: int) -> str:
    """Returns a number with its thousands set apart."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Returns "1 rank", "2 ranks"."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _three_digits(value: float) -> str:
    size = abs(value)
    # What would be rounded up to another digit has that digit already.
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{value:.{digits}f}"
