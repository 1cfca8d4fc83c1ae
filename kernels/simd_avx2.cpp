#define TERCET_SIMD_ISA "avx2"
#define TERCET_SIMD_TABLE kSimdAvx2
#define TERCET_SIMD_BYTES 32
#include "kernels/simd.inc"
