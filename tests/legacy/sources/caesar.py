"""Caesar's cipher over the bytes of a string, there and back."""

import numpy as np
import pycuda.driver as drv

TEXT = "Veni, vidi, vici! (47 BC) The quick brown fox jumps over the lazy dog."
SHIFT = 3


def run(SourceModule):
    mod = SourceModule("""
    __device__ char rotate(char c, char first, int shift)
    {
        return first + (c - first + shift + 26) % 26;
    }

    __global__ void caesar(char *text, int length, int shift)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= length)
            return;
        char c = text[i];
        if (c >= 'a' && c <= 'z')
            text[i] = rotate(c, 'a', shift);
        else if (c >= 'A' && c <= 'Z')
            text[i] = rotate(c, 'A', shift);
    }
    """)
    caesar = mod.get_function("caesar")

    text = np.array(TEXT.encode())  # dtype S70
    length = np.int32(len(TEXT))
    text_gpu = drv.mem_alloc(text.nbytes)
    drv.memcpy_htod(text_gpu, text)
    caesar(text_gpu, length, np.int32(SHIFT), block=(32, 1, 1), grid=(3, 1))
    secret = np.empty_like(text)
    drv.memcpy_dtoh(secret, text_gpu)

    caesar(text_gpu, length, np.int32(-SHIFT), block=(32, 1, 1), grid=(3, 1))
    drv.memcpy_dtoh(text, text_gpu)
    return {"secret": secret, "text": text}


def expected():
    secret = b"Yhql, ylgl, ylfl! (47 EF) Wkh txlfn eurzq ira mxpsv ryhu wkh odcb grj."
    return {"secret": np.array(secret), "text": np.array(TEXT.encode())}
