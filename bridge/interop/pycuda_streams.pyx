# cython: auto_pickle=False
"""PyCUDA's streams that are alive, each with a record for the rule of `bridge.interop.ordering`.

When a stream ends, the default stream waits for it, and stands for it from then on.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdlib cimport free, malloc, realloc

from bridge.interop.contexts cimport *
from bridge.interop.driver cimport *
from bridge.interop.streams cimport *

import gc
from contextlib import suppress
from functools import wraps

import pycuda.driver as drv

from . import patches

cdef Followed *followed = NULL  # those that are alive
cdef Py_ssize_t followed_room = 0
cdef object stream_init = drv.Stream.__init__


cdef Followed *follow(stream) except? NULL:
    """Let the rule include a PyCUDA stream."""
    global followed, followed_count, followed_room, non_blocking_count
    cdef Followed *found
    cdef Handle context = NULL
    cdef Stream handle = stream.handle
    cdef Py_ssize_t room = 2 * followed_room + 8
    if followed_count == followed_room:
        found = <Followed *> realloc(followed, room * sizeof(Followed))
        if found is NULL:
            raise MemoryError
        followed, followed_room = found, room
    follow_to_its_end(type(stream))
    found = &followed[followed_count]
    if cuStreamGetCtx(handle, &context):
        return NULL
    found.stream, found.handle, found.context = <PyObject *> stream, handle, context
    found.is_blocking = not is_non_blocking(handle)
    followed_count += 1
    non_blocking_count += not found.is_blocking
    return found


cdef int follow_to_its_end(kind) except -1:
    """Let a subclass that has a ``__del__`` of its own call `unfollow`, too."""
    own = kind.__del__
    if own is not unfollow and not hasattr(own, "bridge_unfollows"):

        @wraps(own)
        def end(self):
            try:
                own(self)
            finally:
                unfollow(self)

        end.bridge_unfollows = True
        patches.apply("streams", "a subclass's streams end, too", kind, {"__del__": end})
    return 0


cdef bint forget(stream, Followed *found) noexcept:
    """Remove a stream's record, and return it in `found`; False if there is none."""
    global followed_count, non_blocking_count
    cdef Py_ssize_t index
    for index in range(followed_count - 1, -1, -1):  # the newest is likely
        if followed[index].stream == <PyObject *> stream:
            found[0] = followed[index]
            followed_count -= 1
            followed[index] = followed[followed_count]
            non_blocking_count -= not found.is_blocking
            return True
    return False


def count_followed():
    """Return how many PyCUDA streams the rule includes beside the default stream."""
    return followed_count


def init_and_follow(self, *args, **keywords):
    """Make a stream; a non-blocking one waits for the default stream, as blocking ones do.

    The default stream may have waited for the last work on memory that is reused.
    """
    stream_init(self, *args, **keywords)
    cdef Followed *found = follow(self)
    if found is not NULL and not found.is_blocking and default_is_usable(found.context):
        fence(found.handle, 0)


def unfollow(self):
    """Let the default stream wait for the work of a stream that ends."""
    cdef Followed found
    cdef Handle current = cuda_current()
    if not forget(self, &found) or abandoned or device_of(found.context) < 0:
        return
    cuCtxSetCurrent(found.context)
    if default_is_usable(found.context) and not is_capturing(found.handle):
        fence(0, found.handle)
    cuCtxSetCurrent(current)


# A subclass would miss the streams of programs that have imported the name, or made some, earlier.
patches.apply("streams", "work is ordered with all streams that are alive", drv.Stream, {
    "__init__": init_and_follow, "__del__": unfollow,
})
for one in gc.get_objects():
    if issubclass(type(one), drv.Stream):
        with suppress(TypeError):  # its __init__ has not run
            follow(one)
one = None


cdef Followed *take_followed(bint blocking, Py_ssize_t *count) noexcept:
    """Copy the records of one kind, and keep their streams alive; return NULL if memory is out."""
    cdef Handle context = cuda_current()
    cdef Py_ssize_t index
    cdef Followed *found = <Followed *> malloc((followed_count + 1) * sizeof(Followed))
    count[0] = 0
    for index in range(followed_count if found is not NULL else 0):
        if followed[index].is_blocking == blocking and followed[index].context == context:
            found[count[0]] = followed[index]
            Py_INCREF(<object> followed[index].stream)  # CUDA crashes for a destroyed stream
            count[0] += 1
    return found


cdef void drop_followed(Followed *found, Py_ssize_t count) noexcept:
    cdef Py_ssize_t index
    for index in range(count):
        Py_DECREF(<object> found[index].stream)
    free(found)
