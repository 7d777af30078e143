"""How fast a training will be on ranks and networks that are not there: a model of scaling, fitted at 1 and 2 ranks.

What was measured and what is a model beyond it is kept apart in everything that is shown.

    fitted = measure(Subject(recipe=("digits",)), env=os.environ, say=print)
    forecast(fitted, size=4)                                                   # ms per step and their interval
    forecast(fitted, size=4, network=Network(bandwidth_mbit=100, latency_us=50))

`line` fits a latency and a time per byte; `algorithms` knows what MPI's all-reduce sends, and when, at each number of
ranks; `model` joins them; `measure` makes or reads what they are fitted to; `report` shows it.
"""
