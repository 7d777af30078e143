"""Data: one global order for any number of ranks, dealt out to them, resumed exactly, and proved by a ledger.

`permutation` is the order without memory; `partition` the arithmetic of steps and shares; `sampler` the position in
it; `loader` collates batches, in the rank or in worker processes; `augmentation` gives each sample its own randomness;
`stream` reads what has no random access; `staging` copies data to the hosts; `ledger` and `audit` prove what was used.

    train = loader(run, dataset, global_batch_size=64)
    for batch in train:                                    # to the end of the epoch, from wherever it was resumed
        step(batch.data)
        batch.commit()
"""
