#include "drivers/sim/packet_level/job.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "base/buffer.h"
#include "drivers/sim/random.h"
#include "drivers/sim/workload.h"
#include "protocol/coordinator/coordinator.h"
#include "protocol/server/server.h"
#include "protocol/worker/worker.h"

namespace shoal::sim::packet_level {

namespace {

constexpr std::size_t kept_bytes = std::size_t{64} << 20;
constexpr Time patient = 1800 * second;

class Owner {
 public:
  virtual ~Owner() = default;
  virtual void finished(std::uint32_t rank, const Status& status) = 0;
  virtual void connect(std::uint32_t from, std::uint32_t to) = 0;
};

template <class Base>
class World : public Base {
 public:
  explicit World(Process& process) : process_(process) {}

  void send(LinkId link, const wire::Header& header, wire::Bytes owned, std::span<const std::byte> borrowed,
            Token token) override {
    process_.send(link, header, std::move(owned), borrowed.size(), token);
  }
  void detach(Token /*token*/) override {}  // nothing borrowed is ever read
  void close(LinkId link) override { process_.close(link); }

 protected:
  Process& process_;
};

class PacketLevelCoordinatorWorld final : public World<CoordinatorWorld> {
 public:
  using World::World;
  void warn(std::string /*text*/) override {}
};

class PacketLevelServerWorld final : public World<ServerWorld> {
 public:
  using World::World;
  void sum(Sum sum) override { process_.sum(sum); }
};

class PacketLevelWorkerWorld final : public World<WorkerWorld> {
 public:
  PacketLevelWorkerWorld(Process& process, Owner& owner, std::uint32_t rank)
      : World(process), owner_(owner), rank_(rank) {}

  void sum(Sum sum) override { process_.sum(sum); }
  void sending(std::uint64_t /*handle*/) override {}
  void finish(std::uint64_t /*handle*/, Status status) override { owner_.finished(rank_, status); }
  std::byte* allocate_output(std::uint64_t /*handle*/, const std::vector<std::uint64_t>& /*block_bytes*/) override {
    return nullptr;
  }
  void connect_server(std::uint32_t /*server*/, std::uint32_t /*attempt*/) override {}  // none is lost here
  void connect(std::uint32_t rank) override { owner_.connect(rank_, rank); }
  void warn(std::string /*text*/) override {}
  void ended() override {}
  std::uint64_t retransmissions(LinkId link) const override { return process_.retransmissions(link); }

 private:
  Owner& owner_;
  std::uint32_t rank_;
};

// The first rank of its node.
std::uint32_t leader_of(std::uint32_t rank, const JobConfig& config) {
  return config.leaders.empty() ? rank : config.leaders[rank];
}

std::uint32_t nodes_in(const JobConfig& config) {
  std::uint32_t nodes = 0;
  for (std::uint32_t rank = 0; rank < config.size(); ++rank) {
    nodes += leader_of(rank, config) == rank ? 1 : 0;
  }
  return nodes;
}

struct WorkerHost {
  Process* process = nullptr;
  std::uint32_t group = 0;  // of those at the same place in their nodes; 0: of all
  std::unique_ptr<WorkerWorld> world;
  std::unique_ptr<BufferPool> pool;
  std::unique_ptr<Worker> worker;
  std::uint32_t rounds = 0;  // done
  std::uint32_t open = 0;    // operations of this round that are not done
};

struct ServerHost {
  Process* process = nullptr;
  std::unique_ptr<ServerWorld> world;
  std::unique_ptr<BufferPool> pool;
  std::unique_ptr<Server> server;
};

class ForeignFlow final : public Sink {
 public:
  void arrived(std::uint64_t end) override { bytes_ = end; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
};

class Run final : public Owner {
 public:
  explicit Run(const Setup& setup);

  Report carry_out();

 private:
  void make_workers();
  HostId host_of(std::uint32_t rank) const;
  // A node's ranks, if it has several, are in a group each.
  void make_group(std::uint32_t rank);
  void make_servers();
  void make_coordinator();
  void start_foreign();
  void submit(std::uint32_t rank);
  void finished(std::uint32_t rank, const Status& status) override;
  void connect(std::uint32_t from, std::uint32_t to) override;
  std::uint64_t foreign_bytes() const;

  const Setup setup_;
  Timeline timeline_;
  Fabric fabric_;
  Random random_;
  Processes processes_;
  // What all ranks average and where all results go: nobody reads or writes it.
  std::unique_ptr<std::byte[]> scratch_;
  std::deque<WorkerHost> workers_;
  std::deque<ServerHost> servers_;
  std::unique_ptr<CoordinatorWorld> coordinator_world_;
  std::unique_ptr<Coordinator> coordinator_;
  std::deque<ForeignFlow> foreign_;

