"""An operator of one's own: see `custom_features.ini`."""


def price_digits(prices: list[str]) -> list[str]:
    """How many digits each price has before its point: a coarse bucket."""
    return [str(len(price.split(".")[0])) for price in prices]


def shared_words(titles: list[str], queries: list[str]) -> list[str]:
    """The words that a title shares with a query, as a comma list for `group`."""
    pairs = zip(titles, queries, strict=True)
    return [",".join(sorted({*a.split()} & {*b.split()})) for a, b in pairs]
