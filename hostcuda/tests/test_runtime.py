"""Functions of `cupy.cuda.runtime`, called from Python."""

import inspect

import cupy
import numpy as np
import pytest
from cupy.cuda import runtime


def test_functions_take_keywords():
    x = cupy.zeros(8, np.uint8)
    runtime.memset(ptr=x.data.ptr, value=3, size=np.int64(8))
    assert x.tolist() == [3] * 8
    assert list(inspect.signature(runtime.memset).parameters) == ["ptr", "value", "size"]


def test_an_argument_can_be_left_out_or_given():
    stream = cupy.cuda.Stream(non_blocking=True)
    for given in ((), (runtime.streamCaptureModeRelaxed,)):
        runtime.streamBeginCapture(stream.ptr, *given)
        assert stream.is_capturing()
        runtime.graphDestroy(runtime.streamEndCapture(stream.ptr))
    with pytest.raises(runtime.CUDARuntimeError, match="NotSupported"):
        runtime.streamBeginCapture(stream.ptr, mode=runtime.streamCaptureModeThreadLocal)


@pytest.mark.parametrize(
    "call",
    [lambda: runtime.memset(1, 2), lambda: runtime.malloc(n=8), lambda: runtime.malloc(8.5)],
    ids=["too few", "another name", "no integer"],
)
def test_wrong_arguments_are_type_errors(call):
    with pytest.raises(TypeError):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: runtime.ipcGetMemHandle(cupy.zeros(8).data.ptr),
        lambda: runtime.ipcGetEventHandle(cupy.cuda.Event().ptr),
        lambda: runtime.ipcOpenMemHandle(b"\0" * 64),
        lambda: runtime.ipcOpenEventHandle(b"\0" * 64),
    ],
    ids=["memory", "event", "open memory", "open event"],
)
def test_memory_of_other_processes_is_not_supported(call):
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorNotSupported"):
        call()


def test_peer_access_that_is_not_enabled_cannot_be_disabled():
    with pytest.raises(runtime.CUDARuntimeError, match="InvalidDevice"):
        runtime.deviceDisablePeerAccess(peerDevice=1)
