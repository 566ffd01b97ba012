// The sums against a plain reference, to the bit, for every instruction set that this machine has.
#include "reduce/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "reduce/backends.h"
#include "reduce_reference.h"

namespace {

using shoal::DType;
using shoal::Operator;
using shoal::reduction::Backend;
using namespace shoal::tests;

constexpr std::uint64_t seed = 20231117;
constexpr float float_infinity = std::numeric_limits<float>::infinity();
constexpr float float_nan = std::numeric_limits<float>::quiet_NaN();

std::vector<DType> dtypes() {
  std::vector<DType> all;
  for (int number = 1; number <= 13; ++number) {
    all.push_back(static_cast<DType>(number));
  }
  return all;
}

std::vector<Operator> operators_of(DType dtype) {
  std::vector<Operator> all;
  for (int number = 1; number <= 5; ++number) {
    if (shoal::reducible(dtype, static_cast<Operator>(number))) {
      all.push_back(static_cast<Operator>(number));
    }
  }
  return all;
}

using Random = std::mt19937_64;

template <class T>
void append_float(Bytes& bytes, Random& random) {
  constexpr T specials[] = {0,
                            std::numeric_limits<T>::infinity(),
                            std::numeric_limits<T>::quiet_NaN(),
                            std::numeric_limits<T>::denorm_min(),
                            std::numeric_limits<T>::min(),
                            std::numeric_limits<T>::max()};
  T value = std::normal_distribution<T>(0, 1)(random);
  if (random() % 16 == 0) {
    value = specials[random() % std::size(specials)] * (random() % 2 == 0 ? T{1} : T{-1});
  } else if (random() % 8 == 0) {
    for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
      append(bytes, static_cast<std::uint8_t>(random()));  // any bits, signalling NaNs included
    }
    return;
  }
  append(bytes, value);
}

void append_small_float(Bytes& bytes, Random& random, const SmallFloat& format) {
  const auto any = static_cast<std::uint16_t>(random());
  append(bytes, random() % 4 == 0 ? any : format.encode(std::normal_distribution<double>(0, 1)(random)));
}

Bytes contribution(DType dtype, std::size_t count, Random& random) {
  Bytes bytes;
  while (bytes.size() < count * shoal::size_of(dtype)) {
    if (dtype == DType::float32) {
      append_float<float>(bytes, random);
    } else if (dtype == DType::float64) {
      append_float<double>(bytes, random);
    } else if (dtype == DType::float16) {
      append_small_float(bytes, random, float16_format);
    } else if (dtype == DType::bfloat16) {
      append_small_float(bytes, random, bfloat16_format);
    } else {
      const auto any = static_cast<std::uint8_t>(random());
      append<std::uint8_t>(bytes, dtype == DType::boolean && any < 128 ? 0 : any);
    }
  }
  return bytes;
}

std::vector<Bytes> contributions(DType dtype, std::size_t sources, std::size_t count, Random& random) {
  std::vector<Bytes> all;
  for (std::size_t k = 0; k < sources; ++k) {
    all.push_back(contribution(dtype, count, random));
  }
  return all;
}

// Contributions and a destination at odd addresses, with bytes around the destination that must not change.
class Arena {
 public:
  Arena(const std::vector<Bytes>& sources, std::size_t bytes) : memory_(sources.size() + 1) {
    for (std::size_t k = 0; k <= sources.size(); ++k) {
      memory_[k].assign(bytes + 2 * margin, guard);
      if (k < sources.size()) {
        std::copy_n(sources[k].data(), bytes, at(k));
        sources_.push_back(at(k));
      }
    }
  }

  const std::vector<const std::byte*>& sources() const { return sources_; }
  std::byte* source(std::size_t k) { return at(k); }
  std::byte* destination() { return at(sources_.size()); }

  bool guards_intact(std::size_t used_bytes) {
    const Bytes& block = memory_.back();
    const auto end = block.begin() + static_cast<std::ptrdiff_t>(shift(sources_.size()) + used_bytes);
    const auto is_guard = [](std::byte value) { return value == guard; };
    return std::all_of(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(shift(sources_.size())), is_guard) &&
           std::all_of(end, block.end(), is_guard);
  }

