// CUDA's built-in functions for g++, under CUDA's own names: arithmetic, bits, votes and shuffles, integer atomics.
// Approximate functions are libm's here: compare with a tolerance.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <type_traits>

#include "kernels/emulator/execution.h"

#define threadIdx (::tercet::emu::current_thread->index)
#define blockIdx (::tercet::emu::current_launch.block_index)
#define blockDim (::tercet::emu::current_launch.block)
#define gridDim (::tercet::emu::current_launch.grid)

inline constexpr int warpSize = 32;

#define TERCET_SITE ::tercet::emu::Site site = ::tercet::emu::Site::current()

// --- Barriers, votes, reductions ---

inline void __syncthreads(TERCET_SITE) { ::tercet::emu::block_barrier(site); }
inline void __syncwarp(unsigned mask = 0xffffffffu, TERCET_SITE) { ::tercet::emu::warp_barrier(mask, site); }
inline void __threadfence_block() {}
inline void __threadfence() {}

namespace tercet::emu {

// All lanes get combine over the values of the lanes.
template <class T, class Combine>
T reduce_lanes(const char* operation, uint32_t mask, T value, Combine, Site site) {
  collective(
      operation, mask, &value,
      [](void* const* records, uint32_t lanes) {
        T total = *static_cast<T*>(records[std::countr_zero(lanes)]);
        for (uint32_t rest = lanes & (lanes - 1); rest != 0; rest &= rest - 1)
          total = Combine{}(total, *static_cast<T*>(records[std::countr_zero(rest)]));
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1)
          *static_cast<T*>(records[std::countr_zero(rest)]) = total;
      },
      site);
  return value;
}

template <class T>
struct Shuffle {
  T value;
  int source;  // lane
  T result;
};

// The value of lane `source`; all bits set when that lane does not take part.
template <class T>
T shuffle(const char* operation, uint32_t mask, T value, int source, Site site) {
  static_assert(std::is_arithmetic_v<T>, "shuffles move one arithmetic value");
  Shuffle<T> record{value, source, value};
  collective(
      operation, mask, &record,
      [](void* const* records, uint32_t lanes) {
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
          auto* lane = static_cast<Shuffle<T>*>(records[std::countr_zero(rest)]);
          if ((lanes >> lane->source & 1u) != 0)
            lane->result = static_cast<Shuffle<T>*>(records[lane->source])->value;
          else
            std::memset(&lane->result, 0xFF, sizeof(T));
        }
      },
      site);
  return record.result;
}

inline int lane_of_thread() { return current_thread->lane; }

// The lane `source`, or the calling lane when `source` lies outside of [first, last] of its group of `width` lanes.
inline int lane_within(int source, int width) {
  const int lane = lane_of_thread();
  const int first = lane & ~(width - 1);
  return source < first || source > first + width - 1 ? lane : source;
}

}  // namespace tercet::emu

inline unsigned __ballot_sync(unsigned mask, int predicate, TERCET_SITE) {
  const unsigned bit = predicate != 0 ? 1u << ::tercet::emu::lane_of_thread() : 0u;
  return ::tercet::emu::reduce_lanes<unsigned>("__ballot_sync", mask, bit, std::bit_or<>{}, site);
}
inline int __any_sync(unsigned mask, int predicate, TERCET_SITE) {
  return ::tercet::emu::reduce_lanes<int>("__any_sync", mask, predicate != 0, std::bit_or<>{}, site);
}
inline int __all_sync(unsigned mask, int predicate, TERCET_SITE) {
  return ::tercet::emu::reduce_lanes<int>("__all_sync", mask, predicate != 0, std::bit_and<>{}, site);
}
template <std::integral T>
T __reduce_add_sync(unsigned mask, T value, TERCET_SITE) {
  return ::tercet::emu::reduce_lanes<T>("__reduce_add_sync", mask, value, std::plus<>{}, site);
}
template <std::integral T>
T __reduce_max_sync(unsigned mask, T value, TERCET_SITE) {
  const auto larger = [](T a, T b) { return a > b ? a : b; };
  return ::tercet::emu::reduce_lanes<T>("__reduce_max_sync", mask, value, larger, site);
}
template <std::integral T>
T __reduce_min_sync(unsigned mask, T value, TERCET_SITE) {
  const auto smaller = [](T a, T b) { return a < b ? a : b; };
  return ::tercet::emu::reduce_lanes<T>("__reduce_min_sync", mask, value, smaller, site);
}

