// Which dtypes go with which operators, and the choice of the kernels at run time.
#include "reduce/reduce.h"

#include <stdexcept>
#include <string>

#include "base/processor.h"
#include "reduce/backends.h"
#include "reduce/environment.h"

namespace shoal {

namespace {

using reduction::Backend;

const Backend& chosen_backend() {
  static const Backend& chosen = *reduction::usable_backends().front();
  return chosen;
}

}  // namespace

namespace reduction {

std::vector<const Backend*> usable_backends() {
  std::vector<const Backend*> usable;
  if (processor().avx512 && avx512_backend.reduce != nullptr) {
    usable.push_back(&avx512_backend);
  }
  if (processor().avx2 && avx2_backend.reduce != nullptr) {
    usable.push_back(&avx2_backend);
  }
  if (neon_backend.reduce != nullptr) {  // every 64-bit ARM processor has it
    usable.push_back(&neon_backend);
  }
  usable.push_back(&portable_backend);
  return usable;
}

}  // namespace reduction

bool reducible(DType dtype, Operator op) {
  if (size_of(dtype) == 0) {
    return false;
  }
  switch (op) {
    case Operator::sum:
    case Operator::mean:
      return dtype != DType::boolean;
    case Operator::min:
    case Operator::max:
    case Operator::product:
      return true;
    case Operator::none:
      break;
  }
  return false;
}

void reduce(std::byte* destination, std::span<const std::byte* const> sources, std::size_t count, DType dtype,
            Operator op, double divisor) {
  if (sources.empty() || !reducible(dtype, op)) {
    throw std::invalid_argument(std::string("cannot reduce ") + std::to_string(sources.size()) + " sources of dtype " +
                                name_of(dtype) + " with operator " + name_of(op) +
                                "; check with reducible() before, and give at least one source");
  }
  const reduction::DefaultEnvironment environment;
  chosen_backend().reduce({destination, sources.data(), sources.size(), count, dtype, op, divisor});
}

const char* reduce_backend() { return chosen_backend().name; }

}  // namespace shoal
