"""What ``exporting.pyx`` uses of the conversions."""

from bridge.interop.views cimport MemoryRecord

cdef view_in_cupy(array, int device_id, caller=*)
cdef MemoryRecord memory_of(array, dict attributes, int device_id, caller, bint is_for_cupy=*)
