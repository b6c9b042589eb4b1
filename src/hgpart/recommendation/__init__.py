"""Model, times of its layers, Machine -> Recommendation: the way that is fastest, or fits.

`divisions` are the ways to divide a model and a batch, `orders` the schedules that are tried for
each, `memory` what a device then needs; `recommend` simulates them, `ranking` is what comes of it,
`measuring` runs the best of them.
"""
