// What the ranks of a fuzzed job have submitted, their arrays, and what has become of it.
//
// What must hold: a handle is finished once; nothing asks for its memory or sends for it after that; without damage a
// sum is the sum of one contribution per rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fuzz/input.h"
#include "protocol/joining.h"
#include "protocol/submission.h"

namespace shoal::fuzz {

class JobCalls {
 public:
  static constexpr std::uint32_t ranks = 3;

  // What this rank submits next: in the group of all ranks, or in one of ranks 1 and 0, of which there are `groups`.
  Submission make(std::uint32_t rank, Input& input, std::uint8_t how, std::size_t groups);

  // What a rank that has joined calls for others. Sums are of fewer contributions from then on.
  Submission make_for_others(const wire::Opening& opening, std::uint32_t group);

  void sending(std::uint64_t handle) const {
    require(!work_.at(handle).finished, "nothing is sent for what is finished");
  }
  // `honest`: nobody has said anything wrong, so an array that is there is right.
  void finish(std::uint64_t handle, const Status& status, bool honest);
  // Null: there is none, as in a process that has little.
  std::byte* allocate(std::uint64_t handle, const std::vector<std::uint64_t>& blocks);

  void check_all_finished() const {
    for (const auto& [handle, work] : work_) {
      require(work.finished, "every handle is finished");
    }
  }

 private:
  static constexpr std::size_t largest_output = 64 * 1024;

  struct Work {
    bool finished = false;
    Collective collective = Collective::none;
    DType dtype = DType::none;
    Operator op = Operator::none;
    std::size_t group = 0;
    std::unique_ptr<std::byte[]> input;
    std::unique_ptr<std::byte[]> output;
    std::size_t bytes = 0;
  };

  static std::size_t rank_in(std::size_t group, std::uint32_t rank) { return group == 0 ? rank : 1 - rank; }
  static std::size_t chunk_bytes(std::size_t rows, std::size_t members, std::size_t index) {
    return rows / members + (index < rows % members ? 1 : 0);
  }
  static void give_output(Submission& submission, Work& work, std::size_t bytes);
  static void split(Submission& submission, std::size_t bytes, std::size_t members, std::size_t element);
  static void check_numbers(const Work& work);

  std::unordered_map<std::uint64_t, Work> work_;  // by handle
  std::uint64_t next_handle_ = 1;
  bool any_for_others_ = false;
};

inline Submission JobCalls::make_for_others(const wire::Opening& opening, std::uint32_t group) {
  any_for_others_ = true;
  std::uint64_t bytes = 0;
  Submission submission = call_of_joined(opening, group, 20 * second, bytes);
  if (bytes > largest_output) {
    fail_call_of_joined(submission, "there is no memory for it");
    bytes = 0;
  }
  submission.handle = next_handle_++;
  Work& work = work_[submission.handle];
  work.bytes = bytes;
  give_output(submission, work, bytes);
  submission.input = submission.output;
  submission.input_bytes = bytes;
  return submission;
}

inline Submission JobCalls::make(std::uint32_t rank, Input& input, std::uint8_t how, std::size_t groups) {
  Submission submission;
  submission.handle = next_handle_++;
  submission.collective = static_cast<Collective>(1 + how % 6);
  submission.group = rank < 2 && how >= 192 ? static_cast<std::uint32_t>(input.below(groups + 1)) : 0;
  const std::size_t members = submission.group == 0 ? ranks : 2;
  submission.name = how % 4 == 3 ? "" : std::string(1, static_cast<char>('a' + input.below(3)));
  submission.timeout = second * static_cast<Time>(1 + input.below(20));
  submission.dtype = input.once_in(2) ? DType::int32 : static_cast<DType>(1 + input.below(13));
  if (input.once_in(16)) {
    submission.failure = "it has failed before it began";
  }
  const std::size_t element = size_of(submission.dtype);
  const std::size_t rows = input.once_in(4) ? input.number(2) % 512 : input.below(128);
  const std::size_t bytes = rows * element;
  Work& work = work_[submission.handle];
  work.collective = submission.collective;
  work.dtype = submission.dtype;
  work.group = submission.group;
  work.bytes = bytes;
  work.input = std::make_unique<std::byte[]>(bytes);
  for (std::size_t i = 0; i + 4 <= bytes && submission.dtype == DType::int32; i += 4) {
    const auto value = static_cast<std::int32_t>(rank + 1 + i);
    std::memcpy(work.input.get() + i, &value, 4);
  }
  submission.input = work.input.get();
  submission.input_bytes = bytes;
  submission.shape = {static_cast<std::int64_t>(rows)};
  switch (submission.collective) {
    case Collective::all_reduce:
      submission.op = reducible(submission.dtype, Operator::sum) ? Operator::sum : Operator::min;
      give_output(submission, work, bytes);
      break;
    case Collective::reduce_scatter: {
      submission.op = Operator::max;
      const std::size_t own = rank_in(submission.group, rank);
      give_output(submission, work, chunk_bytes(rows, members, own) * element);
      break;
    }
    case Collective::broadcast:
      submission.root = static_cast<std::uint32_t>(input.below(members));
      give_output(submission, work, bytes);
      break;
    case Collective::all_to_all:
      split(submission, bytes, members, element);
      break;
    case Collective::barrier:
      submission.dtype = DType::none;
      submission.shape.clear();
      submission.input_bytes = 0;
      break;
    default:
      break;
  }
  work.op = submission.op;
  return submission;
}

inline void JobCalls::finish(std::uint64_t handle, const Status& status, bool honest) {
  Work& work = work_.at(handle);
  require(!std::exchange(work.finished, true), "a handle is finished once");
  if (status.ok() && honest && !any_for_others_) {
    check_numbers(work);
  }
  // Whoever uses them from now on is found.
  work.input = nullptr;
  work.output = nullptr;
}

inline std::byte* JobCalls::allocate(std::uint64_t handle, const std::vector<std::uint64_t>& blocks) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t block : blocks) {
    bytes += block;
  }
  Work& work = work_.at(handle);
  require(!work.finished, "no memory is asked for what is finished");
  if (bytes > largest_output) {
    return nullptr;
  }
  work.output = std::make_unique<std::byte[]>(bytes);
  return work.output.get();
}

inline void JobCalls::give_output(Submission& submission, Work& work, std::size_t bytes) {
  work.output = std::make_unique<std::byte[]>(bytes);
  submission.output = work.output.get();
  submission.output_bytes = bytes;
}

inline void JobCalls::split(Submission& submission, std::size_t bytes, std::size_t members, std::size_t element) {
  const std::size_t each = bytes / element / members * element;
  submission.splits.assign(members, static_cast<std::int64_t>(each));
  submission.splits[0] += static_cast<std::int64_t>(bytes - each * members);
}

inline void JobCalls::check_numbers(const Work& work) {
  if (work.dtype != DType::int32 || work.collective != Collective::all_reduce || work.op != Operator::sum) {
    return;
  }
  const std::int32_t members = work.group == 0 ? 3 : 2;
  const std::int32_t base = work.group == 0 ? 6 : 3;
  for (std::size_t i = 0; i + 4 <= work.bytes; i += 4) {
    std::int32_t value = 0;
    std::memcpy(&value, work.output.get() + i, 4);
    require(value == base + members * static_cast<std::int32_t>(i), "a sum is the sum of one contribution per rank");
  }
}

}  // namespace shoal::fuzz