  void clear_destination() { std::fill(memory_.back().begin(), memory_.back().end(), guard); }

 private:
  static constexpr std::size_t margin = 64;
  static constexpr std::byte guard{0xa5};
  static std::size_t shift(std::size_t k) { return (2 * k + 1) % margin; }
  std::byte* at(std::size_t k) { return memory_[k].data() + shift(k); }

  std::vector<Bytes> memory_;
  std::vector<const std::byte*> sources_;
};

void run(const Backend& backend, std::byte* destination, const std::vector<const std::byte*>& sources,
         std::size_t count, DType dtype, Operator op, double divisor) {
  backend.reduce({destination, sources.data(), sources.size(), count, dtype, op, divisor});
}

void expect_bytes(const std::byte* actual, const Bytes& expected, std::size_t count, const Backend& backend,
                  DType dtype, Operator op, std::size_t sources) {
  const std::size_t size = shoal::size_of(dtype);
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(actual + i * size, expected.data() + i * size, size) != 0) {
      std::uint64_t got = 0;
      std::uint64_t wanted = 0;
      std::memcpy(&got, actual + i * size, size);
      std::memcpy(&wanted, expected.data() + i * size, size);
      char text[256];
      std::snprintf(text, sizeof text, "%s, %s %s of %zu sources, element %zu of %zu: %llx, expected %llx (seed %llu)",
                    backend.name, shoal::name_of(dtype), shoal::name_of(op), sources, i, count,
                    static_cast<unsigned long long>(got), static_cast<unsigned long long>(wanted),
                    static_cast<unsigned long long>(seed));
      fail(__FILE__, __LINE__, text);
    }
  }
}

// All backends give the reference for the first `count` elements, and write nothing else, for each of `counts`.
void check_against_reference(DType dtype, Operator op, std::size_t source_count, const std::vector<std::size_t>& counts,
                             Random& random) {
  const std::size_t most = *std::max_element(counts.begin(), counts.end());
  const auto inputs = contributions(dtype, source_count, most, random);
  const double divisor = static_cast<double>(source_count);
  const Bytes expected = reference(inputs, most, dtype, op, divisor);
  Arena arena(inputs, most * shoal::size_of(dtype));
  for (const Backend* backend : shoal::reduction::usable_backends()) {
    for (const std::size_t count : counts) {
      arena.clear_destination();
      run(*backend, arena.destination(), arena.sources(), count, dtype, op, divisor);
      expect_bytes(arena.destination(), expected, count, *backend, dtype, op, source_count);
      CHECK(arena.guards_intact(count * shoal::size_of(dtype)));
    }
  }
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes;
  for (const T value : values) {
    append(bytes, value);
  }
  return bytes;
}

// One element from each contribution, reduced by every backend, which must agree.
template <class T>
T reduce_one(DType dtype, Operator op, const std::vector<T>& values, double divisor = 1) {
  std::vector<const std::byte*> sources;
  for (const T& value : values) {
    sources.push_back(reinterpret_cast<const std::byte*>(&value));
  }
  std::vector<Bytes> results;
  for (const Backend* backend : shoal::reduction::usable_backends()) {
    results.emplace_back(sizeof(T));
    run(*backend, results.back().data(), sources, 1, dtype, op, divisor);
    CHECK(results.back() == results.front());
  }
  return element<T>(results.front(), 0);
}

std::uint16_t half(double value) { return float16_format.encode(value); }
std::uint16_t brain(double value) { return bfloat16_format.encode(value); }

// Every code of a format as one contribution, one other code as the other, by every backend, against the reference.
void check_every_code_with(std::uint16_t partner, DType dtype, Operator op) {
  std::vector<std::uint16_t> codes(65536);
  for (std::size_t code = 0; code < codes.size(); ++code) {
    codes[code] = static_cast<std::uint16_t>(code);
  }
  const std::vector<Bytes> inputs{bytes_of(codes), bytes_of(std::vector<std::uint16_t>(codes.size(), partner))};
  const Bytes expected = reference(inputs, codes.size(), dtype, op, 1);
  for (const Backend* backend : shoal::reduction::usable_backends()) {
    Bytes result(expected.size());
    run(*backend, result.data(), {inputs[0].data(), inputs[1].data()}, codes.size(), dtype, op, 1);
    expect_bytes(result.data(), expected, codes.size(), *backend, dtype, op, 2);
  }
}

}  // namespace