// --- Shuffles within groups of `width` lanes, a power of 2 ---

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, TERCET_SITE) {
  const int first = ::tercet::emu::lane_of_thread() & ~(width - 1);
  return ::tercet::emu::shuffle("__shfl_sync", mask, value, first | (source & (width - 1)), site);
}
// A lower group may be read, a higher one gives the lane's own value.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, TERCET_SITE) {
  const int lane = ::tercet::emu::lane_of_thread();
  const int source = lane ^ lanes;
  const int last = lane | (width - 1);
  return ::tercet::emu::shuffle("__shfl_xor_sync", mask, value, source > last ? lane : source, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32, TERCET_SITE) {
  const int source = ::tercet::emu::lane_of_thread() - static_cast<int>(distance);
  return ::tercet::emu::shuffle("__shfl_up_sync", mask, value, ::tercet::emu::lane_within(source, width), site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32, TERCET_SITE) {
  const int source = ::tercet::emu::lane_of_thread() + static_cast<int>(distance);
  return ::tercet::emu::shuffle("__shfl_down_sync", mask, value, ::tercet::emu::lane_within(source, width), site);
}

// --- Integer atomics; they return the old value ---

namespace tercet::emu {

template <class T, class Next>
__attribute__((noinline, no_sanitize("thread"))) T atomic_update(T* address, Next next) {
  static_assert(std::is_integral_v<T>, "only integers have atomics: sums of floating-point atomics have no order");
  note_atomic(address, sizeof(T), __builtin_return_address(0));
  const T old = *address;
  *address = next(old);
  return old;
}

}  // namespace tercet::emu

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return ::tercet::emu::atomic_update(address, [value](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicSub(T* address, std::type_identity_t<T> value) {
  return ::tercet::emu::atomic_update(address, [value](T old) { return static_cast<T>(old - value); });
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return ::tercet::emu::atomic_update(address, [value](T old) { return old > value ? old : value; });
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return ::tercet::emu::atomic_update(address, [value](T old) { return old < value ? old : value; });
}
template <class T>
T atomicAnd(T* address, std::type_identity_t<T> value) {
  return ::tercet::emu::atomic_update(address, [value](T old) { return static_cast<T>(old & value); });
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return ::tercet::emu::atomic_update(address, [value](T old) { return static_cast<T>(old | value); });
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return ::tercet::emu::atomic_update(address, [value](T) { return value; });
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return ::tercet::emu::atomic_update(address, [=](T old) { return old == expected ? value : old; });
}

// --- Loads and stores with cache hints ---

template <class T>
__forceinline__ T __ldg(const T* address) {
  return *address;
}
template <class T>
__forceinline__ T __ldca(const T* address) {
  return *address;
}
template <class T>
__forceinline__ T __ldcg(const T* address) {
  return *address;
}
template <class T>
__forceinline__ T __ldcs(const T* address) {
  return *address;
}
template <class T>
__forceinline__ void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
__forceinline__ void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}

// --- Bits ---

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t{a} * b) >> 32); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

// --- Arithmetic ---

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __saturatef(float x) { return std::fmin(std::fmax(x, 0.0f), 1.0f); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
// The C library declares functions of these names, which it does not offer.
#define __expf(x) ::std::exp(static_cast<float>(x))
#define __logf(x) ::std::log(static_cast<float>(x))
#define __log2f(x) ::std::log2(static_cast<float>(x))
#define __powf(x, y) ::std::pow(static_cast<float>(x), static_cast<float>(y))

// As on the device, a NaN beside a number gives the number.
inline float max(float a, float b) { return std::fmax(a, b); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
using std::max;
using std::min;
