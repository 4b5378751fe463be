"""What runs on other threads."""

import gc
import threading
from concurrent.futures import Future


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
    """Call a function on another thread; return its result, or raise its error."""
    done = Future()

    def call(_):
        try:
            done.set_result(action())
        except Exception as error:
            done.set_exception(error)

    on_threads(call, None)
    return done.result()
