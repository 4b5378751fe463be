"""What ``exporting.pyx`` uses of the conversions."""

from bridge.interop.views cimport MemoryRecord

cdef new_cupy_view(array, int device_id, caller=*)
cdef MemoryRecord memory_of(array, dict attributes, int device_id, caller, bint is_for_cupy=*)
