"""Names that old programs use."""

BEFORE_CUDA_4 = dict.fromkeys(
    (
        "launch",
        "launch_grid",
        "launch_grid_async",
        "param_set",
        "param_set_size",
        "param_seti",
        "param_setf",
        "param_setv",
        "set_block_shape",
        "set_shared_size",
    ),
    "call f(*args, grid=..., block=...)",
)