TEST(every_dtype_operator_source_count_and_short_length_gives_the_bits_of_the_reference) {
  Random random(seed);
  std::vector<std::size_t> counts;
  for (std::size_t count = 0; count <= 300; ++count) {
    counts.push_back(count);
  }
  for (const DType dtype : dtypes()) {
    for (const Operator op : operators_of(dtype)) {
      for (std::size_t sources = 1; sources <= 9; ++sources) {
        check_against_reference(dtype, op, sources, counts, random);
      }
    }
  }
}

TEST(lengths_around_and_far_beyond_a_block_give_the_bits_of_the_reference) {
  Random random(seed + 1);
  for (const DType dtype : dtypes()) {
    for (const Operator op : operators_of(dtype)) {
      check_against_reference(dtype, op, 3, {511, 512, 513, 2047, 2048, 2049, 4095, 4096, 4097, 12301}, random);
      check_against_reference(dtype, op, 8, {65536, 65537}, random);
    }
  }
}

TEST(many_sources_are_summed_in_their_order) {
  Random random(seed + 2);
  for (const DType dtype : dtypes()) {
    for (const Operator op : operators_of(dtype)) {
      check_against_reference(dtype, op, 67, {333}, random);
    }
  }
}

TEST(the_destination_may_be_any_of_the_sources) {
  Random random(seed + 3);
  constexpr std::size_t count = 5003;
  for (const DType dtype : dtypes()) {
    for (const Operator op : operators_of(dtype)) {
      for (const std::size_t source_count : {1, 2, 7}) {
        const auto inputs = contributions(dtype, source_count, count, random);
        const Bytes expected = reference(inputs, count, dtype, op, 3);
        for (const Backend* backend : shoal::reduction::usable_backends()) {
          for (std::size_t k = 0; k < source_count; ++k) {
            Arena arena(inputs, count * shoal::size_of(dtype));
            run(*backend, arena.source(k), arena.sources(), count, dtype, op, 3);
            expect_bytes(arena.source(k), expected, count, *backend, dtype, op, source_count);
          }
        }
      }
    }
  }
}

TEST(float16_rounds_every_sum_and_product_to_nearest_even) {
  // Partners that make ties at every exponent, push numbers over the largest, and into and out of the subnormals.
  for (int exponent = -24; exponent <= 15; ++exponent) {
    for (const double factor : {1.0, -1.0, 1.5, 1.0 + 1.0 / 1024}) {
      check_every_code_with(half(std::ldexp(factor, exponent)), DType::float16, Operator::sum);
      check_every_code_with(half(std::ldexp(factor, exponent)), DType::float16, Operator::product);
    }
  }
  for (const int code : {0x0000, 0x8000, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0x7e00, 0x03ff, 0x0400}) {
    check_every_code_with(static_cast<std::uint16_t>(code), DType::float16, Operator::sum);
    check_every_code_with(static_cast<std::uint16_t>(code), DType::float16, Operator::max);
  }
}

TEST(bfloat16_rounds_every_sum_and_product_to_nearest_even) {
  for (int exponent = -133; exponent <= 127; exponent += 4) {
    for (const double factor : {1.0, -1.5, 1.0 + 1.0 / 128}) {
      check_every_code_with(brain(std::ldexp(factor, exponent)), DType::bfloat16, Operator::sum);
      check_every_code_with(brain(std::ldexp(factor, exponent)), DType::bfloat16, Operator::product);
    }
  }
  for (const int code : {0x0000, 0x8000, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0x7fc0, 0x007f, 0x0080}) {
    check_every_code_with(static_cast<std::uint16_t>(code), DType::bfloat16, Operator::sum);
    check_every_code_with(static_cast<std::uint16_t>(code), DType::bfloat16, Operator::min);
  }
}

