// Small kernels, right and wrong, by which the emulator is tested. Those of layouts.cu and warps.cu are right on any
// device: compiled by nvcc, the same tests certify that a GPU and the emulator agree.
#pragma once

#include <cstdint>

#include "device/gpu_stream.h"

namespace tercet::test {

// --- layouts.cu ---

// Four 8x8 matrices of 16-bit numbers at `matrices`, row after row. registers[32][4], transposed[32][4].
void load_matrix_registers(Stream& stream, const uint16_t* matrices, uint32_t* registers, uint32_t* transposed);
// c[16][8] += a[16][16] b[16][8] by one warp; elements are bf16, or fp16.
void multiply_bf16(Stream& stream, const uint16_t* a, const uint16_t* b, float* c);
void multiply_fp16(Stream& stream, const uint16_t* a, const uint16_t* b, float* c);
// out[i] = pack_pair<Bf16 or Half>(in[2i], in[2i + 1]), i < 32
void pack_pairs(Stream& stream, const float* in, uint32_t* bf16, uint32_t* fp16);

// --- warps.cu ---

// One block of `threads` threads; row i of out[9][threads] is shuffle i of in[threads]:
// 0 idx 5, 1 xor 3, 2 up 2, 3 down 2, 4 idx 1 of 8, 5 xor 4 of 8, 6 up 1 of 8, 7 down 1 of 8, 8 xor 16
void shuffles(Stream& stream, unsigned threads, const int* in, int* out);
// out[5][threads]: ballot, any, all of in > 0; reduce add, reduce max of in.
void votes(Stream& stream, unsigned threads, const int* in, int* out);
// Even and odd lanes vote apart, by their own masks: out[i] = ballot of in > 0.
void divergent_votes(Stream& stream, const int* in, unsigned* out);
// out[0] = sum of 1 .. threads in an atomic, out[1] = the largest thread number.
void atomics(Stream& stream, unsigned threads, int* out);
// Block sums by gpu.h: out[b] = sum over the block of in[b][threads].
void block_sums(Stream& stream, unsigned blocks, unsigned threads, const float* in, float* out);

// --- blocks.cu ---

// Threads from `alive` on end before the first barrier; the others reverse in[alive] in shared memory.
void early_exit(Stream& stream, unsigned threads, int alive, const int* in, int* out);
// out[0] static, out[1] dynamic shared memory as a block finds it, over two blocks.
void fresh_shared_memory(Stream& stream, uint32_t* out);
// order[k] = number of the k-th block or thread to come by.
void block_order(Stream& stream, unsigned blocks, int* counter, int* order);
void thread_order(Stream& stream, unsigned threads, int* counter, int* order);
void empty(Stream& stream, unsigned blocks, unsigned threads, size_t shared_bytes = 0);
// `rounds` barriers, and shuffles, of all threads.
void barriers(Stream& stream, unsigned blocks, unsigned threads, int rounds);
void shuffle_rounds(Stream& stream, unsigned blocks, unsigned threads, int rounds, int* out);
void add_one(Stream& stream, int64_t n, int* x);
// Doubles in place: x[i] += x[i]. Order with add_one is seen in the result.
void twice(Stream& stream, int64_t n, int* x);
// Pitch of a shared row in 16-bit elements: 64 gives conflicts, 72 none.
void load_with_pitch(Stream& stream, int pitch);

// --- copies.cu ---

// Double-buffered: out[i] = in[i], 32 threads, tiles of 32 packs of 16 bytes.
void pipelined_copy(Stream& stream, int tiles, const float* in, float* out);
void pipelined_copy_waits_too_little(Stream& stream, int tiles, const float* in, float* out);
void pipelined_copy_without_barrier(Stream& stream, int tiles, const float* in, float* out);
// out[i] = i-th float of in when i < valid, else 0: the zero fill of copies that are not valid.
void zero_filled_copy(Stream& stream, int valid, const float* in, float* out);

// --- faults.cu: each is wrong in the way that its name says ---

void lone_lane(Stream& stream, int* out);
void different_barriers(Stream& stream, int* out);
void shuffle_missing_lane(Stream& stream, int* out);
void different_collectives(Stream& stream, int* out);
void lane_outside_its_mask(Stream& stream, int* out);
void copy_never_waited_for(Stream& stream, const float* in);
void misaligned_copy(Stream& stream, const float* in);
void misaligned_pack(Stream& stream, const float* in, float* out);
void device_read_past_end(Stream& stream, const int* in, int64_t index, int* out);
void dynamic_shared_past_end(Stream& stream, int index, int* out);
void static_shared_past_end(Stream& stream, int index, int* out);
void endless_recursion(Stream& stream, int* out);
void no_dynamic_shared(Stream& stream, int* out);
void throwing_kernel(Stream& stream);

// --- races.cu: right by luck in some order, or always ---

void neighbour_without_barrier(Stream& stream, unsigned threads, int* out);
void neighbour_with_barrier(Stream& stream, unsigned threads, int* out);
void neighbour_in_warp(Stream& stream, int* out);             // __syncwarp between write and read
void neighbour_in_warp_by_shuffle(Stream& stream, int* out);  // a shuffle between them, which orders nothing
void halves_of_warp(Stream& stream, int* out);                // __syncwarp of the wrong lanes
void reuse_without_barrier(Stream& stream, int* out);         // the next write follows the reads unordered
void two_blocks_one_address(Stream& stream, int* out);
void blocks_with_own_addresses(Stream& stream, int* out);
void atomic_and_plain(Stream& stream, int* out);  // one block adds atomically, another reads
void atomics_of_blocks(Stream& stream, int* out);
void dynamic_without_barrier(Stream& stream, int* out);

}  // namespace tercet::test
