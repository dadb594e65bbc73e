"""Made-up raw logs in the schema of the public display-advertising tables, with a known answer.

Clicks are drawn from a planted model of profile and ad attributes that are all in the tables, so
the probabilities behind them are known, and with them the best AUC and logloss that any model can
expect. Reading and joining the tables is done by the same code as for real ones.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

FIRST_DAY_S = 1_494_000_000
"""2017-05-06 00:00:00 at UTC+8, the first of the eight days of the public tables."""

DAYS = 8
TEST_DAY = 7
BEHAVIOR_DAYS = 14
"""Days of behaviour before the first impression."""

DAY_S = 86_400
PIDS = ("430548_1007", "430539_1007")
TAGS = ("pv", "cart", "fav", "buy")
TAG_SHARES = (0.955, 0.022, 0.013, 0.010)

# Levels of each profile column, 0 where it is empty or the user has no profile, and how common
# they are; the shares resemble the public tables.
PROFILE = {
    "final_gender_code": (0, 0.36, 0.64),
    "age_level": (0.03, 0.12, 0.21, 0.28, 0.22, 0.13, 0.01),
    "pvalue_level": (0.54, 0.15, 0.26, 0.05),
    "shopping_level": (0, 0.05, 0.09, 0.86),
    "occupation": (0.94, 0.06),
    "new_user_class_level": (0.32, 0.08, 0.30, 0.17, 0.13),
}
NEVER_EMPTY = frozenset({"age_level", "occupation"})
"""Columns in which 0 is a level of its own."""

FACTORS = 4
"""Dimensions of the planted taste of people for categories."""

# Standard deviations of the planted parts of the logit.
WEIGHTS = {
    "category": 0.45,
    "brand": 0.35,
    "ad": 0.25,
    "price": 0.2,
    "profile_category": 0.7,
    "pvalue_price": 0.3,
    "hour": 0.15,
    "pid": 0.1,
}
TASTE = 0.5
"""Added to the logit for a favourite category of the user, where there is a behaviour log."""

FAVOURITES = 3


@dataclass(frozen=True, slots=True)
class World:
    """Users and ads, by number; ids are what the tables call them.

    ``profile`` int64[users] per column; ``known`` whether the user has a profile row; ``liked``
    int64[users, FAVOURITES] categories. ``brand`` is -1 for NULL; ``price`` in the currency unit.
    """

    user_ids: np.ndarray
    profile: Mapping[str, np.ndarray]
    known: np.ndarray
    liked: np.ndarray
    ad_ids: np.ndarray
    cate: np.ndarray
    campaign: np.ndarray
    customer: np.ndarray
    brand: np.ndarray
    price: np.ndarray
    cates: int
    brands: int


@dataclass(frozen=True, slots=True)
class Log:
    """Impressions: user and ad by number, seconds since 1970, pid by number, click or not."""

    user: np.ndarray
    ad: np.ndarray
    day: np.ndarray
    time: np.ndarray
    pid: np.ndarray
    probability: np.ndarray
    click: np.ndarray


def generate(
    out: Path,
    *,
    rows: int = 60_000,
    users: int = 8_000,
    ads: int = 1_500,
    behaviors: int = 0,
    click_rate: float = 0.05,
    seed: int = 1,
    compress: bool = False,
) -> dict[str, Any]:
    """Write raw tables and ``truth.json``; equal arguments give equal bytes.

    Parameters
    ----------
    out
        Folder, made where it is missing.
    rows
        Impressions; an eighth of them is on the test day, 2017-05-13.
    users, ads
        How many there are; few of them get most of the impressions.
    behaviors
        Rows of ``behavior_log``; 0 leaves it out, and with it the part of the clicks that only
        histories can tell.
    click_rate
        Share of clicks to expect.
    compress
        Write ``.csv.gz`` in place of ``.csv``.

    Returns
    -------
    dict
        What ``truth.json`` holds: per split the rows, the clicks, and ``best_auc`` and
        ``best_logloss``, which the true probabilities are expected to reach.
    """
    rng = np.random.default_rng(seed)
    world = _world(rng, users, ads)
    log = _log(rng, world, rows, click_rate, TASTE if behaviors else 0.0)
    out.mkdir(parents=True, exist_ok=True)
    tables = {
        "raw_sample": _raw_sample(world, log),
        "ad_feature": _ad_feature(world),
        "user_profile": _user_profile(world),
    }
    if behaviors:
        tables["behavior_log"] = _behavior_log(rng, world, behaviors)
    for name, table in tables.items():
        _write(out, name, table, compress)
    truth = {
        "seed": seed,
        "rows": rows,
        "users": users,
        "ads": ads,
        "behaviors": behaviors,
        "weights": WEIGHTS,
        "train": _truth(log, log.day != TEST_DAY),
        "test": _truth(log, log.day == TEST_DAY),
    }
    (out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return truth


def expected_auc(p: np.ndarray) -> float:
    """AUC of true probabilities, expected over the draw of the labels.

    Of all pairs of rows, weighted by the chance that one is a click and the other is not, the
    share in which the click has the higher probability; ties count half.

    Examples
    --------
    >>> expected_auc(np.array([0.5, 0.5])), round(expected_auc(np.array([0.1, 0.9])), 3)
    (0.5, 0.9)
    """
    values, counts = np.unique(p, return_counts=True)
    clicks, others = values * counts, (1 - values) * counts
    below = np.cumsum(others) - others
    return float((clicks * (below + 0.5 * others)).sum() / (clicks.sum() * others.sum()))


def _skewed(rng: np.random.Generator, n: int, size: int, power: float) -> np.ndarray:
    """Numbers 0..n-1 by a power law: the r-th is drawn in proportion to r^(1/power - 1)."""
    return (n * rng.random(size) ** power).astype(np.int64)


def _ids(rng: np.random.Generator, n: int) -> np.ndarray:
    """n distinct ids without an order, of about three times as many."""
    return rng.permutation(3 * n)[:n] + 1


def _world(rng: np.random.Generator, users: int, ads: int) -> World:
    known = rng.random(users) < 0.945
    profile = {
        name: rng.choice(len(shares), users, p=np.array(shares) / sum(shares)) * known
        for name, shares in PROFILE.items()
    }
    cates, brands = max(ads // 40, 8), max(ads // 12, 20)
    customers, campaigns = max(ads // 6, 10), max(ads // 3, 15)
    # An advertiser has one trade and two brands, several campaigns, and more ads.
    customer_of_campaign = _skewed(rng, customers, campaigns, 1.5)
    campaign = _skewed(rng, campaigns, ads, 1.5)
    customer = customer_of_campaign[campaign]
    cate = _skewed(rng, cates, customers, 2.0)[customer]
    brand = rng.integers(0, brands, (customers, 2))[customer, rng.integers(0, 2, ads)]
    price = np.exp(rng.normal(4.5, 0.9, cates)[cate] + rng.normal(0, 0.6, ads))
    return World(
        user_ids=_ids(rng, users),
        profile=profile,
        known=known,
        liked=_skewed(rng, cates, users * FAVOURITES, 2.0).reshape(users, FAVOURITES),
        ad_ids=_ids(rng, ads),
        cate=cate,
        campaign=campaign,
        customer=customer,
        brand=np.where(rng.random(ads) < 0.28, -1, brand),
        price=np.maximum(np.round(price, 1), 0.1),
        cates=cates,
        brands=brands,
    )


def _log(rng: np.random.Generator, world: World, rows: int, click_rate: float, taste: float) -> Log:
    user = _skewed(rng, len(world.user_ids), rows, 2.0)
    ad = _skewed(rng, len(world.ad_ids), rows, 2.5)
    day = rng.integers(0, DAYS, rows)
    time = _times(rng, day)
    pid = rng.integers(0, 2, rows)
    hour = (time - FIRST_DAY_S) % DAY_S // 3600
    logit = _logit(rng, world, user, ad, hour, pid)
    logit += taste * (world.liked[user] == world.cate[ad][:, None]).any(axis=1)
    probability = 1 / (1 + np.exp(-logit - _intercept(logit, click_rate)))
    click = (rng.random(rows) < probability).astype(np.int64)
    return Log(user, ad, day, time, pid, probability, click)


def _times(rng: np.random.Generator, day: np.ndarray) -> np.ndarray:
    """Seconds of events on these days after the first: few at night, most in the evening."""
    hours = np.arange(24)
    weight = 1.1 - np.cos((hours - 3) * math.pi / 12) + 0.5 * (hours >= 19)
    hour = rng.choice(24, len(day), p=weight / weight.sum())
    return FIRST_DAY_S + day * DAY_S + hour * 3600 + rng.integers(0, 3600, len(day))


def _logit(
    rng: np.random.Generator,
    world: World,
    user: np.ndarray,
    ad: np.ndarray,
    hour: np.ndarray,
    pid: np.ndarray,
) -> np.ndarray:
    """The planted model, but for its intercept."""
    people = sum(
        rng.normal(size=(len(PROFILE[name]), FACTORS))[levels]
        for name, levels in world.profile.items()
    )
    tastes = rng.normal(size=(world.cates, FACTORS))
    cheap = _standard(np.log(world.price))
    parts = {
        "category": rng.normal(size=world.cates)[world.cate][ad],
        "brand": rng.normal(size=world.brands + 1)[world.brand][ad],
        "ad": rng.normal(size=len(world.ad_ids))[ad],
        "price": -np.abs(cheap)[ad],
        "profile_category": (people[user] * tastes[world.cate[ad]]).sum(axis=1),
        "pvalue_price": np.array([0, -1, 0, 1])[world.profile["pvalue_level"]][user] * cheap[ad],
        "hour": np.cos((hour - 20) * math.pi / 12),
        "pid": pid.astype(np.float64),
    }
    return np.sum([WEIGHTS[name] * _standard(part) for name, part in parts.items()], axis=0)


def _standard(x: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1; a constant becomes 0."""
    return (x - x.mean()) / (x.std() or 1.0)