TEST(means_of_eight_16_bit_contributions_are_within_half_a_place_plus_float32s_own_error) {
  constexpr std::size_t count = 100000;
  constexpr std::size_t ranks = 8;
  for (const auto& [dtype, format] : {std::pair{DType::float16, float16_format}, {DType::bfloat16, bfloat16_format}}) {
    Random random(seed + 4);
    std::vector<std::vector<std::uint16_t>> values(ranks, std::vector<std::uint16_t>(count));
    std::vector<const std::byte*> sources;
    for (auto& rank : values) {
      for (auto& value : rank) {
        value = format.encode(std::normal_distribution<double>(0, 0.1)(random));
      }
      sources.push_back(reinterpret_cast<const std::byte*>(rank.data()));
    }
    std::vector<std::uint16_t> means(count);
    shoal::reduce(reinterpret_cast<std::byte*>(means.data()), sources, count, dtype, Operator::mean, ranks);
    double worst = 0;
    for (std::size_t i = 0; i < count; ++i) {
      double sum = 0;
      double magnitudes = 0;
      for (const auto& rank : values) {
        sum += format.decode(rank[i]);
        magnitudes += std::fabs(format.decode(rank[i]));
      }
      const double exact = sum / ranks;
      const double place = format.last_place(exact);
      const double error = std::fabs(format.decode(means[i]) - exact);
      CHECK(error <= 0.5 * place + magnitudes * std::numeric_limits<float>::epsilon());
      worst = std::max(worst, error / place);
    }
    std::printf("  %s: worst error %.4f of the last place\n", shoal::name_of(dtype), worst);
    CHECK(worst > 0.45);  // else the data would not test the rounding
  }
}

TEST(float32_and_float64_sums_are_as_near_to_the_exact_sum_as_their_order_allows) {
  Random random(seed + 5);
  constexpr std::size_t count = 4099;
  constexpr std::size_t ranks = 9;
  std::vector<std::vector<float>> singles(ranks, std::vector<float>(count));
  std::vector<std::vector<double>> doubles(ranks, std::vector<double>(count));
  std::vector<const std::byte*> single_sources;
  std::vector<const std::byte*> double_sources;
  for (std::size_t k = 0; k < ranks; ++k) {
    for (std::size_t i = 0; i < count; ++i) {
      doubles[k][i] = std::normal_distribution<double>(0, 1)(random);
      singles[k][i] = static_cast<float>(doubles[k][i]);
    }
    single_sources.push_back(reinterpret_cast<const std::byte*>(singles[k].data()));
    double_sources.push_back(reinterpret_cast<const std::byte*>(doubles[k].data()));
  }
  std::vector<float> single_means(count);
  std::vector<double> double_means(count);
  shoal::reduce(reinterpret_cast<std::byte*>(single_means.data()), single_sources, count, DType::float32,
                Operator::mean, ranks);
  shoal::reduce(reinterpret_cast<std::byte*>(double_means.data()), double_sources, count, DType::float64,
                Operator::mean, ranks);
  for (std::size_t i = 0; i < count; ++i) {
    long double single_sum = 0;
    long double double_sum = 0;
    long double magnitudes = 0;
    for (std::size_t k = 0; k < ranks; ++k) {
      single_sum += singles[k][i];
      double_sum += doubles[k][i];
      magnitudes += std::fabs(doubles[k][i]);
    }
    CHECK(std::fabs(single_means[i] - single_sum / ranks) <= magnitudes * std::numeric_limits<float>::epsilon());
    // Where long double is no wider than double its own error counts as well.
    CHECK(std::fabs(double_means[i] - double_sum / ranks) <= 2 * magnitudes * std::numeric_limits<double>::epsilon());
  }
}

TEST(float16_means_do_not_overflow_where_sums_do) {
  const std::vector<std::uint16_t> largest(8, half(65504));
  CHECK_EQ(reduce_one(DType::float16, Operator::mean, largest, 8), half(65504));
  CHECK_EQ(reduce_one(DType::float16, Operator::sum, largest), 0x7c00);
  CHECK_EQ(reduce_one<std::uint16_t>(DType::float16, Operator::sum, {half(65504), half(15)}), half(65504));
  CHECK_EQ(reduce_one<std::uint16_t>(DType::float16, Operator::sum, {half(65504), half(16)}), 0x7c00);
}

