"""Problem, machine, times of layers -> the partition and micro-batches of least simulated time.

`portfolio` is what there is to choose from, `choosing` simulates all of it.
"""
