// How fast one core sums: gigabytes of contributions read per second, by backend, dtype and operator.
//
// Eight sources of 16 KiB each, which is a segment as it comes from eight nodes, still in the cache; then of 16 MiB,
// which come from memory. A copy of the same size (memcpy, bytes read) stands beside them. One table a size:
//   g++ -std=c++20 -O2 -Inative benchmarks/native/reduce_bench.cpp libshoal_core.a -lpthread && ./a.out
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#include "reduce/backends.h"
#include "reduce/reduce.h"

namespace {

using shoal::DType;
using shoal::Operator;

constexpr std::size_t source_count = 8;
constexpr double seconds_per_figure = 0.03;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Bytes per second of the best of five timings, in units of 10^9.
template <class Body>
double gigabytes_per_second(std::size_t bytes, Body body) {
  double best = 0;
  for (int timing = 0; timing < 5; ++timing) {
    const double start = seconds_now();
    double now = start;
    std::size_t calls = 0;
    while (now - start < seconds_per_figure / 5) {
      body();
      ++calls;
      now = seconds_now();
    }
    best = std::max(best, static_cast<double>(bytes * calls) / (now - start) / 1e9);
  }
  return best;
}

struct Memory {
  explicit Memory(std::size_t bytes) : size(bytes), destination(bytes), contributions(source_count) {
    for (auto& contribution : contributions) {
      // 0x01 repeated is a small positive number in every floating dtype: no NaN, no subnormal.
      contribution.assign(bytes, std::byte{1});
      sources.push_back(contribution.data());
    }
  }
  std::size_t size;
  std::vector<std::byte> destination;
  std::vector<std::vector<std::byte>> contributions;
  std::vector<const std::byte*> sources;
};

double measure(const shoal::reduction::Backend& backend, Memory& memory, DType dtype, Operator op) {
  const shoal::reduction::Call call{memory.destination.data(),
                                    memory.sources.data(),
                                    source_count,
                                    memory.size / shoal::size_of(dtype),
                                    dtype,
                                    op,
                                    8.0};
  return gigabytes_per_second(memory.size * source_count, [&] { backend.reduce(call); });
}

void print_table(std::size_t bytes) {
  Memory memory(bytes);
  const double copy =
      gigabytes_per_second(bytes, [&] { std::memcpy(memory.destination.data(), memory.sources[0], bytes); });
  std::printf("\n%zu sources of %zu KiB, GB/s read (memcpy: %.1f)\n", source_count, bytes / 1024, copy);
  std::printf("%-10s%-10s%8s%8s%8s%8s%8s\n", "backend", "dtype", "sum", "mean", "min", "max", "product");
  for (const auto* backend : shoal::reduction::usable_backends()) {
    for (int dtype = 1; dtype <= 13; ++dtype) {
      std::printf("%-10s%-10s", backend->name, shoal::name_of(DType(dtype)));
      for (int op = 1; op <= 5; ++op) {
        if (shoal::reducible(DType(dtype), Operator(op))) {
          std::printf("%8.1f", measure(*backend, memory, DType(dtype), Operator(op)));
        } else {
          std::printf("%8s", "");
        }
      }
      std::printf("\n");
    }
  }
}

}  // namespace

int main() {
  std::printf("chosen backend: %s\n", shoal::reduce_backend());
  print_table(16 * 1024);
  print_table(16 * 1024 * 1024);
}