TEST(small_floats_are_rounded_once) {
  // 1 + 0.75 + 0.75 places: rounding after each addition would give 3 places, float32 gives 2 (of 2.5, to even).
  const double place = std::ldexp(1.0, -10);
  CHECK_EQ(reduce_one<std::uint16_t>(DType::float16, Operator::sum,
                                     {half(1 + place), half(0.75 * place), half(0.75 * place)}),
           half(1 + 2 * place));
  const double brain_place = std::ldexp(1.0, -7);
  CHECK_EQ(reduce_one<std::uint16_t>(DType::bfloat16, Operator::sum,
                                     {brain(1 + brain_place), brain(0.75 * brain_place), brain(0.75 * brain_place)}),
           brain(1 + 2 * brain_place));
}

TEST(subnormals_are_kept) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  CHECK_EQ(reduce_one<float>(DType::float32, Operator::sum, {tiny, tiny, tiny}), 3 * tiny);
  CHECK_EQ(reduce_one<std::uint16_t>(DType::float16, Operator::sum, {1, 1, 1}), 3);
  CHECK_EQ(reduce_one<std::uint16_t>(DType::bfloat16, Operator::sum, {1, 1, 1}), 3);
  CHECK_EQ(reduce_one<std::uint16_t>(DType::float16, Operator::mean, {3, 3}, 4), 2);  // 1.5 places, to even
}

TEST(infinities_follow_ieee_and_every_nan_comes_out_as_one) {
  CHECK_EQ(reduce_one<float>(DType::float32, Operator::sum, {float_infinity, 1}), float_infinity);
  const auto bits = [](float value) {
    std::uint32_t result;
    std::memcpy(&result, &value, sizeof result);
    return result;
  };
  CHECK_EQ(bits(reduce_one<float>(DType::float32, Operator::sum, {float_infinity, -float_infinity})), 0x7fc00000u);
  CHECK_EQ(bits(reduce_one<float>(DType::float32, Operator::sum, {-float_nan})), 0x7fc00000u);
  CHECK_EQ(bits(reduce_one<float>(DType::float32, Operator::product, {0, float_infinity})), 0x7fc00000u);
  CHECK_EQ(reduce_one<std::uint16_t>(DType::float16, Operator::sum, {0xfd55}), 0x7e00);
  CHECK_EQ(reduce_one<std::uint16_t>(DType::bfloat16, Operator::sum, {0xff81}), 0x7fc0);
}

TEST(min_and_max_give_nan_wherever_it_stands) {
  for (const Operator op : {Operator::min, Operator::max}) {
    for (std::size_t place = 0; place < 7; ++place) {
      std::vector<float> singles(7, 1.0f);
      std::vector<double> doubles(7, -float_infinity);
      std::vector<std::uint16_t> halves(7, half(float_infinity));
      std::vector<std::uint16_t> brains(7, brain(-1));
      singles[place] = float_nan;
      doubles[place] = float_nan;
      halves[place] = half(float_nan);
      brains[place] = brain(float_nan);
      CHECK(std::isnan(reduce_one(DType::float32, op, singles)));
      CHECK(std::isnan(reduce_one(DType::float64, op, doubles)));
      CHECK_EQ(reduce_one(DType::float16, op, halves), 0x7e00);
      CHECK_EQ(reduce_one(DType::bfloat16, op, brains), 0x7fc0);
    }
  }
}

TEST(integers_wrap_and_keep_their_sign) {
  CHECK_EQ(reduce_one<std::int8_t>(DType::int8, Operator::sum, {127, 1}), -128);
  CHECK_EQ(reduce_one<std::uint16_t>(DType::uint16, Operator::product, {65535, 65535}), 1);
  CHECK_EQ(reduce_one<std::int32_t>(DType::int32, Operator::product, {65536, 65536, 3}), 0);
  CHECK_EQ(reduce_one<std::int64_t>(DType::int64, Operator::sum, {INT64_MAX, 1}), INT64_MIN);
  CHECK_EQ(reduce_one<std::int64_t>(DType::int64, Operator::min, {3, -5, 4}), -5);
  CHECK_EQ(reduce_one<std::uint64_t>(DType::uint64, Operator::min, {3, UINT64_MAX, 4}), 3u);
  CHECK_EQ(reduce_one<std::uint64_t>(DType::uint64, Operator::max, {3, UINT64_MAX, 4}), UINT64_MAX);
}

