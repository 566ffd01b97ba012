// One rank of the product among the ranks of a machine that a fuzzer runs: its local group, the application above it,
// and the network behind it. All in one thread, with the memory on the heap.
//
// What must hold here, whatever the other ranks have left in the memory: every handle is finished once, or handed to
// the worker once; copies and sums stay within arrays and slots; an error that comes out of the group is one that the
// group has thrown on purpose.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/invariant.h"
#include "drivers/sim/heap_group.h"
#include "fuzz/input.h"
#include "protocol/local/local_group.h"

namespace shoal::fuzz {

// What all ranks know, and what has happened to their memory.
struct LocalMachine {
  JobConfig config;
  std::vector<std::uint32_t> members;
  bool has_other_nodes = false;
  std::unique_ptr<sim::HeapGroup> node;  // of a group of some ranks: the memory of their machine
  std::unique_ptr<sim::HeapGroup> memory;
  bool honest = true;       // nothing in the memory is wrong, and nobody is missing
  bool words_hold = true;   // no word has been changed that a rank has to be able to rely on
  bool is_complete = true;  // nobody has died or given up
  std::uint64_t last_handle = 0;

  std::uint32_t size() const { return static_cast<std::uint32_t>(members.size()); }
};

// One call of one rank.
struct Call {
  Submission submission;
  std::unique_ptr<std::byte[]> input;  // null: the array lies in the rank's region
  std::unique_ptr<std::byte[]> output;
  bool finished = false;
};

class LocalRank final : private local::World {
 public:
  LocalRank(LocalMachine& machine, std::uint32_t place)
      : machine_(machine),
        memory_(*machine.memory),
        place_(place),
        group_(memory_, machine.config, machine.members, machine.members[place], machine.has_other_nodes, *this) {}

  local::LocalGroup& group() { return group_; }

  // --- The application ---

  // `make`: gives the call its arrays. Its handle is new. Who leaves calls nothing more.
  template <class Make>
  void call(Make make) {
    if (leaves_) {
      return;
    }
    const std::uint64_t handle = ++machine_.last_handle;
    Call& call = calls_[handle];
    call.submission.handle = handle;
    make(call);
    guarded([&] { group_.call(call.submission); });
  }
  // Bytes of the rank's own region; null: there is no room.
  std::byte* take_of_region(std::size_t bytes) {
    if (group_.open_operations() == 0) {
      region_used_ = 0;
    }
    const std::size_t begin = (region_used_ + 63) / 64 * 64;
    if (begin + bytes > machine_.memory->shape().region) {
      return nullptr;
    }
    region_used_ = begin + bytes;
    return memory_.region(place_) + begin;
  }
  void leave() {
    leaves_ = true;
    group_.leave();
  }
  bool is_empty() const { return is_empty_; }
  bool is_done() const {
    return std::all_of(calls_.begin(), calls_.end(), [](const auto& entry) { return entry.second.finished; });
  }
  void fail_call(const wire::Call& call, const Status& why) {
    machine_.is_complete = false;
    const local::LocalGroup::Failed failed = group_.fail_call(call, why);
    if (failed.at_network != 0) {
      end_at_network(failed.at_network, why);
    }
  }
  // As when the job has lost somebody.
  void fail_all(const Status& why) {
    machine_.is_complete = false;
    while (!ups_.empty()) {
      end_at_network(ups_.front().handle, why);
    }
    group_.fail_all(why, true);
  }

  // --- Steps ---

  // At most so many. Whether there may be more.
  bool take_steps(std::size_t most, Time now) {
    group_.on_time(now);
    for (std::size_t i = 0; i < most; ++i) {
      bool any = false;
      guarded([&] { any = group_.step() || group_.work(); });
      check_invariants();
      if (!any) {
        return false;
      }
    }
    return true;
  }

  // The network says the next thing of the operation that was sent up first, or fails it. Whether it had anything.
  bool hear_network(bool fails) {
    if (ups_.empty()) {
      return false;
    }
    if (fails || job_failed_) {
      machine_.is_complete = false;
      end_at_network(ups_.front().handle, Status::error(Code::aborted, "the network has had enough"));
      return true;
    }
    Up& up = ups_.front();
    while (up.next < up.chunks.count() && up.chunks.at(up.next).empty()) {
      ++up.next;
    }
    if (up.next == up.chunks.count()) {
      end_at_network(up.handle, {});
      return true;
    }
    const Range chunk = up.chunks.at(up.next);
    if (!up.gathers && !up.contributed.contains({chunk.begin + up.result_begin, chunk.end + up.result_begin})) {
      return false;
    }
    ++up.next;
    guarded([&] { group_.chunk_averaged(up.handle, chunk); });
    return true;
  }

