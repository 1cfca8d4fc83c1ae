#define TERCET_SIMD_ISA "avx512"
#define TERCET_SIMD_TABLE kSimdAvx512
#define TERCET_SIMD_BYTES 64
#include "kernels/simd.inc"
