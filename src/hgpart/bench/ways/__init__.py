"""Way + Job -> Worker, Runner: what each process does in a step or pass, a file a kind of way.

`way` has their names and requirements, and what a way's processes must know of its cuts; `job` is
what is trained. `worker` is the interface of all of them, and a single process; `ddp`, `fsdp` and
`pipelines` are torch's own, `parameter_servers` and `placed` are hgpart's. `fused_tiles` run
forward only; `tiles` says which rows they compute.
"""
