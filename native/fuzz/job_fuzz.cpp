// A whole job: three workers, two servers and the coordinator, the product's machines all of them, and a network
// between them on which anything may happen: frames are held back, changed, made up, said twice or never, connections
// break. The fuzzer decides what the ranks submit and what happens next. So every machine gets what its peers really
// say in every state, and then something else.
//
// What must hold: every handle is finished, exactly once, whatever the others say; no machine uses an array after
// that; without damage the numbers are right; afterwards nothing is left.
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "drivers/common/sums.h"
#include "fuzz/input.h"
#include "fuzz/job_calls.h"
#include "fuzz/job_links.h"
#include "protocol/coordinator/coordinator.h"
#include "protocol/server/server.h"
#include "protocol/worker/worker.h"

using namespace shoal;
using fuzz::Input;
using fuzz::require;
using wire::Header;
using Way = fuzz::JobLinks::Way;

namespace {

constexpr std::uint32_t ranks = fuzz::JobCalls::ranks;
constexpr std::uint32_t servers = 2;
constexpr std::size_t commands_per_input = 400;

JobConfig config_of(Input& input) {
  JobConfig config;
  config.hosts = {"a", "b", "c"};
  config.segment = 256;
  config.credit = 256U << input.below(3);
  config.eager = 256U * static_cast<std::uint32_t>(input.below(3));
  config.small = input.once_in(4) ? 0 : 128;
  config.least_shard = config.small == 0 ? 1 : 256;
  config.least_segment = config.small == 0 ? 64 : 0;
  config.tables.open = 8 * 1024;
  config.ring = input.once_in(4);
  config.weights = input.once_in(2) ? std::vector<std::uint32_t>{1, 1} : std::vector<std::uint32_t>{3, 1};
  config.server_names = {"s", "t"};
  const std::int32_t second = config.weights[0] > 1 ? 2 : -1;
  config.server_ranks = input.once_in(2) ? std::vector<std::int32_t>{-1, -1} : std::vector<std::int32_t>{1, second};
  config.rate = input.once_in(2) ? 500'000 : 0;
  require(problem_with(config).empty(), "the configuration is one");
  return config;
}

class Job;

// The world of one machine: its actions go to the job, under its name.
template <class Base>
class Actions : public Base {
 public:
  Actions(Job& job, std::size_t actor) : job_(job), actor_(actor) {}
  void send(LinkId link, const Header& header, Bytes owned, std::span<const std::byte> borrowed, Token token) override;
  void detach(Token token) override;
  void close(LinkId link) override;

 protected:
  Job& job_;
  const std::size_t actor_;
};

class ServerActions final : public Actions<ServerWorld> {
 public:
  using Actions::Actions;
  void sum(Sum sum) override;
};

class CoordinatorActions final : public Actions<CoordinatorWorld> {
 public:
  using Actions::Actions;
  void warn(std::string text) override { require(!text.empty(), "a warning says something"); }
};

class WorkerActions final : public Actions<WorkerWorld> {
 public:
  using Actions::Actions;
  void sum(Sum sum) override;
  void sending(std::uint64_t handle) override;
  void finish(std::uint64_t handle, Status status) override;
  std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) override;
  void connect(std::uint32_t rank) override;
  void connect_server(std::uint32_t /*server*/, std::uint32_t /*attempt*/) override {}  // never answered
  void warn(std::string text) override { require(!text.empty(), "a warning says something"); }
  void called(std::uint32_t group, const wire::Opening& opening) override;
  void ended() override {}
  std::uint64_t retransmissions(LinkId link) const override;
};

// Workers by rank, then servers by index, then the coordinator.
constexpr std::size_t coordinator_actor = ranks + servers;

