"""Where $HOSTCUDA says so, install hostcuda's driver when PyCUDA or CuPy is imported.

`hostcuda.pth` imports this module when an interpreter starts, so it imports nothing itself.
"""

import sys

LIBRARIES = {"cupy", "cupyx", "cupy_backends", "pycuda"}


class Finder:
    """Finds no module, but sees the first import of the libraries."""

    def find_spec(self, name, path, target=None):
        if name not in LIBRARIES:
            return None
        import hostcuda

        if hostcuda.install_by_variable():
            hostcuda.print_damage()
        if self in sys.meta_path:  # the libraries stay on the GPU
            sys.meta_path.remove(self)
        if name not in sys.modules:
            return None
        module = sys.modules[name]  # to install without a pool has imported CuPy
        self.spec, module.__spec__ = module.__spec__, None  # or Python runs it again
        return type(self.spec)(name, self)

    def create_module(self, spec):
        return sys.modules[spec.name]

    def exec_module(self, module):
        module.__spec__ = self.spec


sys.meta_path.insert(0, Finder())
