// The sums themselves: one set of templates, compiled once per instruction set by reduce_<name>.cpp.
//
// A call goes through its elements in blocks small enough that a block's accumulators stay in the first-level cache:
// each source is read once, in order, the destination written once. Within a block the sources are folded four at a
// time, strictly from the left, so neither the vector width nor the number of sources changes the order of a sum. The
// compiler vectorises the plain loops; only float16 needs intrinsics, where the processor can convert.
//
// A block is read from all sources before it is written, so the destination may be any of them.
//
// Internal linkage throughout, see conversions.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/types.h"
#include "reduce/backends.h"
#include "reduce/formats.h"
#include "reduce/operators.h"

#if defined(__FAST_MATH__)
#error "Shoal's sums must not be compiled with -ffast-math: they would differ between machines and lose NaNs."
#endif

namespace shoal::reduction {
namespace {

constexpr std::size_t block_bytes = 4096;  // of one source; the accumulators take twice that where they are wider
constexpr std::size_t fan_in = 4;          // sources folded in one loop

// The largest divisor of a mean of integers. A job has fewer ranks, but a peer can send any divisor.
constexpr double largest_divisor = 1ULL << 31U;

template <class Format>
constexpr std::size_t block_elements = block_bytes / sizeof(typename Format::Element);

template <class Format>
inline typename Format::Accumulator read(const std::byte* source, std::size_t index) {
  return Format::widen(load<typename Format::Element>(source, index));
}

template <class Format, class T>
void widen_block(T* __restrict accumulators, std::size_t count, const std::byte* source) {
  for (std::size_t i = 0; i < count; ++i) {
    accumulators[i] = read<Format>(source, i);
  }
}

// The first two sources.
template <class Format, class Op, class T>
void begin_block(T* __restrict accumulators, std::size_t count, const std::byte* first, const std::byte* second) {
  std::size_t i = 0;
  if constexpr (has_vectors<Format>) {
    for (; i + vector_elements <= count; i += vector_elements) {
      const Floats values = Op::apply(Format::widen_vector(first, i), Format::widen_vector(second, i));
      std::memcpy(accumulators + i, &values, sizeof values);
    }
  }
  for (; i < count; ++i) {
    accumulators[i] = Op::apply(read<Format>(first, i), read<Format>(second, i));
  }
}

// Up to fan_in more.
template <class Format, class Op, class T, class... Source>
void fold_block(T* __restrict accumulators, std::size_t count, Source... sources) {
  std::size_t i = 0;
  if constexpr (has_vectors<Format>) {
    for (; i + vector_elements <= count; i += vector_elements) {
      Floats values;
      std::memcpy(&values, accumulators + i, sizeof values);
      ((values = Op::apply(values, Format::widen_vector(sources, i))), ...);
      std::memcpy(accumulators + i, &values, sizeof values);
    }
  }
  for (; i < count; ++i) {
    T value = accumulators[i];
    ((value = Op::apply(value, read<Format>(sources, i))), ...);
    accumulators[i] = value;
  }
}

template <class T>
  requires std::is_floating_point_v<T>
void divide_block(T* accumulators, std::size_t count, double divisor) {
  const T by = static_cast<T>(divisor);
  for (std::size_t i = 0; i < count; ++i) {
    accumulators[i] /= by;
  }
}

// Toward zero, as NCCL does. In 64 bits, since there may be more ranks than an element can count.
template <class Integer, class T>
  requires std::is_integral_v<T>
void divide_integers(T* accumulators, std::size_t count, double divisor) {
  using Wide = std::conditional_t<std::is_signed_v<Integer>, std::int64_t, std::uint64_t>;
  const Wide by = divisor > 1 ? static_cast<Wide>(divisor < largest_divisor ? divisor : largest_divisor) : 1;
  for (std::size_t i = 0; i < count; ++i) {
    accumulators[i] = static_cast<T>(static_cast<Wide>(static_cast<Integer>(accumulators[i])) / by);
  }
}

template <class Format, class T>
void narrow_block(const T* __restrict accumulators, std::byte* __restrict destination, std::size_t count) {
  std::size_t i = 0;
  if constexpr (has_vectors<Format>) {
    for (; i + vector_elements <= count; i += vector_elements) {
      Floats values;
      std::memcpy(&values, accumulators + i, sizeof values);
      Format::narrow_vector(values, destination, i);
    }
  }
  for (; i < count; ++i) {
    store(destination, i, Format::narrow(accumulators[i]));
  }
}

template <class Format, class Op, class T>
void accumulate_block(const Call& call, std::size_t begin, std::size_t count, T* accumulators) {
  const auto source = [&](std::size_t k) { return call.sources[k] + begin * sizeof(typename Format::Element); };
  if (call.source_count == 1) {
    return widen_block<Format>(accumulators, count, source(0));
  }
  begin_block<Format, Op>(accumulators, count, source(0), source(1));
  std::size_t k = 2;
  for (; k + fan_in <= call.source_count; k += fan_in) {
    fold_block<Format, Op>(accumulators, count, source(k), source(k + 1), source(k + 2), source(k + 3));
  }
  switch (call.source_count - k) {
    case 3:
      return fold_block<Format, Op>(accumulators, count, source(k), source(k + 1), source(k + 2));
    case 2:
      return fold_block<Format, Op>(accumulators, count, source(k), source(k + 1));
    case 1:
      return fold_block<Format, Op>(accumulators, count, source(k));
  }
}

// `ResultElement`: the type of the results. Signed integers are summed as unsigned ones.
template <class Format, class Op, class ResultElement = typename Format::Element>
void reduce_blocks(const Call& call) {
  using T = typename Format::Accumulator;
  constexpr std::size_t block = block_elements<Format>;
  alignas(64) T accumulators[block];
  for (std::size_t begin = 0; begin < call.count; begin += block) {
    const std::size_t left = call.count - begin;
    const std::size_t count = left < block ? left : block;
    accumulate_block<Format, Op>(call, begin, count, accumulators);
    if (call.op == Operator::mean) {
      if constexpr (std::is_integral_v<T>) {
        divide_integers<ResultElement>(accumulators, count, call.divisor);
      } else {
        divide_block(accumulators, count, call.divisor);
      }
    }
    narrow_block<Format>(accumulators, call.destination + begin * sizeof(typename Format::Element), count);
  }
}

template <class Format, class ResultElement = typename Format::Element>
void reduce_numbers(const Call& call) {
  switch (call.op) {
    case Operator::sum:
    case Operator::mean:
      return reduce_blocks<Format, Sum, ResultElement>(call);
    case Operator::product:
      return reduce_blocks<Format, Product>(call);
    case Operator::min:
      return reduce_blocks<Format, Min>(call);
    case Operator::max:
      return reduce_blocks<Format, Max>(call);
    case Operator::none:
      break;
  }
}

// Signed integers are summed and multiplied as unsigned ones, which may wrap.
template <class Signed, class Unsigned>
void reduce_signed(const Call& call) {
  const bool ordered = call.op == Operator::min || call.op == Operator::max;
  return ordered ? reduce_numbers<Integer<Signed>>(call) : reduce_numbers<Integer<Unsigned>, Signed>(call);
}

void reduce_booleans(const Call& call) {
  return call.op == Operator::max ? reduce_blocks<Boolean, Or>(call) : reduce_blocks<Boolean, And>(call);
}

void reduce_call(const Call& call) {
  switch (call.dtype) {
    case DType::float32:
      return reduce_numbers<Float32>(call);
    case DType::float64:
      return reduce_numbers<Float64>(call);
    case DType::float16:
      return reduce_numbers<Float16>(call);
    case DType::bfloat16:
      return reduce_numbers<Bfloat16>(call);
    case DType::int8:
      return reduce_signed<std::int8_t, std::uint8_t>(call);
    case DType::int16:
      return reduce_signed<std::int16_t, std::uint16_t>(call);
    case DType::int32:
      return reduce_signed<std::int32_t, std::uint32_t>(call);
    case DType::int64:
      return reduce_signed<std::int64_t, std::uint64_t>(call);
    case DType::uint8:
      return reduce_numbers<Integer<std::uint8_t>>(call);
    case DType::uint16:
      return reduce_numbers<Integer<std::uint16_t>>(call);
    case DType::uint32:
      return reduce_numbers<Integer<std::uint32_t>>(call);
    case DType::uint64:
      return reduce_numbers<Integer<std::uint64_t>>(call);
    case DType::boolean:
      return reduce_booleans(call);
    case DType::none:
      break;
  }
}

}  // namespace
}  // namespace shoal::reduction