class Job {
 public:
  explicit Job(Input& input) : input_(input), config_(config_of(input)), coordinator_(config_, coordinator_actions_) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      workers_.push_back(std::make_unique<Worker>(config_, rank, node_actions_[rank], pool_));
      machines_.push_back(workers_.back().get());
    }
    for (std::uint32_t index = 0; index < servers; ++index) {
      servers_.push_back(std::make_unique<Server>(config_, index, server_actions_[index], pool_));
      machines_.push_back(servers_.back().get());
    }
    machines_.push_back(&coordinator_);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::uint32_t index = 0; index < servers; ++index) {
        const auto [near, far] = links_.connect(rank, ranks + index);
        workers_[rank]->attach_server(near, index);
        servers_[index]->attach_worker(far, rank);
      }
      const auto [near, far] = links_.connect(rank, coordinator_actor);
      workers_[rank]->attach_coordinator(near);
      coordinator_.attach_worker(far, rank);
    }
  }

  void run() {
    for (std::size_t i = 0; i < commands_per_input && !input_.empty(); ++i) {
      command();
      check();
    }
    finish();
  }

  // --- Actions ---

  fuzz::JobLinks& links() { return links_; }
  fuzz::JobCalls& calls() { return calls_; }
  void sum(std::size_t actor, Sum sum) { sums_.emplace_back(actor, std::move(sum)); }
  std::uint64_t retransmissions() const { return repairs_; }

  void want_peer(std::uint32_t from, std::uint32_t to) { wanted_.emplace_back(from, to); }
  void called(std::size_t rank, std::uint32_t group, const wire::Opening& opening) {
    heard_.push_back({rank, group, opening});
  }

 private:
  // --- Commands ---

  void command() {
    switch (input_.below(24)) {
      case 0:
      case 1:
      case 2:
      case 3:
        submit(static_cast<std::uint32_t>(input_.below(ranks)));
        break;
      case 4:
        // Everyone calls the same, as in a program.
        submit_everywhere();
        break;
      case 5:
        if (groups_ < 4) {
          ++groups_;
          for (std::uint32_t rank = 0; rank < 2; ++rank) {
            workers_[rank]->make_group({1, 0}, "g");
          }
        }
        break;
      case 6:
        if (input_.once_in(4)) {
          workers_[input_.below(ranks)]->leave();
        } else {
          join(static_cast<std::uint32_t>(input_.below(ranks)));
        }
        break;
      case 7:
        if (input_.once_in(8)) {
          workers_[input_.below(ranks)]->abort("it had enough");
        }
        break;
      case 8:
        if (input_.once_in(4)) {
          links_.break_link(links_.any(), true);
        }
        break;
      case 9:
        repairs_ += input_.once_in(2) ? input_.byte() : 0;
        pass(static_cast<Time>(input_.size() % static_cast<std::uint64_t>(3 * second)));
        break;
      case 10:
      case 11:
        end_sum(input_.byte());
        break;
      case 12:
        make_peer(input_.once_in(16));
        break;
      case 13:
        links_.return_token();
        break;
      case 14:
        links_.deliver(links_.any_busy(), Way::changed);
        break;
      case 15:
        links_.deliver(links_.any_busy(), input_.once_in(2) ? Way::twice : Way::never);
        break;
      case 16:
        if (input_.once_in(2)) {
          links_.make_up(links_.any());
        } else {
          links_.answer_early(links_.any_busy());
        }
        break;
      case 17:
        for (std::size_t i = 0; i < 64; ++i) {
          step();
        }
        break;
      default:
        links_.deliver(links_.any_busy(), Way::honest);
        break;
    }
  }

  void submit_everywhere() {
    const std::uint8_t how = input_.byte();
    const Input same = input_;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      Input again = same;
      submit(rank, again, how);
      if (rank + 1 == ranks) {
        input_ = again;
      }
    }
  }

  void submit(std::uint32_t rank) {
    const std::uint8_t how = input_.byte();
    submit(rank, input_, how);
  }

  void submit(std::uint32_t rank, Input& input, std::uint8_t how) {
    workers_[rank]->submit(calls_.make(rank, input, how, groups_));
  }

  // In a group, or no more.
  void join(std::uint32_t rank) {
    const auto group = rank < 2 ? static_cast<std::uint32_t>(input_.below(groups_ + 1)) : 0;
    input_.once_in(2) ? workers_[rank]->end_join(group) : workers_[rank]->join(group, group);
  }

  void call_for_others() {
    const auto [rank, group, opening] = std::move(heard_.front());
    heard_.pop_front();
    workers_[rank]->submit(calls_.make_for_others(opening, group));
  }

  void make_peer(bool refuse) {
    if (wanted_.empty()) {
      return;
    }
    const auto [from, to] = wanted_.front();
    wanted_.pop_front();
    if (refuse) {
      links_.note_dishonest();
      workers_[from]->peer_unreachable(to, "refused");
      return;
    }
    const auto [near, far] = links_.connect(from, to);
    workers_[from]->attach_peer(near, to);
    workers_[to]->attach_peer(far, from);
  }

  void end_sum(std::size_t which) {
    if (sums_.empty()) {
      return;
    }
    const auto place = sums_.begin() + static_cast<std::ptrdiff_t>(which % sums_.size());
    const auto [actor, sum] = std::move(*place);
    sums_.erase(place);
    carry_out(sum);
    machines_[actor]->on_summed(sum.token);
  }

  void pass(Time time) {
    now_ += time;
    for (Machine* machine : machines_) {
      // What it finds out may make it look again at once, but not for ever.
      for (int rounds = 0; rounds == 0 || machine->deadline() <= now_; ++rounds) {
        require(rounds < 4, "a machine does not ask for a time that has passed again and again");
        machine->on_time(now_);
      }
    }
  }

  // Something of what is there to do. False: nothing is.
  bool step() {
    if (links_.return_token()) {
      return true;
    }
    if (!sums_.empty()) {
      end_sum(0);
      return true;
    }
    if (!wanted_.empty()) {
      make_peer(false);
      return true;
    }
    if (!heard_.empty()) {
      call_for_others();
      return true;
    }
    return links_.deliver_next();
  }

  // --- What must hold ---

  void check() const {
    for (const Machine* machine : machines_) {
      machine->check_invariants();
    }
    // Per worker and server: a window, what came with openings, and the openings; outputs of gathers that go through
    // their home come on top.
    require(pool_.taken_bytes() <= std::size_t{8} * 1024 * 1024, "buffers stay within their limits");
  }

  void finish() {
    while (step()) {
    }
    // Without damage and with everyone there, what everyone called has ended; the rest ends with the job.
    links_.break_all_of(coordinator_actor);
    while (step()) {
    }
    calls_.check_all_finished();
    links_.break_all();
    while (step()) {
    }
    for (const auto& server : servers_) {
      require(server->operations() == 0, "without links a server has no operations");
    }
    for (const auto& worker : workers_) {
      require(worker->open_operations() == 0, "without its job a worker has no operations");
    }
    require(pool_.taken_bytes() == 0, "without links no memory is held");
  }

  Input& input_;
  const JobConfig config_;
  BufferPool pool_{0};
  std::array<WorkerActions, ranks> node_actions_{WorkerActions{*this, 0}, WorkerActions{*this, 1},
                                                 WorkerActions{*this, 2}};
  std::array<ServerActions, servers> server_actions_{ServerActions{*this, ranks}, ServerActions{*this, ranks + 1}};
  CoordinatorActions coordinator_actions_{*this, coordinator_actor};
  Coordinator coordinator_;
  fuzz::JobCalls calls_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<Machine*> machines_;  // by actor
  fuzz::JobLinks links_{input_, machines_};
  std::size_t groups_ = 0;     // beyond that of all ranks
  std::uint64_t repairs_ = 0;  // of every link
  Time now_ = 0;
  std::deque<std::pair<std::size_t, Sum>> sums_;
  std::deque<std::pair<std::uint32_t, std::uint32_t>> wanted_;
  struct Heard {
    std::size_t rank;
    std::uint32_t group;
    wire::Opening opening;
  };
  std::deque<Heard> heard_;  // what joined ranks are to call
};

