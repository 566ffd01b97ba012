// A whole job: three workers, two servers and the coordinator, the product's machines all of them, and a network
// between them on which anything may happen: frames are held back, changed, made up, said twice or never, connections
// break. The fuzzer decides what the ranks submit and what happens next. So every machine gets what its peers really
// say in every state, and then something else.
//
// What must hold: every handle is finished, exactly once, whatever the others say; no machine uses an array after
// that; without damage the numbers are right; afterwards nothing is left.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drivers/common/sums.h"
#include "fuzz/damage.h"
#include "fuzz/input.h"
#include "protocol/coordinator/coordinator.h"
#include "protocol/server/server.h"
#include "protocol/worker/worker.h"

using namespace shoal;
using fuzz::Frame;
using fuzz::Input;
using fuzz::require;
using wire::Header;
using wire::Type;

namespace {

constexpr std::uint32_t ranks = 3;
constexpr std::uint32_t servers = 2;
constexpr std::size_t commands_per_input = 400;
constexpr std::size_t largest_output = 64 * 1024;

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
        const auto [near, far] = connect(rank, ranks + index);
        workers_[rank]->attach_server(near, index);
        servers_[index]->attach_worker(far, rank);
      }
      const auto [near, far] = connect(rank, coordinator_actor);
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

  void send(std::size_t actor, LinkId link, const Header& header, Bytes owned, std::span<const std::byte> borrowed,
            Token token) {
    require(ends_.contains(link) && ends_.at(link).actor == actor, "a machine sends over links of its own");
    require(header.length == owned.size() + borrowed.size(), "a header has its payload's length");
    Header read = header;
    require(fuzz::reread(read).ok() && read == header, "a frame that is sent can be read");
    require(borrowed.empty() || token != 0, "a machine hears when borrowed memory is free");
    if (!ends_.at(link).open) {
      returned_.push_back({actor, token});
      return;
    }
    ends_.at(link).queue.push_back({header, std::move(owned), borrowed, token});
  }

  void detach(std::size_t actor, Token token) {
    for (auto& [id, end] : ends_) {
      for (Queued& frame : end.queue) {
        if (end.actor == actor && frame.token == token) {
          frame.owned.insert(frame.owned.end(), frame.borrowed.begin(), frame.borrowed.end());
          frame.borrowed = {};
        }
      }
    }
  }

  void close(LinkId link) {
    // Whoever closes a link hears no more of it.
    std::erase(closed_, link);
    break_link(link, false);
  }

  void sum(std::size_t actor, Sum sum) { sums_.emplace_back(actor, std::move(sum)); }

  void sending(std::uint64_t handle) { require(!work_.at(handle).finished, "nothing is sent for what is finished"); }

  void finish_handle(std::uint64_t handle, const Status& status) {
    Work& work = work_.at(handle);
    require(!std::exchange(work.finished, true), "a handle is finished once");
    if (status.ok() && honest_) {
      check_numbers(work);
    }
    // Whoever uses them from now on is found.
    work.input = nullptr;
    work.output = nullptr;
  }

  std::byte* allocate(std::uint64_t handle, const std::vector<std::uint64_t>& blocks) {
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

  std::uint64_t retransmissions() const { return repairs_; }

  void want_peer(std::uint32_t from, std::uint32_t to) { wanted_.emplace_back(from, to); }

 private:
  struct Queued {
    Header header;
    Bytes owned;
    std::span<const std::byte> borrowed;
    Token token = 0;
  };
  // One end of a link; `queue` is what it sends.
  struct End {
    std::size_t actor = 0;
    LinkId other = 0;
    bool open = true;
    std::deque<Queued> queue;
  };
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

  std::pair<LinkId, LinkId> connect(std::size_t near, std::size_t far) {
    const LinkId a = ++last_link_;
    const LinkId b = ++last_link_;
    ends_[a] = {near, b, true, {}};
    ends_[b] = {far, a, true, {}};
    return {a, b};
  }

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
        }
        break;
      case 7:
        if (input_.once_in(8)) {
          workers_[input_.below(ranks)]->abort("it had enough");
        }
        break;
      case 8:
        if (input_.once_in(4)) {
          break_link(any_link(), true);
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
        return_token();
        break;
      case 14:
        deliver(busy_link(), Way::changed);
        break;
      case 15:
        deliver(busy_link(), input_.once_in(2) ? Way::twice : Way::never);
        break;
      case 16:
        if (input_.once_in(2)) {
          make_up(any_link());
        } else {
          answer_early(busy_link());
        }
        break;
      case 17:
        for (std::size_t i = 0; i < 64; ++i) {
          step();
        }
        break;
      default:
        deliver(busy_link(), Way::honest);
        break;
    }
  }

  LinkId any_link() { return static_cast<LinkId>(1 + input_.byte() % last_link_); }

  // An end that has something to send, if there is one.
  LinkId busy_link() {
    std::vector<LinkId> busy;
    for (const auto& [id, end] : ends_) {
      if (!end.queue.empty()) {
        busy.push_back(id);
      }
    }
    return busy.empty() ? 1 : busy[input_.byte() % busy.size()];
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
    Submission submission;
    submission.handle = next_handle_++;
    submission.collective = static_cast<Collective>(1 + how % 6);
    submission.group = rank < 2 && how >= 192 ? static_cast<std::uint32_t>(input.below(groups_ + 1)) : 0;
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
    workers_[rank]->submit(std::move(submission));
  }

  static std::size_t rank_in(std::size_t group, std::uint32_t rank) { return group == 0 ? rank : 1 - rank; }

  static std::size_t chunk_bytes(std::size_t rows, std::size_t members, std::size_t index) {
    return rows / members + (index < rows % members ? 1 : 0);
  }

  static void give_output(Submission& submission, Work& work, std::size_t bytes) {
    work.output = std::make_unique<std::byte[]>(bytes);
    submission.output = work.output.get();
    submission.output_bytes = bytes;
  }

  static void split(Submission& submission, std::size_t bytes, std::size_t members, std::size_t element) {
    const std::size_t each = bytes / element / members * element;
    submission.splits.assign(members, static_cast<std::int64_t>(each));
    submission.splits[0] += static_cast<std::int64_t>(bytes - each * members);
  }

  // --- The network ---

  enum class Way { honest, changed, twice, never };

  void deliver(LinkId from, Way way) {
    End& end = ends_.at(from);
    if (!end.open || end.queue.empty()) {
      return;
    }
    Queued queued = std::move(end.queue.front());
    end.queue.pop_front();
    Frame frame{queued.header, std::move(queued.owned)};
    frame.payload.insert(frame.payload.end(), queued.borrowed.begin(), queued.borrowed.end());
    returned_.push_back({end.actor, queued.token});
    honest_ = honest_ && way == Way::honest;
    if (way == Way::never) {
      return;
    }
    if (way == Way::changed) {
      fuzz::damage(frame, input_);
    }
    const LinkId to = end.other;
    receive(to, frame);
    if (way == Way::twice) {
      receive(to, frame);
    }
  }

  // A frame that nobody sent.
  void make_up(LinkId to) {
    honest_ = false;
    Frame frame{{.type = static_cast<Type>(1 + input_.below(20)),
                 .operation = input_.size(),
                 .offset = input_.size(),
                 .credit = static_cast<std::uint32_t>(input_.size())},
                input_.bytes(input_.byte())};
    frame.header.dtype = input_.once_in(2) ? static_cast<DType>(input_.below(14)) : DType::none;
    frame.header.flags = input_.once_in(4) ? 1 : 0;
    frame.header.length = static_cast<std::uint32_t>(frame.payload.size());
    receive(to, frame);
  }

  // The result of what has not left yet.
  void answer_early(LinkId to) {
    const std::deque<Queued>& queue = ends_.at(to).queue;
    if (queue.empty()) {
      return;
    }
    const Queued& asked = queue[input_.below(std::min<std::size_t>(queue.size(), 256))];
    honest_ = false;
    const auto bytes = static_cast<std::uint32_t>(asked.borrowed.size());
    Frame frame{{.type = Type::result,
                 .flags = input_.once_in(2) ? wire::flag_last : std::uint8_t{0},
                 .dtype = asked.header.dtype == DType::none ? DType::int32 : asked.header.dtype,
                 .operation = asked.header.operation,
                 .offset = asked.header.offset,
                 .length = bytes,
                 .credit = asked.header.type == Type::data ? bytes : 0},
                Bytes(bytes)};
    receive(to, frame);
  }

  void receive(LinkId to, const Frame& frame) {
    End& end = ends_.at(to);
    if (!end.open) {
      return;
    }
    Machine& machine = *machines_[end.actor];
    Header header = frame.header;
    if (!fuzz::reread(header).ok()) {
      break_link(to, true);
      return;
    }
    const Placement placement = machine.on_header(to, header);
    if (!end.open) {
      return;
    }
    if (!placement.status.ok()) {
      break_link(to, true);
      return;
    }
    require(header.length <= 128 * 1024, "no header makes a machine take much memory");
    Bytes payload = frame.payload;
    payload.resize(header.length);
    std::copy(payload.begin(), payload.end(), placement.memory);
    if (!machine.on_payload(to).ok()) {
      break_link(to, true);
    }
  }

  // Both ends go; what was not sent is thrown away. `tell`: the machine at this end has not closed it by itself.
  void break_link(LinkId link, bool tell) {
    End& near = ends_.at(link);
    End& far = ends_.at(near.other);
    if (!near.open) {
      return;
    }
    near.open = false;
    far.open = false;
    honest_ = false;
    throw_away(near);
    throw_away(far);
    const Status why = Status::error(Code::peer_lost, "gone");
    if (tell) {
      machines_[near.actor]->on_lost(link, why);
      machines_[far.actor]->on_lost(near.other, why);
    } else {
      closed_.push_back(near.other);
    }
  }

  void throw_away(End& end) {
    for (const Queued& frame : end.queue) {
      returned_.push_back({end.actor, frame.token});
    }
    end.queue.clear();
  }

  void make_peer(bool refuse) {
    if (wanted_.empty()) {
      return;
    }
    const auto [from, to] = wanted_.front();
    wanted_.pop_front();
    if (refuse) {
      honest_ = false;
      workers_[from]->peer_unreachable(to, "refused");
      return;
    }
    const auto [near, far] = connect(from, to);
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

  void return_token() {
    if (!closed_.empty()) {
      const LinkId link = closed_.front();
      closed_.pop_front();
      machines_[ends_.at(link).actor]->on_lost(link, Status::error(Code::peer_lost, "closed"));
      return;
    }
    if (!returned_.empty()) {
      const auto [actor, token] = returned_.front();
      returned_.pop_front();
      if (token != 0) {
        machines_[actor]->on_sent(token);
      }
    }
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
    if (!returned_.empty() || !closed_.empty()) {
      return_token();
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
    for (LinkId link = 1; link <= last_link_; ++link) {
      if (!ends_.at(link).queue.empty()) {
        deliver(link, Way::honest);
        return true;
      }
    }
    return false;
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

  void check_numbers(const Work& work) const {
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

  void finish() {
    while (step()) {
    }
    // Without damage and with everyone there, what everyone called has ended; the rest ends with the job.
    for (LinkId link = 1; link <= last_link_; ++link) {
      if (ends_.at(link).actor == coordinator_actor) {
        break_link(link, true);
      }
    }
    while (step()) {
    }
    for (const auto& [handle, work] : work_) {
      require(work.finished, "every handle is finished");
    }
    for (LinkId link = 1; link <= last_link_; ++link) {
      break_link(link, true);
    }
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
  bool honest_ = true;
  BufferPool pool_{0};
  std::array<WorkerActions, ranks> node_actions_{WorkerActions{*this, 0}, WorkerActions{*this, 1},
                                                 WorkerActions{*this, 2}};
  std::array<ServerActions, servers> server_actions_{ServerActions{*this, ranks}, ServerActions{*this, ranks + 1}};
  CoordinatorActions coordinator_actions_{*this, coordinator_actor};
  Coordinator coordinator_;
  std::unordered_map<std::uint64_t, Work> work_;  // by handle
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<Machine*> machines_;  // by actor
  std::size_t groups_ = 0;          // beyond that of all ranks
  std::uint64_t next_handle_ = 1;
  std::uint64_t repairs_ = 0;  // of every link
  Time now_ = 0;
  LinkId last_link_ = 0;
  std::map<LinkId, End> ends_;
  std::deque<std::pair<std::size_t, Token>> returned_;
  std::deque<LinkId> closed_;  // by the other end
  std::deque<std::pair<std::size_t, Sum>> sums_;
  std::deque<std::pair<std::uint32_t, std::uint32_t>> wanted_;
};

template <class Base>
void Actions<Base>::send(LinkId link, const Header& header, Bytes owned, std::span<const std::byte> borrowed,
                         Token token) {
  job_.send(actor_, link, header, std::move(owned), borrowed, token);
}
template <class Base>
void Actions<Base>::detach(Token token) {
  job_.detach(actor_, token);
}
template <class Base>
void Actions<Base>::close(LinkId link) {
  job_.close(link);
}
void ServerActions::sum(Sum sum) { job_.sum(actor_, std::move(sum)); }
void WorkerActions::sum(Sum sum) { job_.sum(actor_, std::move(sum)); }
void WorkerActions::sending(std::uint64_t handle) { job_.sending(handle); }
void WorkerActions::finish(std::uint64_t handle, Status status) { job_.finish_handle(handle, status); }
std::byte* WorkerActions::allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) {
  return job_.allocate(handle, block_bytes);
}
std::uint64_t WorkerActions::retransmissions(LinkId /*link*/) const { return job_.retransmissions(); }
void WorkerActions::connect(std::uint32_t rank) { job_.want_peer(static_cast<std::uint32_t>(actor_), rank); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Job(input).run();
  return 0;
}
