"""The capture of a stream into a graph."""

import contextlib


@contextlib.contextmanager
def captured(stream):
    """Capture a CuPy stream; the graph must stay whole, and is run at the end."""
    with stream:
        stream.begin_capture()
        try:
            yield
        finally:
            graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