  std::vector<Time> begun_;  // by round: the first submission
  std::vector<Time> done_;   // by round: the last completion
  std::uint32_t waiting_;    // ranks that are not done with all rounds
  std::uint64_t foreign_before_ = 0;
};

Run::Run(const Setup& setup)
    : setup_(setup),
      fabric_(timeline_, setup_.fabric),
      random_(setup_.seed),
      processes_(fabric_, setup_.costs, random_),
      scratch_(new std::byte[setup_.bytes]),
      begun_(setup_.rounds, never),
      done_(setup_.rounds, 0),
      waiting_(setup_.config.size()) {
  make_workers();
  make_coordinator();
  make_servers();
}

void Run::make_workers() {
  for (std::uint32_t rank = 0; rank < setup_.config.size(); ++rank) {
    WorkerHost& host = workers_.emplace_back();
    host.process = &processes_.add(host_of(rank), "rank " + std::to_string(rank));
    host.world = std::make_unique<PacketLevelWorkerWorld>(*host.process, *this, rank);
    host.pool = std::make_unique<BufferPool>(kept_bytes);
    host.worker = std::make_unique<Worker>(setup_.config, rank, *host.world, *host.pool);
    host.process->set_machine(host.worker.get());
    make_group(rank);
  }
}

HostId Run::host_of(std::uint32_t rank) const {
  HostId host = 0;
  for (std::uint32_t other = 0; other < leader_of(rank, setup_.config); ++other) {
    host += leader_of(other, setup_.config) == other ? 1 : 0;
  }
  return host;
}

void Run::make_group(std::uint32_t rank) {
  if (setup_.config.leaders.empty()) {
    return;
  }
  const std::uint32_t place = rank - leader_of(rank, setup_.config);
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t other = 0; other < setup_.config.size(); ++other) {
    if (other - leader_of(other, setup_.config) == place) {
      ranks.push_back(other);
    }
  }
  workers_[rank].group = workers_[rank].worker->make_group(std::move(ranks), "place");
}

void Run::make_coordinator() {
  Process& process = processes_.add(0, "the coordinator");
  coordinator_world_ = std::make_unique<PacketLevelCoordinatorWorld>(process);
  coordinator_ = std::make_unique<Coordinator>(setup_.config, *coordinator_world_);
  process.set_machine(coordinator_.get());
  for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
    const auto [near, far] = processes_.join(*workers_[rank].process, process);
    workers_[rank].worker->attach_coordinator(near);
    coordinator_->attach_worker(far, rank);
  }
}

void Run::make_servers() {
  HostId next_host = nodes_in(setup_.config);
  for (std::uint32_t index = 0; index < setup_.config.servers(); ++index) {
    const std::int32_t rank = setup_.config.server_ranks[index];
    if (rank >= 0 && setup_.config.weights[index] == 0) {
      continue;
    }
    ServerHost& host = servers_.emplace_back();
    host.process = &processes_.add(rank < 0 ? next_host++ : host_of(static_cast<std::uint32_t>(rank)),
                                   "server " + std::to_string(index));
    host.world = std::make_unique<PacketLevelServerWorld>(*host.process);
    host.pool = std::make_unique<BufferPool>(kept_bytes);
    host.server = std::make_unique<Server>(setup_.config, index, *host.world, *host.pool);
    host.process->set_machine(host.server.get());
    for (std::uint32_t worker = 0; worker < workers_.size(); ++worker) {
      const auto [near, far] = processes_.join(*workers_[worker].process, *host.process);
      workers_[worker].worker->attach_server(near, index);
      host.server->attach_worker(far, worker);
    }
  }
}

void Run::start_foreign() {
  for (const Foreign& foreign : setup_.foreign) {
    ForeignFlow& sink = foreign_.emplace_back();
    fabric_.add_flow(foreign.from, foreign.to, sink).send_endlessly(foreign.window);
  }
}

Report Run::carry_out() {
  start_foreign();
  for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
    workers_[rank].process->do_at(setup_.start + random_.between(0, setup_.spread), [this, rank] { submit(rank); });
  }
  while (waiting_ > 0 && processes_.failure().empty() && timeline_.step()) {
    if (timeline_.now() > setup_.longest) {
      processes_.fail("the run does not end: " + std::to_string(waiting_) + " ranks wait");
    }
  }
  if (waiting_ > 0) {
    processes_.fail("nothing happens any more, and " + std::to_string(waiting_) + " ranks wait");
  }
  Report report;
  report.failure = processes_.failure();
  report.counts = fabric_.counts();
  report.events = timeline_.events();
  if (report.failure.empty()) {
    report.time = done_.back() - begun_.front();
    report.foreign_bytes = foreign_bytes() - foreign_before_;
    for (std::uint32_t round = 0; round < setup_.rounds; ++round) {
      report.rounds.push_back(done_[round] - begun_[round]);
    }
  }
  return report;
}

