"""Dask with one worker process for each GPU."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

START = 60  # seconds after which the start counts as stuck


@contextlib.contextmanager
def cluster(gpus: int) -> Iterator[tuple[Any, list[str]]]:
    """Start a worker process of one thread for each GPU; yield Dask's client, their addresses."""
    import dask
    from distributed import Client, Nanny, Scheduler, SpecCluster

    # A worker that died is not replaced: the others would wait for it in NCCL.
    dask.config.set({"distributed.scheduler.allowed-failures": 0})
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the workers end, too
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    options = {
        "host": "127.0.0.1",
        "nthreads": 1,
        "memory_limit": 0,  # none: Dask would set it by a memory size that may yet grow
        "silence_logs": logging.ERROR,
    }
    workers = {}
    for number in range(gpus):
        device = {"CUDA_VISIBLE_DEVICES": visible[number] if visible else str(number)}
        workers[number] = {"cls": Nanny, "options": {**options, "env": device}}
    where = {"dashboard_address": ":0", "host": "127.0.0.1", "port": 0, "dashboard": False}
    scheduler = {"cls": Scheduler, "options": where}
    with (
        SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.ERROR) as started,
        Client(started, timeout=START) as client,
    ):
        client.wait_for_workers(gpus, timeout=START)
        yield client, [started.workers[number].worker_address for number in range(gpus)]


def results(client: Any, futures: list[Any], limit: float, what: str) -> list[Any]:
    """Return the results of tasks; raise the first error of one, or TimeoutError.

    A rank that fails is seen at once, although the others still wait for it in NCCL.
    """
    from distributed import TimeoutError as Late, as_completed

    try:
        for future in as_completed(futures, timeout=limit):
            if future.status != "finished":
                future.result()  # raises
    except Late:
        states = ", ".join(future.status for future in futures)
        raise TimeoutError(f"{what}: no end within {limit} s; the tasks are {states}") from None
    found: list[Any] = client.gather(futures)
    return found
