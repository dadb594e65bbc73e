"""The operators of a features file, as the table of ``feature_extract/README.md`` has them.

What a line must look like is read from here (``features``); what an operator computes is
``ctrps.kernels.program``'s.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operator:
    """What an operator takes and gives, in the words of the reference table.

    ``sections`` are the kinds of section that may use it, ``least`` and ``most`` bound its
    fields (``most`` 0: no bound), and ``arguments`` are the parts of a line after its name.
    """

    form: str
    sections: tuple[str, ...]
    least: int
    most: int
    arguments: tuple[int, int]
    result: str
    empty: str


OPERATORS = {
    "direct": Operator(
        "field,direct",
        ("id", "label", "dense", "sparse"),
        1,
        1,
        (0, 0),
        "the text as it stands; as a dense feature, its number",
        "a value of its own; dense 0",
    ),
    "log": Operator(
        "field,log", ("dense",), 1, 1, (0, 0), "ln(x + 1); x <= -1 is a bad value", "0"
    ),
    "sqrt": Operator(
        "field,sqrt", ("dense",), 1, 1, (0, 0), "√(x + 1); x < -1 is a bad value", "0"
    ),
    "bucket": Operator(
        "field,bucket,b0|b1|…",
        ("sparse",),
        1,
        1,
        (1, 1),
        "number of the first break line that is >= x, or how many there are; qN: break lines "
        "that share training rows into N equal parts",
        "bucket -1",
    ),
    "combine": Operator(
        "f1|f2|…,combine,op1|op2|…,a1#a2#…",
        ("id", "sparse"),
        1,
        0,
        (2, 2),
        "one value per combination; parts are direct, bucket with break lines, and group, each "
        "of whose elements is combined",
        "a part like any other",
    ),
    "group": Operator(
        "field,group[,prefix]",
        ("sparse",),
        1,
        1,
        (0, 1),
        "every element of a comma list; they share the prefix and weigh 1/n each",
        "one empty element",
    ),
    "hit": Operator(
        "f1|f2,hit",
        ("sparse",),
        2,
        2,
        (0, 0),
        "1 when f1 is a whole element of the comma list f2, else 0",
        "an empty f1 hits an empty element, but not an empty list",
    ),
    "tidy": Operator(
        "field,tidy,lower|strip|squeeze",
        ("derived",),
        1,
        1,
        (1, 1),
        "the text with ASCII letters in lower case, without blanks around it, with one blank for "
        "several",
        "an empty text",
    ),
    "set": Operator(
        "field,set",
        ("derived",),
        1,
        1,
        (0, 0),
        "the distinct elements of a comma list in the order of their bytes, as a comma list",
        "an empty text",
    ),
    "hour": Operator(
        "field,hour,ZONE",
        ("derived",),
        1,
        1,
        (1, 1),
        "hour, 0 to 23, of seconds since 1970 in a time zone such as Asia/Shanghai",
        "an empty text",
    ),
    "weekday": Operator(
        "field,weekday,ZONE",
        ("derived",),
        1,
        1,
        (1, 1),
        "day of the week, 1 (Monday) to 7, of seconds since 1970 in a time zone",
        "an empty text",
    ),
    "python": Operator(
        "f1|f2|…,python,FILE.py:FUNCTION",
        ("derived",),
        1,
        0,
        (1, 1),
        "what your function makes of columns of texts: one text for each row",
        "as your function says",
    ),
}

SCALES = ("standard", "minmax")
"""How a dense feature may be normalised: to mean 0 and deviation 1, or to 0 … 1."""
