"""The best settings for one model, its hosts and ranks: many are tried shortly, fewer longer, and one is verified.

    candidates = sample(space(ranks=2, cores=2, given=()), count=12, seed=0)
    rounds = halve(candidates, measure, steps=12)
    rounds[-1].best                        # becomes a profile only when it is proved faster than the defaults

`candidates` knows what can be set; `halving` is the search, a pure function; `search` runs trainings for it and gives
a profile, which `hvdtrain run` and `hvdtrain launch` take.
"""