void Run::submit(std::uint32_t rank) {
  WorkerHost& host = workers_[rank];
  if (begun_[host.rounds] == never) {
    begun_[host.rounds] = timeline_.now();
    foreign_before_ = host.rounds == 0 ? foreign_bytes() : foreign_before_;
  }
  const std::uint64_t bytes = setup_.bytes / (setup_.config.size() / nodes_in(setup_.config)) /
                              size_of(DType::float32) * size_of(DType::float32);
  host.open = setup_.together;
  for (std::uint32_t i = 0; i < setup_.together; ++i) {
    Submission submission;
    submission.handle = std::uint64_t{host.rounds} * setup_.together + i + 1;
    submission.group = host.group;
    submission.collective = Collective::all_reduce;
    submission.op = Operator::mean;
    submission.dtype = DType::float32;
    submission.shape = {static_cast<std::int64_t>(bytes / size_of(DType::float32))};
    submission.input = submission.output = scratch_.get();
    submission.input_bytes = submission.output_bytes = bytes;
    submission.timeout = patient;
    host.worker->submit(std::move(submission));
  }
}

void Run::finished(std::uint32_t rank, const Status& status) {
  if (!status.ok()) {
    processes_.fail("rank " + std::to_string(rank) + " hears: " + status.message);
    return;
  }
  WorkerHost& host = workers_[rank];
  if (--host.open > 0) {
    return;
  }
  done_[host.rounds] = timeline_.now();
  ++host.rounds;
  if (host.rounds == setup_.rounds) {
    --waiting_;
  } else {
    host.process->do_later([this, rank] { submit(rank); });
  }
}

void Run::connect(std::uint32_t from, std::uint32_t to) {
  const std::pair<LinkId, LinkId> ends = processes_.join(*workers_[from].process, *workers_[to].process);
  workers_[from].process->do_later([this, from, to, ends] { workers_[from].worker->attach_peer(ends.first, to); });
  workers_[to].process->do_later([this, from, to, ends] { workers_[to].worker->attach_peer(ends.second, from); });
}

std::uint64_t Run::foreign_bytes() const {
  std::uint64_t bytes = 0;
  for (const ForeignFlow& flow : foreign_) {
    bytes += flow.bytes();
  }
  return bytes;
}

}  // namespace

Setup even_setup(std::uint32_t workers, std::uint32_t servers, const HostSettings& host, std::uint32_t segment,
                 std::uint32_t credit) {
  Setup setup;
  setup.config = empty_plan({workers, servers, 1}).config;
  setup.config.segment = segment;
  setup.config.credit = credit;
  setup.config.small = std::min<std::uint32_t>(segment, 16 * 1024);
  setup.config.eager = credit;
  setup.fabric.hosts.assign(workers + servers, host);
  return setup;
}

void put_ranks_on_nodes(Setup& setup, std::uint32_t ranks) {
  JobConfig& config = setup.config;
  const std::uint32_t nodes = config.size();
  constexpr auto unit = static_cast<std::uint32_t>(limits::shard_alignment);
  config.rank_segment = std::max(unit, config.segment / ranks / unit * unit);
  config.rank_credit = std::max(config.rank_segment, config.credit / ranks);
  config.hosts.clear();
  for (std::uint32_t rank = 0; rank < nodes * ranks; ++rank) {
    config.hosts.push_back("host" + std::to_string(rank / ranks));
    config.leaders.push_back(rank / ranks * ranks);
  }
  for (std::int32_t& rank : config.server_ranks) {
    rank = rank < 0 ? rank : rank * static_cast<std::int32_t>(ranks);
  }
}

void add_foreign_everywhere(Setup& setup, std::uint32_t window) {
  const auto hosts = static_cast<HostId>(setup.fabric.hosts.size());
  for (HostId host = 0; host < hosts; ++host) {
    setup.foreign.push_back({host, (host + 1) % hosts, window});
  }
}

Report run(const Setup& setup) {
  const std::size_t dedicated =
      static_cast<std::size_t>(std::count(setup.config.server_ranks.begin(), setup.config.server_ranks.end(), -1));
  Report report;
  report.failure = problem_with(setup.config);
  if (report.failure.empty() && setup.fabric.hosts.size() != nodes_in(setup.config) + dedicated) {
    report.failure = "there must be a host for each node and each dedicated server: " +
                     std::to_string(nodes_in(setup.config) + dedicated) + ", not " +
                     std::to_string(setup.fabric.hosts.size());
  }
  return report.failure.empty() ? Run(setup).carry_out() : report;
}

double stream_rate(double rate) { return rate * most_payload / (most_payload + packet_headers); }

double bound(const Setup& setup, std::uint64_t bytes) {
  const double n = nodes_in(setup.config);
  const double k = std::min(static_cast<double>(setup.fabric.hosts.size()) - n, n);
  const double in_turn = static_cast<double>(bytes) / stream_rate(setup.fabric.hosts.front().rate);
  return 2 * n * (n - 1) / (n * n + k * n - 2 * k) * in_turn;
}

}  // namespace shoal::sim::packet_level
