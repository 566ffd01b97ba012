// The ranks of a machine on the memory that they share: some are the product's local groups, some say what they like
// (local_liar.h), and anything in the memory may be damaged. The fuzzer decides what the ranks call, who takes a step
// next, what the network behind them answers, and what is wrong.
//
// What must hold: no memory is used that is not there, and none of the shared memory but where arrays and slots lie;
// a broken record ends the group with an error that says so; every handle is finished once, whatever others have left
// in the memory, and no array is used after that; without damage the numbers are right and everybody can leave.
#include <array>
#include <memory>
#include <vector>

#include "fuzz/local_damage.h"
#include "fuzz/local_liar.h"
#include "fuzz/local_rank.h"
#include "protocol/keys.h"
#include "protocol/sharding.h"

using namespace shoal;
using fuzz::Input;
using fuzz::LocalLiar;
using fuzz::LocalMachine;
using fuzz::LocalRank;
using fuzz::require;

namespace {

constexpr std::size_t commands_per_input = 300;
constexpr std::uint32_t other_ranks = 2;     // of other nodes
constexpr std::size_t most_steps = 200'000;  // until a rank has nothing to do: whoever takes more hangs
constexpr std::size_t most_rounds = 2'000;   // of waiting for a deadline

LocalMachine machine_of(Input& input) {
  LocalMachine machine;
  const auto ranks = static_cast<std::uint32_t>(2 + input.below(3));
  const std::size_t kind = input.below(4);
  machine.has_other_nodes = kind >= 2;
  const std::uint32_t in_job = ranks + (machine.has_other_nodes ? other_ranks : 0);
  JobConfig& config = machine.config;
  for (std::uint32_t rank = 0; rank < in_job; ++rank) {
    config.hosts.push_back(rank < ranks ? "a" : "b");
    config.leaders.push_back(rank < ranks ? 0 : ranks);
  }
  config.segment = 256;
  config.credit = 256;
  config.small = std::array<std::uint32_t, 4>{0, 64, 256, 256}[input.below(4)];
  config.eager = 256U * static_cast<std::uint32_t>(input.below(3));
  config.weights = input.once_in(2) ? std::vector<std::uint32_t>{1, 1} : std::vector<std::uint32_t>{3, 1};
  config.server_names = {"s", "t"};
  config.server_ranks = {-1, -1};
  config.tables.open = 32 * 1024;
  require(problem_with(config).empty(), "the configuration is one");
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    machine.members.push_back(rank);
  }
  local::Shape shape;
  shape.ranks = ranks;
  shape.mailbox = 8 * 1024;
  shape.slot = 64 * ranks * (1 + input.below(4));
  shape.slots = static_cast<std::uint32_t>(1 + input.below(3));
  shape.results = static_cast<std::uint32_t>(1 + input.below(3));
  shape.region = input.once_in(2) ? 16 * 1024 : 0;
  if (kind == 1) {
    local::Shape whole = shape;
    machine.node = std::make_unique<sim::HeapGroup>(whole);
    machine.memory = std::make_unique<sim::HeapGroup>(shape, machine.node.get(), machine.members);
  } else {
    machine.memory = std::make_unique<sim::HeapGroup>(shape);
  }
  return machine;
}

class Job {
 public:
  explicit Job(Input& input) : input_(input), machine_(machine_of(input)) {
    const std::size_t liars = input.below(4);  // by bit, of the first two
    for (std::uint32_t place = 0; place < machine_.size(); ++place) {
      if (place < 2 && liars != 3 && (liars >> place) % 2 == 1) {
        machine_.honest = false;
        machine_.is_complete = false;
        liars_.push_back(std::make_unique<LocalLiar>(*machine_.memory, place));
        ranks_.push_back(nullptr);
        continue;
      }
      ranks_.push_back(std::make_unique<LocalRank>(machine_, place));
      add_groups(*ranks_.back());
    }
  }

  void run() {
    for (std::size_t i = 0; i < commands_per_input && !input_.empty(); ++i) {
      command();
    }
    finish();
  }

