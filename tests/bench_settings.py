"""What benches and races of the tests are of."""

SETTINGS = {
    "model": "toy",
    "input_shape": (1, 8, 8),
    "fingerprint": "f",
    "batch_size": 8,
    "processes": 2,
    "threads": 1,
    "eps": 0.1,
    "effort": 1.0,
    "lr": 0.01,
    "seed": 0,
    "work_source": "flops",
    "work_digest": "w",
}
