// The part of cuBLASLt that tercet calls, declared here so that the code which fills its descriptors compiles, and is
// tested, on machines without the CUDA Toolkit. cuda_device.cpp checks every value against the Toolkit's header.
// Source: cublasLt.h of CUDA 12 and 13, whose layouts and values are stable across both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tercet::lt {

using Status = int;  // 0: success
using Handle = void*;
using Descriptor = void*;
using Layout = void*;
using Preference = void*;

enum DataType : int { kFloat = 0, kHalf = 2, kBfloat16 = 14 };
enum ComputeType : int { kCompute32f = 68 };
enum DescriptorAttribute : int { kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8, kBiasType = 26 };
enum Operation : int32_t { kNoTranspose = 0, kTranspose = 1 };
enum Epilogue : int32_t { kDefault = 1, kRelu = 2, kBias = 4, kReluBias = 6 };
enum PreferenceAttribute : int {
  kMaxWorkspaceBytes = 1,
  kReductionSchemes = 3,
  kMinAlignmentA = 5,
  kMinAlignmentB = 6,
  kMinAlignmentC = 7,
  kMinAlignmentD = 8
};

// How the parts of a sum are added that several blocks have worked on; a mask of them.
enum ReductionScheme : uint32_t { kReductionInComputeType = 2 };

struct Algorithm {
  uint64_t data[8];

  bool operator==(const Algorithm&) const = default;
};
struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

// The library's functions. Matrices are column-major.
struct Functions {
  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  size_t (*version)();
  const char* (*status_text)(Status);
  Status (*descriptor_create)(Descriptor*, ComputeType, DataType scale);
  Status (*descriptor_destroy)(Descriptor);
  Status (*descriptor_set)(Descriptor, DescriptorAttribute, const void*, size_t);
  Status (*layout_create)(Layout*, DataType, uint64_t rows, uint64_t columns, int64_t leading_dimension);
  Status (*layout_destroy)(Layout);
  Status (*preference_create)(Preference*);
  Status (*preference_destroy)(Preference);
  Status (*preference_set)(Preference, PreferenceAttribute, const void*, size_t);
  Status (*heuristic)(Handle, Descriptor, Layout a, Layout b, Layout c, Layout d, Preference, int requested,
                      HeuristicResult* results, int* found);
  Status (*check)(Handle, Descriptor, Layout a, Layout b, Layout c, Layout d, const Algorithm*, HeuristicResult*);
  Status (*matmul)(Handle, Descriptor, const void* alpha, const void* a, Layout, const void* b, Layout,
                   const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*, void* workspace,
                   size_t workspace_bytes, void* stream);
};

// Opens the library, once per path: `path`, or when it is empty the environment's TERCET_CUBLASLT_LIBRARY, else
// libcublasLt.so.13, .12 and the Toolkit's folder. Throws Error(Fault::input) that names what is missing.
const Functions& open_library(const std::string& path = "");

}  // namespace tercet::lt
