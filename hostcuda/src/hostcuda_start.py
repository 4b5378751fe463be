"""Where $HOSTCUDA says so, install hostcuda's driver when a library of CUDA's is imported.

`hostcuda.pth` imports this module when an interpreter starts, so it imports nothing itself.
"""

import sys


class Finder:
    """Finds no module, but sees the first import of the libraries."""

    def find_spec(self, name, path, target=None):
        if name not in ("cupy", "cupyx", "pycuda", "cuda.bindings", "cuda.core", "numba.cuda"):
            return None
        import hostcuda

        if hostcuda.install_by_variable():
            hostcuda.print_damage()
            return sys.meta_path[0].find_spec(name, path)  # Python does not ask this new one now
        sys.meta_path.remove(self)  # the libraries stay on the GPU
        return None


sys.meta_path.insert(0, Finder())