template <class Base>
void Actions<Base>::send(LinkId link, const Header& header, Bytes owned, std::span<const std::byte> borrowed,
                         Token token) {
  job_.links().send(actor_, link, header, std::move(owned), borrowed, token);
}
template <class Base>
void Actions<Base>::detach(Token token) {
  job_.links().detach(actor_, token);
}
template <class Base>
void Actions<Base>::close(LinkId link) {
  job_.links().close(link);
}
void ServerActions::sum(Sum sum) { job_.sum(actor_, std::move(sum)); }
void WorkerActions::sum(Sum sum) { job_.sum(actor_, std::move(sum)); }
void WorkerActions::sending(std::uint64_t handle) { job_.calls().sending(handle); }
void WorkerActions::finish(std::uint64_t handle, Status status) {
  job_.calls().finish(handle, status, job_.links().honest());
}
std::byte* WorkerActions::allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) {
  return job_.calls().allocate(handle, block_bytes);
}
std::uint64_t WorkerActions::retransmissions(LinkId /*link*/) const { return job_.retransmissions(); }
void WorkerActions::called(std::uint32_t group, const wire::Opening& opening) { job_.called(actor_, group, opening); }
void WorkerActions::connect(std::uint32_t rank) { job_.want_peer(static_cast<std::uint32_t>(actor_), rank); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Job(input).run();
  return 0;
}
