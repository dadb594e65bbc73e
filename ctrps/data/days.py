"""Days of a time zone: which day a time stamp is on, and when a day begins.

Times are whole seconds since 1970-01-01 UTC, days are counted from 1970-01-01 of the zone. The
machine's own zone is never asked.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import numpy as np

QUARTER_S = 900
"""Offsets of time zones are whole quarters of an hour, and change at such, since 1972."""

DAY_S = 86400

_EPOCH = datetime(1970, 1, 1)


def local_time(times: np.ndarray, zone: zoneinfo.ZoneInfo | None) -> tuple[np.ndarray, np.ndarray]:
    """Day and second of the day of time stamps in a zone.

    Parameters
    ----------
    times : int64[n]
    zone
        None: UTC.

    Returns
    -------
    (int64[n], int64[n])
        Days, and seconds, 0 to 86399.

    Examples
    --------
    >>> zone = zoneinfo.ZoneInfo("Asia/Shanghai")
    >>> days, seconds = local_time(np.array([1494604799, 1494604800]), zone)
    >>> days.astype("M8[D]").astype(str).tolist(), seconds.tolist()
    (['2017-05-12', '2017-05-13'], [86399, 0])
    """
    if not len(times):
        return times, times
    local = times + _each(times // QUARTER_S, lambda quarter: _offset_s(quarter * QUARTER_S, zone))
    days = local // DAY_S
    # A remainder would be a second division.
    return days, local - days * DAY_S


def _each(numbers: np.ndarray, function: Callable[[int], int]) -> np.ndarray:
    """What a function is of each of some numbers; it is asked once of each different one."""
    first = int(numbers.min())
    span = int(numbers.max()) - first + 1
    if span > 1 << 20:
        different, which = np.unique(numbers, return_inverse=True)
        return np.array([function(int(number)) for number in different], np.int64)[which]
    # They lie close together: nothing need be sorted.
    at = numbers - first
    table = np.zeros(span, np.int64)
    table[at] = 1
    for place in np.flatnonzero(table):
        table[place] = function(first + int(place))
    return table[at]


def day_starts(days: np.ndarray, zone: zoneinfo.ZoneInfo | None) -> np.ndarray:
    """When days begin: midnight, or what comes in its place where clocks leave it out.

    Parameters
    ----------
    days : int64[n]
    zone
        None: UTC.

    Returns
    -------
    int64[n]

    Examples
    --------
    >>> day_starts(np.array([17299]), zoneinfo.ZoneInfo("Asia/Shanghai")).tolist()
    [1494604800]
    """
    if not len(days):
        return days
    return _each(days, lambda day: _start(day, zone))


def whole_days(times: np.ndarray, zone: zoneinfo.ZoneInfo | None) -> np.ndarray:
    """The day of every time stamp: that whose start came last.

    This differs from ``local_time`` only where clocks went back over midnight: a day does not
    begin twice.
    """
    days, _ = local_time(times, zone)
    return days + (times >= day_starts(days + 1, zone))


@lru_cache(maxsize=1 << 16)
def _offset_s(time: int, zone: zoneinfo.ZoneInfo | None) -> int:
    try:
        offset = datetime.fromtimestamp(time, zone).utcoffset() if zone else None
    except (ValueError, OverflowError, OSError):
        # Years that the calendar does not have; no split asks for them.
        return 0
    return int(offset.total_seconds()) if offset else 0


@lru_cache(maxsize=1 << 12)
def _start(day: int, zone: zoneinfo.ZoneInfo | None) -> int:
    try:
        midnight = (_EPOCH + timedelta(days=day)).replace(tzinfo=zone or UTC)
        return round(midnight.timestamp())
    except (ValueError, OverflowError, OSError):
        return day * DAY_S
