"""Files in, arrays out: readers, shards, minibatches, and the extraction of features."""
