"""PTX that programs load, and images that they cannot load."""

import numpy as np
import pytest

PTX = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .global .align 4 .f32 factor = 0f40400000;
.visible .entry scale(.param .u64 p, .param .u32 n)
{
  .reg .pred %q; .reg .b32 %r<3>; .reg .b64 %d<4>; .reg .f32 %f<4>;
  ld.param.u64 %d1, [p];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  setp.ge.u32 %q, %r2, %r1;
  @%q bra END;
  mul.wide.u32 %d2, %r2, 4;
  add.s64 %d3, %d1, %d2;
  ld.global.f32 %f1, [%d3];
  ld.global.f32 %f3, [factor];
  mul.f32 %f2, %f1, %f3;
  st.global.f32 [%d3], %f2;
END:
  ret;
}
"""


@pytest.fixture
def load(gpu):
    import pycuda.driver as drv

    return drv.module_from_buffer


def test_ptx_is_loaded(load, tmp_path):
    import pycuda.driver as drv

    path = tmp_path / "scale.ptx"
    path.write_bytes(PTX)
    for module in load(PTX), drv.module_from_file(str(path)):
        values = np.arange(8, dtype="f")
        module.get_function("scale")(drv.InOut(values), np.int32(5), block=(8, 1, 1))
        assert values.tolist() == [0, 3, 6, 9, 12, 5, 6, 7]
        pointer, size = module.get_global("factor")
        assert size == 4
        drv.memcpy_htod(pointer, np.float32(5))
        module.get_function("scale")(drv.InOut(values), np.int32(1), block=(8, 1, 1))
        assert values[1] == 3


def test_comments_and_texts_are_skipped(load):
    load(PTX.replace(b"_size 64", b'_size 64 // caf\xe9 "\n.file 1 "/a//b.cu"\n/* } */'))


def test_cupy_loads_ptx(tmp_path):
    import cupy

    path = tmp_path / "scale.ptx"
    path.write_bytes(PTX)
    x = cupy.arange(4, dtype="f")
    cupy.RawModule(path=str(path)).get_function("scale")((1,), (4,), (x, np.int32(4)))
    assert x.tolist() == [0, 3, 6, 9]


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (PTX.replace(b"mul.f32", b"foo.f32"), r"hostcuda: foo.f32 is not supported \(in scale\)"),
        (PTX.replace(b"mul.f32", b"mma.sync"), "hostcuda: mma.sync is not supported"),
        (PTX[:-20], "hostcuda: PTX that ends in a statement"),
        (PTX[:-3], r"hostcuda: PTX that ends in a function \(in scale\)"),
        (PTX + b".section .x {", "hostcuda: PTX that is not known: '.section .x {'"),
        (PTX + b"}", "hostcuda: PTX that is not known: '}'"),
        (PTX.replace(b", %f1, %f3", b""), "hostcuda: PTX that is not known: 'mul.f32 %f2'"),
        (PTX.replace(b"%f1, %f3", b"%f1,, %f3"), "hostcuda: PTX that is not known: 'mul.f32 %f2, "),
        (PTX.replace(b"mul.f32", b"rem.f32"), "hostcuda: PTX that is not known: 'rem.f32 %f2, %f1"),
        (PTX.replace(b"0f40400000", b"{1, 0x}"), "hostcuda: the value 0x of factor is not support"),
        (PTX.replace(b"size 64", b"size 32"), "hostcuda: PTX's .address_size 32 is not supported"),
        (
            PTX + b".func (.reg .u32 r) g(.reg .u32 a) { mov.u32 r, a; ret; }",
            r"hostcuda: parameters in registers are not supported \(in g\)",
        ),
        (
            PTX.replace(b"mul.f32", b"atom.exch.b128"),
            "hostcuda: atom.exch.b128 is not supported",
        ),
        (
            PTX.replace(b"mul.f32", b"vadd.u32.u32.u32"),
            r"hostcuda: vadd.u32.u32.u32 is not supported \(in scale\)",
        ),
        (
            PTX.replace(b"mul.f32", b"prmt.b32.f4e").replace(b"%f1, %f3", b"%f1, %f3, 1"),
            r"hostcuda: .f4e of prmt.b32.f4e is not supported \(in scale\)",
        ),
        (
            PTX.replace(b"mul.f32", b"testp.finite.f32"),
            r"hostcuda: testp.finite.f32 is not supported \(in scale\)",
        ),
        (
            PTX.replace(b"mul.f32", b"cvt.rna.tf32.f32"),
            r"hostcuda: cvt.rna.tf32.f32 is not supported \(in scale\)",
        ),
        (
            PTX.replace(b"mul.f32", b"cvt.rn.satfinite.e4m3x2.f32"),
            r"hostcuda: cvt.rn.satfinite.e4m3x2.f32 is not supported \(in scale\)",
        ),
        (
            PTX.replace(b"mul.f32", b"vabsdiff4.u32.u32.u32.sat"),
            r"hostcuda: vabsdiff4.u32.u32.u32.sat is not supported \(in scale\)",
        ),
        (b"\x7fELF\x02\x01\x01" + bytes(200), "hostcuda: a cubin or a fat binary is code of a GPU"),
        (b"\x50\xed\x55\xba" + bytes(200), "hostcuda: a cubin or a fat binary is code of a GPU"),
        (b"no image" + bytes(200), "invalid"),
    ],
    ids=[
        "an unknown opcode",
        "mma",
        "cut",
        "cut before a brace",
        "cut in a section",
        "a brace",
        "an operand",
        "no operand",
        "a type",
        "a value",
        "32 bits",
        "registers",
        "16 bytes",
        "vadd",
        "a mode of prmt",
        "testp",
        "tf32",
        "8-bit floats",
        "vabsdiff4",
        "a cubin",
        "a fat binary",
        "text",
    ],
)
def test_what_cannot_be_loaded_says_why(load, image, said):
    import pycuda.driver as drv

    with pytest.raises((drv.Error, ValueError), match=said):
        load(image)