  void check_invariants() const {
    if (!machine_.words_hold) {
      return;
    }
    try {
      group_.check_invariants();
    } catch (const InvariantViolated& violated) {
      require(false, violated.what());
    }
  }

 private:
  struct Up {
    std::uint64_t handle = 0;
    local::Chunks chunks;
    RangeSet contributed;
    std::uint64_t next = 0;
    bool gathers = false;
    std::uint64_t result_begin = 0;  // in what is contributed
    local::Told told;                // by all nodes, in the first operation of an all-gather
  };

  // As the driver takes steps: what is thrown ends the group.
  template <class Work>
  void guarded(Work work) {
    try {
      work();
    } catch (const InvariantViolated& violated) {
      require(false, violated.what());
    } catch (const std::runtime_error& error) {
      require(!machine_.honest, error.what());
      group_.give_up(error);
      require(!group_.broken().ok() && !group_.broken().message.empty(), "who gives up says why");
    }
  }

  void end_at_network(std::uint64_t handle, const Status& status) {
    const auto up = std::find_if(ups_.begin(), ups_.end(), [handle](const Up& one) { return one.handle == handle; });
    const local::Told told = up == ups_.end() ? local::Told() : std::move(up->told);
    std::erase_if(ups_, [handle](const Up& one) { return one.handle == handle; });
    guarded([&] { group_.averaged(handle, status, told); });
  }

  // --- Actions ---