 private:
  // All ranks of the job, in their order and in the other.
  std::vector<std::uint32_t> group(std::size_t number) const {
    std::vector<std::uint32_t> ranks(machine_.config.size());
    std::iota(ranks.begin(), ranks.end(), 0U);
    if (number == 1) {
      std::reverse(ranks.begin(), ranks.end());
    }
    return ranks;
  }
  Hash128 id_of(std::size_t number) const {
    return number == 0 ? world_group_id(machine_.config.size()) : group_id(group(1), "g", 1);
  }
  void add_groups(LocalRank& rank) const {
    for (std::uint32_t number = 0; number < 2; ++number) {
      std::optional<local::Internode> internode;
      if (machine_.has_other_nodes) {
        // Two nodes: these ranks, and the others.
        std::vector<std::uint32_t> nodes;
        for (const std::uint32_t member : group(number)) {
          const bool is_here = std::count(machine_.members.begin(), machine_.members.end(), member) > 0;
          nodes.push_back(is_here == (number == 0) ? 0 : 1);
        }
        internode = local::Internode{number + 1,
                                     machine_.config.size(),
                                     machine_.size(),
                                     machine_.config.weights,
                                     shared_from(machine_.config),
                                     std::move(nodes),
                                     2};
      }
      rank.group().add_group(number, id_of(number), group(number), internode);
    }
  }

  // --- Commands ---

  void command() {
    const std::size_t which = input_.below(24);
    switch (which) {
      case 0:
      case 1:
        call(any_rank());
        break;
      case 2:
      case 3:
        call_everywhere();
        break;
      case 4:
        now_ += static_cast<Time>(input_.size() % static_cast<std::uint64_t>(3 * second));
        break;
      case 5:
        leave_or_fail(any_rank());
        break;
      case 6:
      case 7:
        hear_network(input_.once_in(16));
        break;
      case 8:
        damage();
        break;
      case 9:
        die();
        break;
      case 10:
      case 11:
      case 12:
      case 13:
        if (!liars_.empty()) {
          liars_[input_.below(liars_.size())]->act(input_);
          break;
        }
        [[fallthrough]];
      case 14:
        take_all_steps();
        break;
      default:
        if (LocalRank* const rank = any_rank()) {
          rank->take_steps(1 + input_.below(which < 20 ? 4 : 64), now_);
        }
        break;
    }
  }

  LocalRank* any_rank() { return ranks_[input_.below(ranks_.size())].get(); }

  void hear_network(bool fails) {
    if (ranks_.front() != nullptr) {
      ranks_.front()->hear_network(fails);
    }
  }

  void leave_or_fail(LocalRank* rank) {
    if (rank == nullptr) {
      return;
    }
    switch (input_.below(8)) {
      case 0: {
        const wire::Call call{id_of(input_.below(2)), static_cast<std::uint32_t>(input_.below(3)), name()};
        rank->fail_call(call, Status::error(Code::timeout, "somebody waits for another"));
        break;
      }
      case 1:
        rank->fail_all(Status::error(Code::peer_lost, "somebody is lost"));
        break;
      case 2:
      case 3:
        rank->leave();
        break;
      default:
        break;
    }
  }

  void damage() {
    machine_.honest = false;
    machine_.is_complete = false;
    switch (input_.below(8)) {
      case 0:
      case 1:
        machine_.words_hold = false;
        fuzz::damage_word(*machine_.memory, input_);
        break;
      case 2:
        if (machine_.node != nullptr) {
          machine_.node->words(static_cast<std::uint32_t>(input_.below(machine_.size()))).left.store(1);
        }
        break;
      case 3:
        fuzz::damage_slot(*machine_.memory, input_);
        break;
      default:
        fuzz::damage_mailbox(*machine_.memory, input_);
        break;
    }
  }

  // It takes no step any more, wherever it was.
  void die() {
    const std::size_t which = input_.below(ranks_.size());
    if (input_.once_in(8) && ranks_[which] != nullptr) {
      machine_.is_complete = false;
      ranks_[which] = nullptr;
    }
  }

  // --- Calls ---

  std::string name() { return std::string(1, static_cast<char>('a' + input_.below(3))); }

  void call_everywhere() {
    const Input same = input_;
    for (const std::unique_ptr<LocalRank>& rank : ranks_) {
      input_ = same;
      call(rank.get());
    }
  }

  void call(LocalRank* rank) {
    if (rank == nullptr) {
      return;
    }
    const auto place = static_cast<std::uint32_t>(
        std::find_if(ranks_.begin(), ranks_.end(), [rank](const auto& one) { return one.get() == rank; }) -
        ranks_.begin());
    rank->call([&](fuzz::Call& call) { fill(call, *rank, place); });
  }

