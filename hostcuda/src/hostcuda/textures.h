// CUDA arrays, and the texture and surface objects that read and write images.
#pragma once
#include "model.h"

namespace hostcuda {

const size_t TEXTURE_PITCH = 32;  // what rows of pitched memory are a multiple of

// Rows of texels, in a CUDA array or in ordinary device memory.
struct Image {
  char *data = nullptr;
  size_t size[3] = {};  // texels in x, y and z (or layers); 1 where there is no such dimension
  size_t row = 0, slice = 0;  // bytes from one to the next
  unsigned channels = 0;
  CUarray_format format = CU_AD_FORMAT_FLOAT;

  size_t channel_bytes() const {
    switch (format) {
      case CU_AD_FORMAT_UNSIGNED_INT8:
      case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
      case CU_AD_FORMAT_UNSIGNED_INT16:
      case CU_AD_FORMAT_SIGNED_INT16:
      case CU_AD_FORMAT_HALF:
        return 2;
      case CU_AD_FORMAT_UNSIGNED_INT32:
      case CU_AD_FORMAT_SIGNED_INT32:
      case CU_AD_FORMAT_FLOAT:
        return 4;
      default:
        return 0;  // the formats of video and of compressed textures
    }
  }
  size_t texel() const { return channels * channel_bytes(); }
  bool valid() const { return channel_bytes() && (channels == 1 || channels == 2 || channels == 4); }
  size_t bytes() const { return (size[2] - 1) * slice + (size[1] - 1) * row + size[0] * texel(); }
};

struct Array {
  CUDA_ARRAY3D_DESCRIPTOR description;
  Image image;
};

struct Texture {
  Image image;
  CUDA_TEXTURE_DESC how;  // not of a surface
  bool surface;
};

inline std::map<CUarray, Array> arrays;
inline std::map<uint64_t, Texture> textures;  // and surfaces, by their objects

}  // namespace hostcuda
