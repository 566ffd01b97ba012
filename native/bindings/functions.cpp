// Functions without state: sums, shards, headers and hashes, as the core computes them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "bindings/array.h"
#include "bindings/bindings.h"
#include "protocol/sharding.h"
#include "reduce/reduce.h"
#include "wire/frame.h"

namespace shoal::python {

namespace {

using namespace nb::literals;

void reduce_arrays(const Array& destination, const std::vector<const Array*>& sources, int op, double divisor) {
  const auto chosen = static_cast<Operator>(op);
  if (sources.empty() || op < 0 || op > 255 || !reducible(destination.dtype(), chosen)) {
    throw std::invalid_argument("this operator is not defined for this dtype, or there is nothing to reduce");
  }
  if (destination.readonly() || !destination.contiguous()) {
    throw std::invalid_argument("the destination must be writable and contiguous");
  }
  std::vector<const std::byte*> addresses;
  for (const Array* source : sources) {
    if (source->dtype() != destination.dtype() || source->elements() != destination.elements() ||
        !source->contiguous()) {
      throw std::invalid_argument("sources must be contiguous, with the dtype and size of the destination");
    }
    addresses.push_back(source->address());
  }
  const nb::gil_scoped_release released;
  reduce(destination.address(), addresses, destination.elements(), destination.dtype(), chosen, divisor);
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> shards(std::uint64_t total,
                                                            const std::vector<std::uint32_t>& weights) {
  if (std::accumulate(weights.begin(), weights.end(), std::uint64_t{0}) == 0) {
    throw std::invalid_argument("at least one weight must be above 0");
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (std::size_t index = 0; index < weights.size(); ++index) {
    const Range range = shard_of(total, weights, index);
    ranges.emplace_back(range.begin, range.end);
  }
  return ranges;
}

nb::bytes encode_header(std::uint8_t type, std::uint8_t flags, std::uint8_t dtype, std::uint8_t codec,
                        std::uint32_t epoch, std::uint64_t operation, std::uint64_t offset, std::uint32_t length,
                        std::uint32_t credit, std::uint32_t acknowledged) {
  const wire::Header header{static_cast<wire::Type>(type),
                            flags,
                            static_cast<DType>(dtype),
                            codec,
                            epoch,
                            operation,
                            offset,
                            length,
                            credit,
                            acknowledged};
  std::array<std::byte, wire::header_bytes> bytes;
  wire::encode(header, bytes);
  return nb::bytes(bytes.data(), bytes.size());
}

nb::bytes hash128(const nb::bytes& data) {
  const auto* begin = static_cast<const std::byte*>(data.data());
  const Hash128 hash = Hasher().add(std::span(begin, data.size())).digest();
  return nb::bytes(hash.bytes.data(), hash.bytes.size());
}

}  // namespace

void bind_functions(nb::module_& module) {
  module.def("reduce_backend", &reduce_backend);
  module.def("reduce", &reduce_arrays, "destination"_a, "sources"_a, "op"_a, "divisor"_a);
  module.def("shards", &shards, "total_bytes"_a, "weights"_a);
  module.def("encode_header", &encode_header, "type"_a, "flags"_a, "dtype"_a, "codec"_a, "epoch"_a, "operation"_a,
             "offset"_a, "length"_a, "credit"_a, "acknowledged"_a);
  module.def("hash128", &hash128, "data"_a);
}

}  // namespace shoal::python