  void fill(fuzz::Call& call, LocalRank& rank, std::uint32_t place) {
    Submission& s = call.submission;
    const std::uint8_t how = input_.byte();
    s.collective = static_cast<Collective>(1 + how % 6);
    s.group = how >= 192 ? 1 : 0;
    s.name = how % 4 == 3 ? "" : name();
    s.timeout = second * static_cast<Time>(1 + input_.below(20));
    s.dtype = input_.once_in(2) ? DType::int32 : static_cast<DType>(1 + input_.below(13));
    if (input_.once_in(16)) {
      s.failure = "it has failed before it began";
    }
    const std::size_t element = size_of(s.dtype);
    const std::size_t members = machine_.config.size();
    const std::size_t rows = input_.once_in(2) ? input_.number(2) % 1024 : input_.below(64);
    const std::size_t bytes = rows * element;
    s.input_bytes = bytes;
    s.shape = {static_cast<std::int64_t>(rows)};
    std::optional<std::size_t> output;
    switch (s.collective) {
      case Collective::all_reduce:
        s.op = reducible(s.dtype, Operator::sum) ? Operator::sum : Operator::min;
        output = bytes;
        break;
      case Collective::reduce_scatter: {
        s.op = Operator::max;
        const std::vector<std::uint32_t> order = group(s.group);
        const auto index = std::find(order.begin(), order.end(), machine_.members[place]) - order.begin();
        output = chunk_of(bytes, rows, members, static_cast<std::size_t>(index)).size();
        break;
      }
      case Collective::broadcast:
        s.root = static_cast<std::uint32_t>(input_.below(members));
        output = bytes;
        break;
      case Collective::all_to_all: {
        const auto each = static_cast<std::int64_t>(rows / members * element);
        s.splits.assign(members, each);
        s.splits[0] += static_cast<std::int64_t>(bytes) - each * static_cast<std::int64_t>(members);
        break;
      }
      case Collective::barrier:
        s.dtype = DType::none;
        s.shape.clear();
        s.input_bytes = 0;
        break;
      default:
        break;
    }
    give_arrays(call, rank, output, input_.below(4));
    for (std::size_t i = 0; i + 4 <= s.input_bytes && s.dtype == DType::int32; i += 4) {
      const auto value = static_cast<std::int32_t>(place + 1 + i);
      std::memcpy(const_cast<std::byte*>(s.input) + i, &value, 4);
    }
  }

  static void give_arrays(fuzz::Call& call, LocalRank& rank, std::optional<std::size_t> output, std::size_t way) {
    Submission& s = call.submission;
    std::byte* input = way % 2 == 0 ? rank.take_of_region(s.input_bytes) : nullptr;
    if (input == nullptr) {
      call.input = std::make_unique<std::byte[]>(s.input_bytes);
      input = call.input.get();
    }
    s.input = input;
    if (!output) {
      return;
    }
    s.output_bytes = *output;
    if (way >= 2 && *output == s.input_bytes) {
      s.output = input;  // in place
      return;
    }
    s.output = way % 2 == 0 ? rank.take_of_region(*output) : nullptr;
    if (s.output == nullptr) {
      call.output = std::make_unique<std::byte[]>(*output);
      s.output = call.output.get();
    }
  }

  // --- The end ---

  void take_all_steps() {
    std::size_t steps = 0;
    for (bool any = true; any;) {
      any = false;
      for (const std::unique_ptr<LocalRank>& rank : ranks_) {
        any = (rank != nullptr && rank->take_steps(1, now_)) || any;
        require(++steps < most_steps, "ranks come to an end of what they have to do");
      }
    }
  }

  // Until nothing is left to be done at this time.
  void settle() {
    do {
      take_all_steps();
    } while (ranks_.front() != nullptr && ranks_.front()->hear_network(false));
  }

  bool all(bool (LocalRank::*what)() const) const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [what](const auto& rank) { return rank == nullptr || (rank.get()->*what)(); });
  }

  // Time passes until all that was called has ended, then all leave.
  void finish() {
    settle();
    for (std::size_t round = 0; !all(&LocalRank::is_done); ++round) {
      require(round < most_rounds, "what was called ends when its time is out");
      Time next = never;
      for (const std::unique_ptr<LocalRank>& rank : ranks_) {
        if (rank != nullptr && !rank->is_done()) {
          next = std::min(next, rank->group().deadline());
        }
      }
      require(next != never, "what is open has a deadline");
      now_ = std::max(now_ + 1, next);
      settle();
    }
    for (const std::unique_ptr<LocalRank>& rank : ranks_) {
      if (rank != nullptr) {
        require(rank->group().open_operations() == 0, "what is done is not open");
        rank->leave();
      }
    }
    settle();
    require(!machine_.honest || !machine_.is_complete || all(&LocalRank::is_empty), "everybody can leave");
  }

  Input& input_;
  LocalMachine machine_;
  std::vector<std::unique_ptr<LocalRank>> ranks_;  // by place; null: dead, or a liar
  std::vector<std::unique_ptr<LocalLiar>> liars_;
  Time now_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Job(input).run();
  return 0;
}