TEST(bools_come_out_as_0_or_1_whatever_byte_stood_for_true) {
  CHECK_EQ(int{reduce_one<std::uint8_t>(DType::boolean, Operator::min, {1, 2, 255})}, 1);
  CHECK_EQ(int{reduce_one<std::uint8_t>(DType::boolean, Operator::product, {1, 0, 255})}, 0);
  CHECK_EQ(int{reduce_one<std::uint8_t>(DType::boolean, Operator::max, {0, 0, 4})}, 1);
  CHECK_EQ(int{reduce_one<std::uint8_t>(DType::boolean, Operator::max, {128})}, 1);
}

TEST(means_of_integers_are_divided_toward_zero_after_a_sum_that_wraps) {
  CHECK_EQ(int{reduce_one<std::int8_t>(DType::int8, Operator::mean, {-3, -4}, 2)}, -3);
  CHECK_EQ(int{reduce_one<std::int8_t>(DType::int8, Operator::mean, {3, 4}, 2)}, 3);
  CHECK_EQ(int{reduce_one<std::int8_t>(DType::int8, Operator::mean, {100, 100}, 2)}, -28);
  CHECK_EQ(int{reduce_one<std::uint8_t>(DType::uint8, Operator::mean, {200, 200}, 2)}, 72);
  CHECK_EQ(reduce_one<std::int64_t>(DType::int64, Operator::mean, {std::numeric_limits<std::int64_t>::min(), 0}, 2),
           std::numeric_limits<std::int64_t>::min() / 2);
  CHECK_EQ(reduce_one<std::uint64_t>(DType::uint64, Operator::mean, {std::numeric_limits<std::uint64_t>::max(), 0}, 2),
           std::numeric_limits<std::uint64_t>::max() / 2);
  // More ranks than an int8 can count.
  CHECK_EQ(int{reduce_one<std::int8_t>(DType::int8, Operator::mean, std::vector<std::int8_t>(300, -1), 300)}, 0);
}

TEST(a_divisor_of_integers_that_a_peer_has_made_up_divides_by_no_zero) {
  for (const double divisor : {0.0, 0.25, 1e300}) {
    std::int32_t value = 7;
    const std::byte* source = reinterpret_cast<const std::byte*>(&value);
    shoal::reduce(reinterpret_cast<std::byte*>(&value), {&source, 1}, 1, DType::int32, Operator::mean, divisor);
    CHECK_EQ(value, divisor < 1 ? 7 : 0);
  }
}

TEST(reducible_is_what_means_something) {
  CHECK(shoal::reducible(DType::bfloat16, Operator::mean));
  CHECK(shoal::reducible(DType::int64, Operator::product));
  CHECK(shoal::reducible(DType::boolean, Operator::max));
  CHECK(shoal::reducible(DType::int32, Operator::mean));
  CHECK(!shoal::reducible(DType::boolean, Operator::sum));
  CHECK(!shoal::reducible(DType::boolean, Operator::mean));
  CHECK(!shoal::reducible(DType::float32, Operator::none));
  CHECK(!shoal::reducible(DType::none, Operator::sum));
  CHECK(!shoal::reducible(static_cast<DType>(77), Operator::sum));
  CHECK(!shoal::reducible(DType::float32, static_cast<Operator>(77)));
}

TEST(what_is_not_reducible_is_refused_by_name) {
  std::byte value{};
  const std::byte* source = &value;
  std::string message;
  try {
    shoal::reduce(&value, {&source, 1}, 1, DType::boolean, Operator::mean, 1);
  } catch (const std::invalid_argument& error) {
    message = error.what();
  }
  CHECK(message.find("bool") != std::string::npos && message.find("mean") != std::string::npos);
}

RUN_TESTS()
