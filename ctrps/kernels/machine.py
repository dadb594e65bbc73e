"""The machine that computes features: its instructions, registers and outputs.

``ctrps.data.assemble`` writes programs for it, ``program`` runs them.
"""

from typing import NamedTuple

import numpy as np

BLOCK = 128
"""Rows that go through the program together; their registers fit the processor's second cache."""

# Operations. Text registers hold the hash of a text, list registers hashes of elements; `number`
# and `list` registers of a column have its number. Columns behind the sample's own are derived.
TEXT = 0  # text[to] = hash of column a
LIST = 1  # list[a] = hashes of the elements of column a, a derived one; others are at hand
NUMBER = 2  # number[a] = column a as a number, NaN when empty
LABEL = 3  # label = column a
BUCKET = 4  # text[to] = hash of the bucket of number[a] under break lines b
HIT = 5  # text[to] = hash of "1" when text[a] is in list[b], else of "0"
MIX = 6  # text[to] = mix(seed, text[a])
CROSS = 7  # text[to] = mix(text[a], text[b])
ONE = 8  # list[to] = text[a], or nothing when b >= 0 and that is text[b]
SOME = 9  # list[to] = list[a] without the elements that are text[b]
MIX_ALL = 10  # list[to] = mix(seed, e) of every e of list[a]
PRODUCT = 11  # list[to] = mix(e, f) of every e of list[a] with every f of list[b]
DENSE = 12  # dense[to] = number[a], scaled
LOG = 13  # dense[to] = ln(number[a] + 1), scaled
SQRT = 14  # dense[to] = √(number[a] + 1), scaled
TIDY = 15  # column `to` = column a tidied as the bits of b say
SET = 16  # column `to` = the elements of column a, sorted, each once
TIME = 17  # column `to` = part b of the time stamp number[a] in zone `seed`
# These come last, in the order of the slots.
KEY = 18  # slot `to` gets the key mix(seed, text[a])
PAIR = 19  # slot `to` gets the key mix(text[a], text[b])
KEYS = 20  # slot `to` gets the keys mix(seed, e) of every e of list[a]
MIXED = 21  # slot `to` gets the keys list[a]

# Reasons why a row is bad, besides those of `ctrps.kernels.prefix` and `ctrps.kernels.values`.
TOO_LARGE = 5
NOT_A_LABEL = 6
FIELDS = 7

EMPTY = 0
FIRST_NUMBER = 1
"""The first text registers are constants: the hash of the empty text, then from this register on
the hashes of the decimal texts of -1, 0, 1, …"""


class Program(NamedTuple):
    """A compiled features file.

    Attributes
    ----------
    code : int32[n, 4]
        Rows of (operation, a, b, to).
    seeds : uint64[n]
        Namespace of an instruction, or number of its zone, or 0.
    emits : int
        The first instruction that gives keys; all from here on do.
    breaks, break_starts : float32[m], int32[l + 1]
        List b of break lines is ``breaks[break_starts[b]:break_starts[b + 1]]``.
    changes, offsets, zone_starts : int64[z], int64[z], int32[zones + 1]
        Seconds at which a zone's offset from UTC changes, and to how many seconds.
    constants : uint64[c]
        What the first text registers hold.
    scales : float64[d, 3]
        Of each dense feature: what an empty field gives; centre and size: the value x is given as
        ``(x - centre) / size``.
    origins : int32[columns]
        The sample's own column that each column is, or is derived of.
    own, texts, lists : int
        Columns of the sample, text registers and list registers.
    ids : int32[k]
        Columns that make up the row's id.
    """

    code: np.ndarray
    seeds: np.ndarray
    emits: int
    breaks: np.ndarray
    break_starts: np.ndarray
    changes: np.ndarray
    offsets: np.ndarray
    zone_starts: np.ndarray
    constants: np.ndarray
    scales: np.ndarray
    origins: np.ndarray
    own: int
    texts: int
    lists: int
    ids: np.ndarray


class Registers(NamedTuple):
    """What a block of rows is worked out in; contents mean nothing between blocks, but constants.

    Attributes
    ----------
    starts, ends : int64[columns, BLOCK]
        Where the text of each column of each row lies: in the sample, or for a derived column in
        ``derived`` uint8[room].
    text : uint64[texts, BLOCK]
        Begins with the constants.
    numbers : float64[columns, BLOCK]
    firsts, lasts : int64[lists, BLOCK]
        Where each list begins and ends in ``elements`` uint64[room].
    at : int64[BLOCK]
        Where the next key of each row goes.
    found : int32[BLOCK]
        Fields of each row.
    spots, sizes, fields : uint64[room], uint32[room], int32[BLOCK, fields of a line + 1]
        Of the elements of the sample, while they are being hashed: see ``scan_rows``.
    """

    starts: np.ndarray
    ends: np.ndarray
    text: np.ndarray
    numbers: np.ndarray
    firsts: np.ndarray
    lasts: np.ndarray
    at: np.ndarray
    found: np.ndarray
    elements: np.ndarray
    derived: np.ndarray
    spots: np.ndarray
    sizes: np.ndarray
    fields: np.ndarray


class Output(NamedTuple):
    """Where rows go.

    Attributes
    ----------
    counts : int32[rows, slots], on entry ``single_keys`` of the program in each row
    dense : float32[rows, d]
    labels : float32[rows], NaN on entry
    bad : int64[rows, 4], 0 on entry
        Reason or 0, column (for FIELDS how many there are), and where its text starts and ends.
    ids : int64[rows, k, 2]
        Where the text of each column of the id starts and ends.
    """

    counts: np.ndarray
    dense: np.ndarray
    labels: np.ndarray
    bad: np.ndarray
    ids: np.ndarray


def single_keys(program: Program, slots: int) -> np.ndarray:
    """1 for each slot that gets one key in every row, else 0: int32[slots]."""
    emits = program.code[program.emits :]
    single = np.zeros(slots, np.int32)
    single[emits[emits[:, 0] < KEYS, 3]] = 1
    return single


def new_registers(program: Program, fields: int, elements: int, derived: int) -> Registers:
    """Registers with room for the list elements and the derived text of one block of rows.

    ``fields`` is how many a line has.
    """
    columns = len(program.origins)
    text = np.zeros((program.texts, BLOCK), np.uint64)
    text[: len(program.constants)] = program.constants[:, None]
    starts, ends = np.zeros((2, columns, BLOCK), np.int64)
    firsts, lasts = np.zeros((2, program.lists, BLOCK), np.int64)
    return Registers(
        starts,
        ends,
        text,
        np.zeros((columns, BLOCK)),
        firsts,
        lasts,
        np.zeros(BLOCK, np.int64),
        np.zeros(BLOCK, np.int32),
        np.empty(elements, np.uint64),
        np.empty(derived, np.uint8),
        np.empty(elements, np.uint64),
        np.empty(elements, np.uint32),
        np.empty((BLOCK, fields + 1), np.int32),
    )
