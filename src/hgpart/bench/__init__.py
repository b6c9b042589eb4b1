"""Model + ways of training it, or running it -> Bench: seconds per step of each, in turns.

`ways` are the ways of others and of hgpart, one file each; `plans` finds the partition of a way
that has one. `process` is one process of a way, `session` starts and watches all of them; `turns`
measures seconds per step or pass, way after way, and `races` seconds to an accuracy. `results`
holds what was measured.
"""
