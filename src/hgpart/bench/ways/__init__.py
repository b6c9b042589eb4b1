"""Way + Job -> Worker: what each process does of a step, one file for each kind of way.

`way` has their names and what they need, `job` what is trained, `layout` what a way's processes
must know of its cuts. `worker` is the face of all of them, and one process alone; `ddp`, `fsdp`
and `pipelines` are torch's own, `parameter_servers` are over torch RPC, `placed` are hgpart's.
"""