  void ring(std::uint32_t rank, bool /*always*/) override { require(rank < machine_.size(), "a bell is a rank's"); }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes == 0) {
      return;
    }
    require(may_use(to, bytes, true), "what is written lies in an array or a slot");
    require(may_use(from, bytes, false), "what is read lies in an array, a slot or a mailbox");
    std::memmove(to, from, bytes);
  }
  void sum(std::byte* destination, std::span<const std::byte* const> sources, std::size_t count, DType dtype,
           Operator op, double divisor) override {
    const std::size_t bytes = count * size_of(dtype);
    require(may_use(destination, bytes, true), "a sum lies in an array or a slot");
    for (const std::byte* source : sources) {
      require(may_use(source, bytes, false), "what is added lies in an array, a slot or a mailbox");
    }
    reduce(destination, sources, count, dtype, op, divisor);
  }
  // Whether all of it is outside of the shared memory, where the sanitizer looks after it, or all of it is inside,
  // where it may be.
  bool may_use(const std::byte* begin, std::size_t bytes, bool writes) const {
    const std::byte* const first = reinterpret_cast<const std::byte*>(&memory_.words(0));
    const std::byte* const last = first + memory_.shape().bytes();
    if (begin + bytes <= first || begin >= last) {
      return true;
    }
    const std::byte* const usable = writes ? memory_.slot(0, 0) : memory_.mailbox(0);
    const std::byte* const end = first + memory_.shape().bytes_in_use();
    const bool in_use = begin >= usable && bytes <= static_cast<std::size_t>(end - begin) && begin < end;
    const bool in_regions = begin >= memory_.region(0) && bytes <= static_cast<std::size_t>(last - begin);
    return in_use || in_regions;
  }

  void sending(std::uint64_t handle) override { require(!calls_.at(handle).finished, "what is said is not finished"); }
  void finish(std::uint64_t handle, Status status) override {
    Call& call = calls_.at(handle);
    require(status.ok() || !status.message.empty(), "an error says something");
    if (status.ok() && machine_.honest) {
      check_numbers(call.submission);
    }
    end(call);
  }
  void hand_over(Submission submission) override {
    require(machine_.has_other_nodes, "only where there are other nodes has the worker anything to do");
    end(calls_.at(submission.handle));
  }
  static void end(Call& call) {
    require(!std::exchange(call.finished, true), "a handle is finished once");
    // Whoever uses them from now on is found.
    call.input = nullptr;
    call.output = nullptr;
  }
  void check_numbers(const Submission& s) const {
    if (s.collective != Collective::all_reduce || s.dtype != DType::int32 || s.op != Operator::sum) {
      return;
    }
    const auto ranks = static_cast<std::int32_t>(machine_.size());
    for (std::size_t i = 0; i + 4 <= s.output_bytes; i += 4) {
      std::int32_t value = 0;
      std::memcpy(&value, s.output + i, 4);
      require(value == ranks * (ranks + 1) / 2 + ranks * static_cast<std::int32_t>(i),
              "a sum is the sum of one contribution per rank");
    }
  }

  std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) override {
    constexpr std::uint64_t most = 64 * 1024;
    std::uint64_t bytes = 0;
    for (const std::uint64_t block : block_bytes) {
      require(bytes + block >= bytes, "the size of an output is a number");
      bytes += block;
    }
    Call& call = calls_.at(handle);
    require(!call.finished, "no memory is asked for what is finished");
    if (bytes > most) {
      machine_.is_complete = false;
      return nullptr;
    }
    call.output = std::make_unique<std::byte[]>(bytes);
    return call.output.get();
  }
  void warn(std::string text) override { require(!text.empty(), "a warning says something"); }
  void called(std::uint32_t /*group*/, const wire::Opening& /*opening*/) override {}

  bool holds(const std::byte* begin, std::uint64_t bytes) const override {
    const std::byte* const region = memory_.region(place_);
    return begin != nullptr && begin >= region && begin + bytes <= region + memory_.shape().region;
  }
  void reach(std::uint32_t rank, std::size_t end) override {
    require(rank < machine_.size() && end <= memory_.shape().region, "only what is a rank's region is reached for");
  }
  void detach(const std::byte* begin, std::uint64_t bytes) override {
    require(holds(begin, bytes), "only an array in the rank's own region is detached");
  }

  void send_up(Submission submission, const std::optional<local::Chunks>& chunks) override {
    require(machine_.has_other_nodes && place_ == 0, "the leader alone sends up");
    Up& up = ups_.emplace_back();
    up.handle = submission.handle;
    up.chunks = chunks.value_or(local::Chunks());
    up.gathers = submission.collective == Collective::all_gather;
    if (submission.collective == Collective::reduce_scatter) {
      up.result_begin = static_cast<std::uint64_t>(submission.output - submission.input);
    } else if (up.gathers && !submission.streamed) {
      tell(up, submission);
    }
  }
  // The other node, of which this leader hears: its ranks have nothing, or more than travels with what it tells.
  void tell(Up& up, const Submission& submission) const {
    const local::ConstBytes own{submission.input, submission.input_bytes};
    const std::uint64_t block = submission.name == "a" ? 0 : 48;
    const std::vector<std::uint64_t> sizes(machine_.config.size() - machine_.size(), block);
    const wire::Bytes theirs = local::encode_blocks(sizes, {});
    const bool is_first = submission.group == 1;
    up.told.by_node = is_first ? std::vector<std::uint64_t>{own.size(), theirs.size()}
                               : std::vector<std::uint64_t>{theirs.size(), own.size()};
    up.told.bytes.assign(own.begin(), own.end());
    up.told.bytes.insert(is_first ? up.told.bytes.end() : up.told.bytes.begin(), theirs.begin(), theirs.end());
  }
  void contributed(std::uint64_t handle, Range range) override {
    const auto up = std::find_if(ups_.begin(), ups_.end(), [handle](const Up& one) { return one.handle == handle; });
    if (up != ups_.end()) {
      up->contributed.add(range);
    }
  }
  void open_as_failed(Submission submission) override {
    require(machine_.has_other_nodes && !submission.failure.empty(), "other nodes hear why something has failed");
  }
  void fail_job(const Status& why) override {
    require(machine_.has_other_nodes && !why.message.empty(), "a job fails for a reason");
    job_failed_ = true;
  }
  void empty() override {
    require(!std::exchange(is_empty_, true), "a rank is told once that it has left");
    require(group_.open_operations() == 0, "who has left has nothing open");
  }

  LocalMachine& machine_;
  const local::GroupMemory& memory_;
  const std::uint32_t place_;
  std::map<std::uint64_t, Call> calls_;  // by handle
  std::deque<Up> ups_;
  std::size_t region_used_ = 0;
  bool job_failed_ = false;
  bool leaves_ = false;
  bool is_empty_ = false;
  local::LocalGroup group_;
};

}  // namespace shoal::fuzz
