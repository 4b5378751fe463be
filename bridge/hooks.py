"""What tools on top of `bridge` may use beside its public names.

Of `interop` and `kernels`, `bridge.legacy` uses nothing else.  These names may change with a
minor version.
"""

from __future__ import annotations

from .interop import patches as patches
from .interop.contexts import cuda_device as cuda_device, shared_device as shared_device
from .interop.driver import libcuda as libcuda
from .interop.importing import check_device as check_device
from .interop.memory_kinds import Allocation as Allocation
from .interop.scopes import push_primary as push_primary
from .interop.streams import is_capturing as is_capturing
from .interop.wrapping import adapt_pycuda as adapt_pycuda
from .kernels.extensions import LaunchPolicy as LaunchPolicy, LaunchReference as LaunchReference
from .kernels.launch_limits import cuda_refusal as cuda_refusal