def _intercept(logit: np.ndarray, click_rate: float) -> float:
    """What to add so that the mean probability is the click rate (Newton's method)."""
    b = math.log(click_rate / (1 - click_rate))
    for _ in range(30):
        p = 1 / (1 + np.exp(-logit - b))
        b -= float((p.mean() - click_rate) / (p * (1 - p)).mean())
    return b


def _truth(log: Log, mask: np.ndarray) -> dict[str, Any]:
    p, click = log.probability[mask], log.click[mask]
    entropy = -(p * np.log(p) + (1 - p) * np.log1p(-p))
    return {
        "rows": len(p),
        "clicks": int(click.sum()),
        "best_auc": expected_auc(p) if len(p) else None,
        "best_logloss": float(entropy.mean()) if len(p) else None,
    }


def _raw_sample(world: World, log: Log) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "user": world.user_ids[log.user],
            "time_stamp": log.time,
            "adgroup_id": world.ad_ids[log.ad],
            "pid": np.array(PIDS)[log.pid],
            "nonclk": 1 - log.click,
            "clk": log.click,
        }
    )


def _ad_feature(world: World) -> pd.DataFrame:
    table = pd.DataFrame(
        {
            "adgroup_id": world.ad_ids,
            "cate_id": world.cate + 1,
            "campaign_id": world.campaign + 1,
            "customer": world.customer + 1,
            "brand": _optional(world.brand + 1, "NULL"),
            "price": world.price,
        }
    )
    return table.sort_values("adgroup_id")


