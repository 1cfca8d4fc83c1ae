#define TERCET_SIMD_ISA "baseline"
#define TERCET_SIMD_TABLE kSimdBaseline
#define TERCET_SIMD_BYTES 16
#include "kernels/simd.inc"
