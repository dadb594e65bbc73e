"""A single minibatch of a block, for tests that need no more."""

from ctrps.data.batches import BlockBatches


def minibatch(block, order, schema, bits):
    return BlockBatches(block, schema, bits).minibatch(order)
