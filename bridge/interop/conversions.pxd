"""What ``exporting.pyx`` uses of the conversions."""

from bridge.interop.driver cimport Stream
from bridge.interop.views cimport MemoryRecord

cdef tuple kept_streams(Stream current, stream)
cdef view_in_cupy(
    array, Stream awaited, Stream waiter, tuple kept, int device_id, bint is_ordered, caller=*
)
cdef MemoryRecord memory_of(array, dict attributes, int device_id, caller, bint is_for_cupy=*)
cdef view_in_pycuda(
    array, Stream awaited, Stream waiter, tuple kept, int device_id, bint is_ordered=*
)
