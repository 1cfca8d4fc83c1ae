// ldmatrix and mma.m16n8k16 (PTX ISA, "warp-level matrix instructions"). Layouts are those of kernels/gpu_nvcc.h.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "device/dtype.h"
#include "kernels/emulator/block_runner.h"
#include "kernels/emulator/grid.h"
#include "kernels/emulator/race_checker.h"

namespace tercet::emu {
namespace {

constexpr size_t kRowBytes = 16;  // of an 8x8 matrix of 16-bit elements
constexpr uint32_t kAllLanes = 0xffffffffu;

struct MatrixLoad {
  const void* row;
  uint32_t* registers;
  Site site;
  uintptr_t code;
};

void require_full_warp(const char* operation, uint32_t lanes, Site site) {
  if (lanes != kAllLanes) fail_thread(fmt::format("{} by a warp of which lanes have ended", operation), site);
}

// Rows that lie in the same 16 of 128 bytes cannot be read in one cycle.
void count_bank_conflicts(void* const* records, int matrix) {
  std::array<uint64_t, 8> rows_in_bank{};
  for (int row = 0; row < 8; ++row) {
    const auto* load = static_cast<const MatrixLoad*>(records[matrix * 8 + row]);
    ++rows_in_bank[reinterpret_cast<uintptr_t>(load->row) / kRowBytes % 8];
  }
  statistics().bank_conflicts += *std::max_element(rows_in_bank.begin(), rows_in_bank.end()) - 1;
}

template <bool kTransposed>
void compute_matrix_load(void* const* records, uint32_t lanes) {
  const auto& first = *static_cast<const MatrixLoad*>(records[current_thread->lane]);
  require_full_warp("load_matrices", lanes, first.site);
  ++statistics().matrix_loads;
  for (int matrix = 0; matrix < 4; ++matrix) {
    count_bank_conflicts(records, matrix);
    uint16_t element[8][8];
    for (int row = 0; row < 8; ++row) {
      const int lane = matrix * 8 + row;
      const auto* load = static_cast<const MatrixLoad*>(records[lane]);
      if constexpr (race::kChecked)
        race::touch(current_thread->number - current_thread->lane + lane, load->row, kRowBytes, race::Access::read,
                    load->code);
      std::memcpy(element[row], load->row, kRowBytes);
    }
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      const uint32_t low = kTransposed ? element[column][row] : element[row][column];
      const uint32_t high = kTransposed ? element[column + 1][row] : element[row][column + 1];
      static_cast<MatrixLoad*>(records[lane])->registers[matrix] = low | high << 16;
    }
  }
}

struct MatrixProduct {
  float* c;
  const uint32_t* a;
  uint32_t b0, b1;
  Site site;
};

template <class Element>
float half_of(uint32_t pair, int half) {
  return to_float(Element{static_cast<uint16_t>(pair >> (16 * half))});
}

// Products of two 16-bit elements are exact in fp32; their sums are rounded in an order of our own.
template <class Element>
void compute_product(void* const* records, uint32_t lanes) {
  require_full_warp("mma", lanes, static_cast<const MatrixProduct*>(records[current_thread->lane])->site);
  ++statistics().matrix_products;
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto& p = *static_cast<const MatrixProduct*>(records[lane]);
    const int row = lane / 4, column = lane % 4 * 2;
    for (int i = 0; i < 2; ++i) {
      a[row][column + i] = half_of<Element>(p.a[0], i);
      a[row + 8][column + i] = half_of<Element>(p.a[1], i);
      a[row][column + 8 + i] = half_of<Element>(p.a[2], i);
      a[row + 8][column + 8 + i] = half_of<Element>(p.a[3], i);
      b[column + i][row] = half_of<Element>(p.b0, i);
      b[column + 8 + i][row] = half_of<Element>(p.b1, i);
      c[row][column + i] = p.c[i];
      c[row + 8][column + i] = p.c[2 + i];
    }
  }
  for (int row = 0; row < 16; ++row) {
    float sums[8] = {};
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
    for (int column = 0; column < 8; ++column) c[row][column] += sums[column];
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto& p = *static_cast<const MatrixProduct*>(records[lane]);
    const int row = lane / 4, column = lane % 4 * 2;
    for (int i = 0; i < 2; ++i) {
      p.c[i] = c[row][column + i];
      p.c[2 + i] = c[row + 8][column + i];
    }
  }
}

}  // namespace

void load_matrices(uint32_t* registers, const void* row, bool transposed, Site site) {
  if (reinterpret_cast<uintptr_t>(row) % kRowBytes != 0)
    fail_thread("a row of load_matrices does not start at a multiple of 16 bytes", site);
  if (!in_shared_memory(row, kRowBytes)) fail_thread("a row of load_matrices is not in shared memory", site);
  MatrixLoad record{row, registers, site, reinterpret_cast<uintptr_t>(__builtin_return_address(0)) - 1};
  if (transposed)
    collective("load_matrices_trans", kAllLanes, &record, compute_matrix_load<true>, site);
  else
    collective("load_matrices", kAllLanes, &record, compute_matrix_load<false>, site);
}

void multiply_accumulate(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, MatrixElement element, Site site) {
  MatrixProduct record{c, a, b0, b1, site};
  if (element == MatrixElement::bf16)
    collective("mma bf16", kAllLanes, &record, compute_product<BFloat16>, site);
  else
    collective("mma fp16", kAllLanes, &record, compute_product<Float16>, site);
}

}  // namespace tercet::emu
