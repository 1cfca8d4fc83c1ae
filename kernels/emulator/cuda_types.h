// CUDA's qualifiers and vector types for g++, under CUDA's own names.
#pragma once

#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
// One block runs at a time, so that its shared arrays may be static. kernels/emulator/shared_memory.h finds and poisons
// them.
#define __shared__ static

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// name2 and name4, of `element`, aligned as on the device.
#define TERCET_VECTOR_TYPE(name, element)                                         \
  struct __align__(2 * sizeof(element)) name##2 {                                 \
    element x, y;                                                                 \
  };                                                                              \
  struct __align__(4 * sizeof(element) < 16 ? 4 * sizeof(element) : 16) name##4 { \
    element x, y, z, w;                                                           \
  };                                                                              \
  inline name##2 make_##name##2(element x, element y) { return {x, y}; }          \
  inline name##4 make_##name##4(element x, element y, element z, element w) { return {x, y, z, w}; }

TERCET_VECTOR_TYPE(float, float)
TERCET_VECTOR_TYPE(double, double)
TERCET_VECTOR_TYPE(int, int)
TERCET_VECTOR_TYPE(uint, unsigned)
TERCET_VECTOR_TYPE(ushort, unsigned short)
#undef TERCET_VECTOR_TYPE
