"""setuptools' wheels, and `hostcuda.pth` beside the packages, where Python looks for it."""

import base64
import hashlib
import zipfile
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 (what pip calls besides)

PTH = Path(__file__).with_name("hostcuda.pth")


def _with_pth(folder, name):
    path = Path(folder, name)
    with zipfile.ZipFile(path) as wheel:
        files = {entry: wheel.read(entry) for entry in wheel.namelist()}
    files[PTH.name] = PTH.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(files[PTH.name]).digest()).rstrip(b"=")
    record = next(entry for entry in files if entry.endswith(".dist-info/RECORD"))
    files[record] += b"%s,sha256=%s,%d\n" % (PTH.name.encode(), digest, len(files[PTH.name]))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for entry, content in files.items():
            wheel.writestr(entry, content)
    return name


def build_wheel(folder, settings=None, metadata=None):
    return _with_pth(folder, build_meta.build_wheel(folder, settings, metadata))


def build_editable(folder, settings=None, metadata=None):
    return _with_pth(folder, build_meta.build_editable(folder, settings, metadata))
