"""Model + ways of training it -> Bench: seconds a step of each, measured in turns.

`ways` are what others and hgpart do, a file each; `plans` finds the partition of a way that has
one. `process` is one process of a way, `session` starts and watches all of them; `turns` goes from
way to way for seconds a step, `races` for seconds to an accuracy. `results` are what comes of it.
"""
