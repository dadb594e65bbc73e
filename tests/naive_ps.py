"""Slow, obvious twins of the plan and of a step: plain lists, dicts and float32 scalars."""

from collections import defaultdict

import numpy as np

from tests import naive


def plan_lanes(files, settings, number):
    """Lanes as lists of batches, a batch as a list of (file, block, row in the block)."""
    blocks = [
        (f, b, rows) for f, file in enumerate(files) for b, rows in enumerate(file.block_rows)
    ]
    size = settings.batch_rows
    total = sum(len(range(0, rows, size)) for *_, rows in blocks)
    run = size * min(settings.chunk_batches, max(1, total // (8 * settings.lanes)))
    chunks = [
        [(f, b, row) for row in range(first, min(first + run, rows))]
        for f, b, rows in blocks
        for first in range(0, rows, run)
    ]
    order = list(range(len(chunks)))
    if settings.shuffle != "none":
        start = naive.mix(naive.mix(settings.seed, number), 0)
        order.sort(key=lambda chunk: naive.mix(start, chunk))
    lanes = [] if settings.mode == "async" else [[] for _ in range(settings.lanes)]
    for chunk in order:
        rows = chunks[chunk]
        if settings.shuffle == "rows":
            start = naive.mix(naive.mix(settings.seed, number), chunk + 1)
            inside = sorted(range(len(rows)), key=lambda i, start=start: naive.mix(start, i))
            rows = [rows[i] for i in inside]
        batches = [rows[i : i + size] for i in range(0, len(rows), size)]
        if settings.mode == "async":
            lanes.append(batches)
        else:
            min(lanes, key=len).extend(batches)
    return lanes


def fold(parts):
    """(key, column) -> (sum, rows) of the lanes' parts, in the order given."""
    sums: dict[tuple[int, int], tuple[np.float32, int]] = {}
    for keys, gradient, counts in parts:
        for key, row, count in zip(keys.tolist(), gradient, counts.tolist(), strict=True):
            for column, g in enumerate(row):
                place = (key, column)
                if place in sums:
                    sums[place] = (np.float32(sums[place][0] + g), sums[place][1] + count)
                else:
                    sums[place] = (g, count)
    return sums


class Rows:
    """Every weight from the list of all gradients that its coordinate ever had."""

    def __init__(self, model):
        self.model = model
        self.gradients: dict[tuple[int, int, int], list[float]] = defaultdict(list)

    def apply(self, lanes):
        rows = sum(part.rows for part in lanes.values())
        for number, table in enumerate(self.model.tables):
            parts = [
                (lanes[g].keys[number], lanes[g].gradients[number], lanes[g].counts[number])
                for g in sorted(lanes)
            ]
            for (key, column), (g, count) in fold(parts).items():
                block = self.part(table, column).optimizer
                scale = 1 / rows if block.kind == "sgd" else 1
                scaled = naive.scaled(float(g), count, scale, block.count_scale)
                self.gradients[number, key, column].append(scaled)

    @staticmethod
    def part(table, column):
        return next(p for p in table.parts if p.at <= column < p.at + p.width)

    def weight(self, number, key, column):
        part = self.part(self.model.tables[number], column)
        block, history = part.optimizer, self.gradients.get((number, key, column), [])
        start = part.init_scale * naive.initial(self.model.seed, key, column)
        if not history:
            return start
        if block.kind == "ftrl":
            assert not start
            return naive.ftrl(history, block.alpha, block.beta, block.l1, block.l2)[-1]
        if block.kind == "adagrad":
            return naive.adagrad(history, block.alpha, block.beta, block.l2, start)[-1]
        return naive.sgd(history, block.alpha, block.l2, start)[-1]

    def weights(self, number, keys):
        dim = self.model.tables[number].dim
        return [[self.weight(number, int(key), j) for j in range(dim)] for key in keys]
