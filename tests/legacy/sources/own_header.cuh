// For own_header.py.
#ifndef OWN_HEADER_CUH
#define OWN_HEADER_CUH

typedef struct { float x, y, z; } vec3;

static __device__ vec3 cross(vec3 a, vec3 b)
{
    vec3 c = {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
    return c;
}

#endif
