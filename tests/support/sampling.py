"""Threads, and a profiler that samples.

Such a profiler holds frames beyond their end, and lets go of them on its own thread.
"""

import gc
import sys
import threading


def on_threads(action, *arguments):
    """Call a function with each argument, on as many threads at once.

    What earlier tests left in cycles is collected before: a thread cannot free PyCUDA's memory.  It
    is not where the collector is off, as within a latch: to free such memory, the host waits.
    """
    if gc.isenabled():
        gc.collect()
    threads = [threading.Thread(target=action, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def on_a_thread(action):
    on_threads(lambda _: action(), None)


def every_call():
    """Yield 1, 2 and so on, and a list for what `sampled` returns, until no action had so many."""
    which, calls = 0, [0]
    while max(calls) >= which:
        which, calls = which + 1, []
        yield which, calls


def sampled(action, which):
    """Do something, with the frame of its `which`-th call held until afterwards.

    Returns the number of calls.
    """
    count, frames = 0, []

    def sample(frame, event, _):
        nonlocal count
        if event == "call":
            count += 1
            if count == which:
                frames.append(frame)

    sys.setprofile(sample)
    try:
        action()
    finally:
        sys.setprofile(None)
    on_a_thread(frames.clear)
    return count