def _user_profile(world: World) -> pd.DataFrame:
    levels = {
        name: level if name in NEVER_EMPTY else _optional(level, "")
        for name, level in world.profile.items()
    }
    gender, age = world.profile["final_gender_code"], world.profile["age_level"]
    columns = {
        "userid": world.user_ids,
        "cms_segid": np.where(world.user_ids % 2, 0, world.user_ids // 2 % 97),
        "cms_group_id": np.where(gender == 2, age, age + 6),
        **levels,
    }
    # The public table's header ends in a blank.
    columns["new_user_class_level "] = columns.pop("new_user_class_level")
    return pd.DataFrame(columns)[world.known].sort_values("userid")


def _behavior_log(rng: np.random.Generator, world: World, rows: int) -> pd.DataFrame:
    user = _skewed(rng, len(world.user_ids), rows, 2.0)
    time = _times(rng, rng.integers(-BEHAVIOR_DAYS, DAYS, rows))
    favourite = world.liked[user, rng.integers(0, FAVOURITES, rows)]
    other = _skewed(rng, world.cates, rows, 2.0)
    brand = rng.integers(0, world.brands, (world.cates, 4))
    cate = np.where(rng.random(rows) < 0.6, favourite, other)
    # The public log has a few rows with time stamps that cannot be.
    stray = rng.random(rows) < 1e-4
    return pd.DataFrame(
        {
            "user": world.user_ids[user],
            "time_stamp": np.where(stray, rng.integers(-(10**9), 10**10, rows), time),
            "btag": np.array(TAGS)[rng.choice(len(TAGS), rows, p=TAG_SHARES)],
            "cate": cate + 1,
            "brand": brand[cate, rng.integers(0, 4, rows)] + 1,
        }
    )


def _optional(numbers: np.ndarray, empty: str) -> np.ndarray:
    """Numbers as text, with ``empty`` for 0."""
    return np.where(numbers == 0, empty, numbers.astype(str))


def _write(out: Path, name: str, table: pd.DataFrame, compress: bool) -> None:
    text = table.to_csv(index=False, lineterminator="\n").encode()
    if compress:
        # Without the time of day in it, so that equal tables give equal files.
        (out / f"{name}.csv.gz").write_bytes(gzip.compress(text, 9, mtime=0))
    else:
        (out / f"{name}.csv").write_bytes(text)
