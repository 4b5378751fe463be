"""What ``exporting.pyx`` uses of the conversions."""

from bridge.interop.views cimport View
from bridge.interop.contexts cimport Stream

cdef tuple kept_streams(Stream current, stream)
cdef view_in_cupy(
    array, Stream awaited, Stream waiter, tuple kept, int device_id, bint is_ordered
)
cdef View memory_of(array, dict attributes, int device_id, caller)
cdef view_in_pycuda(
    array, Stream awaited, Stream waiter, tuple kept, int device_id, bint is_ordered=*
)
