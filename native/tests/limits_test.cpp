// What tables may take of the memory of a rank and of a server, and what is said beyond that. Each test plays the other
// side itself; what local groups do is in the last one.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "drivers/tcp/budget.h"
#include "protocol/keys.h"
#include "protocol/server/server.h"
#include "protocol/worker/operation.h"
#include "protocol/worker/worker.h"
#include "shm_ranks.h"
#include "worlds.h"

namespace {

using namespace shoal;
using wire::Type;

// What was sent, by link.
template <class Of>
struct Recorder : Of {
  void send(LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte>, Token) override {
    sent[link].push_back({header, std::move(owned)});
  }
  void detach(Token) override {}
  void close(LinkId) override {}
  void sum(Sum) override {}

  std::size_t count(LinkId link, Type type) const {
    const auto found = sent.find(link);
    return found == sent.end()
               ? 0
               : static_cast<std::size_t>(std::count_if(found->second.begin(), found->second.end(),
                                                        [type](const auto& one) { return one.first.type == type; }));
  }
  Status last_failure(LinkId link) const {
    wire::Failure failure;
    CHECK(sent.at(link).back().first.type == Type::fail);
    CHECK(wire::decode(sent.at(link).back().second, failure).ok());
    return failure.status;
  }

  std::map<LinkId, std::vector<std::pair<wire::Header, Bytes>>> sent;
};

struct RankWorld final : Recorder<IdleWorkerWorld> {
  void finish(std::uint64_t handle, Status status) override { finished.emplace(handle, std::move(status)); }

  std::map<std::uint64_t, Status> finished;
};

JobConfig config_of(std::uint32_t servers, const JobConfig::Tables& tables) {
  JobConfig config;
  config.hosts = {"a", "b"};
  config.server_ranks.assign(servers, -1);
  config.weights.assign(servers, 1);
  for (std::uint32_t server = 0; server < servers; ++server) {
    config.server_names.push_back("server " + std::to_string(server));
  }
  config.segment = config.credit = 4096;
  config.small = 64;
  config.tables = tables;
  CHECK_EQ(problem_with(config), "");
  return config;
}

// Rank 0 of two. The link to a server has the server's number.
struct OneRank {
  explicit OneRank(const JobConfig::Tables& tables, std::uint32_t servers = 1)
      : config(config_of(servers, tables)), worker(config, 0, world, pool) {
    for (std::uint32_t server = 0; server < servers; ++server) {
      worker.attach_server(server, server);
    }
  }

  // Its handle.
  std::uint64_t submit(const std::string& name, std::uint32_t group = 0, std::string failure = "") {
    Submission submission;
    submission.handle = ++last;
    submission.collective = Collective::all_reduce;
    submission.group = group;
    submission.name = name;
    submission.op = Operator::sum;
    submission.dtype = DType::uint8;
    submission.shape = {static_cast<std::int64_t>(array.size())};
    submission.input = submission.output = array.data();
    submission.input_bytes = submission.output_bytes = array.size();
    submission.timeout = second;
    submission.failure = std::move(failure);
    record = worker::record_bytes(submission, config.servers());
    worker.submit(std::move(submission));
    return last;
  }
  bool is_open(std::uint64_t handle) const { return !world.finished.contains(handle); }
  const Status& status(std::uint64_t handle) const { return world.finished.at(handle); }

  const JobConfig config;
  RankWorld world;
  BufferPool pool{0};
  Worker worker;
  std::vector<std::byte> array{1000};
  std::uint64_t last = 0;
  std::size_t record = 0;  // of the last one
};

TEST(what_is_open_beyond_its_memory_fails_and_is_told_to_the_home_and_when_some_ends_there_is_room_again) {
  OneRank rank({.open = 20'000});
  std::uint64_t handle = rank.submit("x");
  while (rank.is_open(handle)) {
    handle = rank.submit("x");
  }
  const std::uint64_t taken = handle - 1;
  CHECK(taken * rank.record >= 20'000 && (taken - 1) * rank.record < 20'000);
  CHECK(rank.status(handle).code == Code::limit);
  CHECK_EQ(rank.status(handle).message,
           "the operations that are open take all the memory that they may on rank 0 (a), 20000 bytes (open_bytes): " +
               std::to_string(taken) + " are open; wait for some of them");
  CHECK_EQ(rank.world.count(0, Type::open), handle);
  // Those that fail may take as much again; what goes beyond is not told any more.
  for (std::uint64_t i = 0; i < 3 * taken; ++i) {
    CHECK(!rank.is_open(rank.submit("x")));
  }
  CHECK(rank.world.count(0, Type::open) <= 2 * taken + 2);
  // The home says how one ends that had been told.
  for (std::uint64_t number = 1; number <= 2 * taken; ++number) {
    const Status why = Status::error(Code::aborted, "over");
    CHECK(frame(rank.worker, 0, {.type = Type::fail, .operation = number}, wire::encode(wire::Failure{why})).ok());
  }
  CHECK(rank.is_open(rank.submit("x")));
}

TEST(names_beyond_their_memory_fail_and_those_that_were_used_do_not) {
  OneRank rank({.names = 64 * 10});
  for (int name = 0; name < 10; ++name) {
    CHECK(rank.is_open(rank.submit("name " + std::to_string(name))));
  }
  const std::uint64_t beyond = rank.submit("another");
  CHECK(rank.status(beyond).code == Code::limit);
  CHECK(rank.status(beyond).message.find("640 bytes (names_bytes): 10 names were used") != std::string::npos);
  CHECK(rank.is_open(rank.submit("name 3")));
}

TEST(groups_beyond_their_memory_fail_and_take_none) {
  OneRank rank({.groups = 4096});
  std::uint32_t group = 0;
  std::uint64_t handle = 0;
  do {
    group = rank.worker.make_group({0, 1}, "group");
    handle = rank.submit("x", group);
  } while (rank.is_open(handle));
  CHECK(group > 10 && group < 40);
  CHECK(rank.status(handle).code == Code::limit);
  CHECK(rank.status(handle).message.find("4096 bytes (groups_bytes)") != std::string::npos);
  CHECK(rank.is_open(rank.submit("x", group - 1)));
}

TEST(a_server_without_room_that_is_not_the_home_has_the_home_asked) {
  OneRank rank({}, 2);
  const std::uint64_t handle = rank.submit("x");
  const Hash128 key = operation_key(world_group_id(2), "x", 0);
  const LinkId home = home_of(key, rank.config);
  const Bytes full = wire::encode(wire::Failure{Status::error(Code::limit, "no group")});
  CHECK(frame(rank.worker, 1 - home, {.type = Type::fail, .operation = 1}, full).ok());
  CHECK(rank.is_open(handle));
  CHECK_EQ(rank.world.last_failure(home).message, "no group");
  CHECK(frame(rank.worker, home, {.type = Type::fail, .operation = 1}, full).ok());
  CHECK_EQ(rank.status(handle).message, "allreduce no group");
}

TEST(what_a_server_cannot_complete_ends_on_its_rank_alone_if_its_home_has_forgotten_it) {
  OneRank rank({}, 2);
  const std::uint64_t handle = rank.submit("x");
  const LinkId home = home_of(operation_key(world_group_id(2), "x", 0), rank.config);
  const Bytes left = wire::encode(wire::Failure{Status::error(Code::peer_left, "'x' needs rank 1", 1)});
  CHECK(frame(rank.worker, 1 - home, {.type = Type::fail, .operation = 1}, left).ok());
  CHECK_EQ(rank.world.last_failure(home).message, "'x' needs rank 1");
  rank.worker.on_time(2 * second - 1);
  CHECK(rank.is_open(handle));
  rank.worker.on_time(2 * second);
  CHECK(rank.status(handle).code == Code::peer_left);
  CHECK_EQ(rank.status(handle).rank, 1);
  CHECK_EQ(rank.status(handle).message.rfind("allreduce 'x' needs rank 1; its home ", 0), 0U);
}

struct ServerRecorder final : Recorder<ServerWorld> {};

// Server `index` of a job of two ranks and two servers. The link of a rank has the rank's number.
struct OneServer {
  explicit OneServer(std::size_t tables, std::uint32_t index = 0)
      : config(config_of(2, {.server = tables})), server(config, index, world, pool) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      server.attach_worker(rank, rank);
    }
  }

  // The next operation whose home is, or is not, this server.
  wire::Opening next(bool home, std::uint32_t index) {
    wire::Opening opening;
    opening.collective = Collective::all_reduce;
    opening.op = Operator::sum;
    opening.dtype = DType::uint8;
    opening.name = "x";
    opening.bytes = 4096;
    opening.shape = {4096};
    opening.group = world_group_id(2);
    do {
      opening.occurrence = occurrence++;
      opening.key = operation_key(opening.group, opening.name, opening.occurrence);
    } while ((home_of(opening.key, config) == index) != home);
    return opening;
  }
  Status open(std::uint32_t rank, std::uint64_t number, const wire::Opening& opening) {
    return frame(server, rank, {.type = Type::open, .operation = number}, wire::encode(opening));
  }

  const JobConfig config;
  ServerRecorder world;
  BufferPool pool{0};
  Server server;
  std::uint32_t occurrence = 0;
};

TEST(a_home_without_room_fails_new_operations_on_all_members_and_goes_on_with_those_that_are_open) {
  OneServer job(20'000);
  std::vector<wire::Opening> openings;
  while (job.world.count(0, Type::fail) == 0) {
    openings.push_back(job.next(true, 0));
    CHECK(job.open(0, openings.size(), openings.back()).ok());
  }
  CHECK(openings.size() > 5);
  const Status why = job.world.last_failure(0);
  CHECK(why.code == Code::limit);
  CHECK(why.message.find("'x': what the job has open takes all the memory that it may at server 0, 20000 bytes "
                         "(tables_bytes)") == 0);
  // The other member hears the same of the last, and nothing bad of the first.
  CHECK(job.open(1, 1, openings.back()).ok());
  CHECK_EQ(job.world.last_failure(1).message, why.message);
  CHECK(job.open(1, 2, openings.front()).ok());
  CHECK_EQ(job.world.count(1, Type::fail), 1U);
  CHECK_EQ(job.world.count(1, Type::admit), 1U);
  // Who goes on for ever is cut off.
  Status status;
  std::uint64_t number = openings.size();
  while (status.ok()) {
    status = job.open(0, ++number, job.next(true, 0));
  }
  CHECK(status.code == Code::limit);
  CHECK(job.server.table_bytes() < 2 * 20'000 + 2'000);
}

TEST(another_server_without_room_asks_for_it_and_admits_nothing_of_that) {
  OneServer job(20'000, 1);
  wire::Opening opening;
  std::uint64_t number = 0;
  while (job.world.count(0, Type::fail) == 0) {
    opening = job.next(false, 1);
    CHECK(job.open(0, ++number, opening).ok());
  }
  CHECK(job.world.last_failure(0).code == Code::limit);
  CHECK(job.open(1, 1, opening).ok());
  CHECK_EQ(job.world.count(1, Type::admit), 0U);
  // Both are told by the home, and drop it.
  const std::size_t before = job.server.operations();
  for (const auto& [rank, of_rank] : {std::pair<std::uint32_t, std::uint64_t>{0, number}, {1, 1}}) {
    CHECK(frame(job.server, rank, {.type = Type::drop, .operation = of_rank}, {}).ok());
  }
  CHECK_EQ(job.server.operations(), before - 1);
}

TEST(what_is_open_when_a_servers_limit_is_lowered_below_it_becomes_complete_and_what_is_new_fails) {
  OneServer job(200'000);
  std::vector<wire::Opening> openings;
  while (job.server.table_bytes() < 190'000) {
    openings.push_back(job.next(true, 0));
    CHECK(job.open(0, openings.size(), openings.back()).ok());
  }
  job.server.limit(20'000, 10'000);
  job.server.limit(20'000, 10'000);
  const wire::Opening fresh = job.next(true, 0);
  CHECK(job.open(0, openings.size() + 1, fresh).ok());
  CHECK(job.world.last_failure(0).code == Code::limit);
  CHECK(job.world.last_failure(0).message.find("its share of --memory") != std::string::npos);
  CHECK(job.open(1, openings.size() + 1, fresh).ok());
  CHECK(job.world.last_failure(1).code == Code::limit);
  const std::vector<std::uint32_t> ranks{0, 1};
  const wire::GroupMembers group{group_id(ranks, "g", 1), ranks};
  CHECK(frame(job.server, 0, {.type = Type::group}, wire::encode(group)).ok());
  for (std::size_t number = 1; number <= openings.size(); ++number) {
    CHECK(job.open(1, number, openings[number - 1]).ok());
  }
  CHECK_EQ(job.world.count(1, Type::fail), 1U);
  CHECK_EQ(job.world.count(1, Type::admit), openings.size());
  // Once it has gone, the limit holds as ever.
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    for (std::size_t number = 1; number <= openings.size() + 1; ++number) {
      CHECK(frame(job.server, rank, {.type = Type::drop, .operation = number}, {}).ok());
    }
  }
  CHECK_EQ(job.server.operations(), 0U);
  Status status;
  for (std::uint64_t number = 1000; status.ok(); ++number) {
    status = job.open(0, number, job.next(true, 0));
  }
  CHECK(status.code == Code::limit);
  CHECK(job.server.table_bytes() < 2 * 20'000 + 2'000);
}

TEST(an_operation_has_room_for_the_openings_of_all_its_members_from_the_beginning) {
  OneServer job(20'000);
  std::vector<wire::Opening> openings;
  while (job.world.count(0, Type::fail) == 0) {
    openings.push_back(job.next(true, 0));
    openings.back().name = std::string(limits::name_bytes, 'x');
    CHECK(job.open(0, openings.size(), openings.back()).ok());
  }
  const std::size_t before = job.server.table_bytes();
  for (std::size_t number = 1; number < openings.size(); ++number) {
    CHECK(job.open(1, number, openings[number - 1]).ok());
  }
  CHECK_EQ(job.world.count(1, Type::admit), openings.size() - 1);
  CHECK_EQ(job.server.table_bytes(), before);
}

TEST(what_was_open_at_a_lost_server_has_room_at_those_that_are_left) {
  OneServer job(20'000);
  const Bytes epoch = wire::encode(wire::Epoch{{1, 0}, ""});
  CHECK(frame(job.server, 0, {.type = Type::epoch, .epoch = 1}, epoch).ok());
  std::uint64_t number = 0;
  while (job.server.table_bytes() < 3 * 20'000) {
    CHECK(frame(job.server, 0, {.type = Type::open, .epoch = 1, .operation = ++number}, wire::encode(job.next(true, 0)))
              .ok());
  }
  CHECK_EQ(job.world.count(0, Type::fail), 0U);
}

TEST(what_a_server_knows_of_an_operation_is_forgotten_with_it) {
  OneServer job(1'000'000);
  const std::size_t before = job.server.table_bytes();
  for (std::uint64_t number = 1; number <= 10; ++number) {
    CHECK(job.open(0, number, job.next(true, 0)).ok());
    CHECK(job.server.table_bytes() > before);
    CHECK(frame(job.server, 0, {.type = Type::drop, .operation = number}, {}).ok());
    CHECK(frame(job.server, 1, {.type = Type::leave}, {}).ok() || number > 1);
  }
  CHECK_EQ(job.server.operations(), 0U);
  CHECK_EQ(job.server.table_bytes(), before);
}

TEST(groups_for_which_a_server_has_no_room_are_refused_and_known_ones_are_not) {
  OneServer job(64 * 1024);
  const std::vector<std::uint32_t> ranks{0, 1};
  const auto announce = [&](std::uint32_t rank, std::uint64_t made) {
    const wire::GroupMembers group{group_id(ranks, "g", made), ranks};
    return frame(job.server, rank, {.type = Type::group}, wire::encode(group));
  };
  std::uint64_t made = 1;
  while (announce(0, made).ok()) {
    ++made;
  }
  CHECK(made > 500);
  CHECK(announce(1, 1).ok());
  CHECK(announce(1, made).code == Code::limit);
  CHECK(job.server.table_bytes() < 2 * 64 * 1024 + 1024);
}

TEST(a_server_that_may_have_less_takes_credit_back_and_grants_it_again) {
  OneServer job(1'000'000);
  const auto window = [&](std::uint32_t credit) {
    CHECK(frame(job.server, 0, {.type = Type::window, .credit = credit}, {}).ok());
  };
  const auto granted = [&] {
    std::uint64_t sum = 0;
    for (const auto& [header, payload] : job.world.sent[1]) {
      sum += header.type == Type::grant ? header.credit : 0;
    }
    return sum;
  };
  job.server.limit(1'000'000, 10'000);
  window(16'384);
  CHECK_EQ(granted(), 10'000U - 4096U);
  job.server.limit(1'000'000, 20'000);
  CHECK_EQ(granted(), 16'384U - 4096U);
  // Never less than at first, whatever it may have.
  job.server.limit(1'000'000, 1);
  window(8192);
  CHECK_EQ(granted(), 16'384U - 4096U);
}

// --- A server's memory, shared among jobs ---

TEST(jobs_share_a_servers_memory_evenly_and_one_that_needs_more_than_is_left_is_told) {
  JobConfig config = config_of(1, {});
  const std::size_t needed = tcp::Budget::needed(config);
  tcp::Budget budget(3 * needed + needed / 2);
  CHECK_EQ(budget.reserve("a", 0, config), "");
  CHECK_EQ(budget.reserve("a", 0, config), "");  // its second rank
  const auto of_first = budget.share_of("a", 0, config);
  const std::uint32_t alone = of_first->credit.load();
  const std::size_t tables_alone = of_first->tables.load();
  CHECK_EQ(budget.reserve("b", 0, config), "");
  const auto of_second = budget.share_of("b", 0, config);
  CHECK(of_first->credit.load() < alone && of_first->tables.load() < tables_alone);
  CHECK_EQ(of_first->credit.load(), of_second->credit.load());
  CHECK(of_first->credit.load() >= config.credit);
  CHECK_EQ(budget.reserve("c", 0, config), "");
  const std::string told = budget.reserve("d", 0, config);
  CHECK(told.find("server 0 has no memory for this job: jobs may take ") == 0);
  CHECK(told.find("3 of them have ") != std::string::npos);
  // What one has beyond what was reserved for it counts; when it goes, the others have more.
  budget.release("c");
  of_second->used.store(2 * needed);
  CHECK(!budget.reserve("d", 0, config).empty());
  budget.release("b", 0);
  CHECK_EQ(budget.reserve("d", 0, config), "");
  budget.release("d", 0);
  CHECK_EQ(of_first->credit.load(), alone);
  CHECK_EQ(of_first->tables.load(), tables_alone);
}

TEST(what_a_job_has_beyond_its_share_is_not_shared_among_others_until_it_is_given_back) {
  const JobConfig config = config_of(1, {});
  const std::size_t needed = tcp::Budget::needed(config);
  tcp::Budget budget(12 * needed);
  CHECK_EQ(budget.reserve("a", 0, config), "");
  const auto of_first = budget.share_of("a", 0, config);
  of_first->used.store(10 * needed);
  CHECK_EQ(budget.reserve("b", 0, config), "");
  const auto of_second = budget.share_of("b", 0, config);
  const std::size_t beside = of_second->tables.load();
  CHECK_EQ(of_first->excess_until.load(), 6 * needed);
  CHECK_EQ(of_second->excess_until.load(), 0U);
  of_first->used.store(needed);
  budget.divide_anew();
  CHECK_EQ(of_first->excess_until.load(), 0U);
  CHECK_EQ(of_second->tables.load(), of_first->tables.load());
  // Half of the ten that were left, and not of the one.
  CHECK_EQ(of_second->tables.load() - beside, (10 * needed / 2 / 2 - needed / 2 / 2) / 2);
}

TEST(however_many_jobs_there_are_each_has_room_for_an_operation_for_every_parameter_of_a_large_model) {
  const JobConfig config = config_of(1, {});
  tcp::Budget budget(64 * tcp::Budget::needed(config));
  std::size_t jobs = 0;
  while (budget.reserve("job " + std::to_string(jobs), 0, config).empty()) {
    ++jobs;
  }
  CHECK_EQ(jobs, 64U);
  OneServer job(budget.share_of("job 0", 0, config)->tables.load());
  for (std::uint64_t number = 1; number <= 2500; ++number) {
    CHECK(job.open(0, number, job.next(true, 0)).ok());
  }
  CHECK_EQ(job.world.count(0, Type::fail), 0U);
}

TEST(where_other_servers_are_lost_the_one_that_is_left_has_what_its_windows_then_take) {
  JobConfig config = config_of(2, {});
  config.weights = {1, 8};
  config.credit = 1 << 24;
  tcp::Budget budget(tcp::Budget::needed(config));
  CHECK_EQ(budget.reserve("a", 0, config), "");
  const auto share = budget.share_of("a", 0, config);
  JobConfig alone = config;
  alone.weights = {1, 0};
  const JobConfig::Window window = alone.window_of(0);
  CHECK(window.credit > config.window_of(0).credit);
  CHECK(share->bytes.load() > 4 * std::size_t{window.credit} * config.size());
  CHECK(!budget.reserve("b", 0, config).empty());
}

// A job's server, whose memory is shared with others. `bytes` were in buffers until a moment ago.
struct SharedServer : OneServer {
  SharedServer(tcp::Budget& budget, const std::string& job, std::size_t bytes)
      : OneServer(1'000'000), use(budget.share_of(job, 0, config_of(1, {})), server, buffers) {
    std::vector<Buffer> taken;
    while (buffers.taken_bytes() < bytes) {
      taken.push_back(buffers.take(4096));
    }
  }

  BufferPool buffers{std::size_t{1} << 30U};
  tcp::MemoryUse use;
};

TEST(freed_buffers_of_all_jobs_are_kept_within_a_servers_memory) {
  const std::size_t needed = tcp::Budget::needed(config_of(1, {}));
  tcp::Budget budget(3 * needed);
  SharedServer first(budget, "a", 4 * needed);
  CHECK(!first.use.keep_to_share());
  const std::size_t alone = first.buffers.kept_bytes();
  CHECK(alone > 2 * needed && alone <= 3 * needed);
  SharedServer second(budget, "b", 4 * needed);
  CHECK(!second.use.keep_to_share() && !first.use.keep_to_share());
  CHECK_EQ(first.buffers.kept_bytes(), second.buffers.kept_bytes());
  CHECK(first.buffers.kept_bytes() + second.buffers.kept_bytes() <= 3 * needed);
  // Whatever size comes next.
  const Buffer large = first.buffers.take(needed / 2);
  CHECK(first.buffers.kept_bytes() + first.buffers.taken_bytes() <= 3 * needed / 2);
}

TEST(two_machines_of_one_server_have_one_share_and_what_both_have_is_added_up) {
  const std::size_t needed = tcp::Budget::needed(config_of(1, {}));
  tcp::Budget budget(3 * needed);
  const auto share = budget.share_of("a", 0, config_of(1, {}));
  SharedServer after(budget, "a", 4 * needed);
  {
    SharedServer before(budget, "a", 4 * needed);
    const Buffer old = before.buffers.take(needed);
    const Buffer fresh = after.buffers.take(needed / 2);
    for (int rounds = 0; rounds < 2; ++rounds) {
      CHECK(!before.use.keep_to_share() && !after.use.keep_to_share());
    }
    CHECK_EQ(share->used.load(), before.buffers.taken_bytes() + after.buffers.taken_bytes() +
                                     before.server.table_bytes() + after.server.table_bytes());
    CHECK(share->used.load() > needed + needed / 2);
    CHECK_EQ(share->kept.load(), before.buffers.kept_bytes() + after.buffers.kept_bytes());
    CHECK(share->used.load() + share->kept.load() <= share->bytes.load());
  }
  CHECK(!after.use.keep_to_share());
  CHECK_EQ(share->used.load(), after.server.table_bytes());
}

TEST(memory_of_a_server_that_was_given_back_too_early_is_reserved_again_when_it_is_used) {
  const JobConfig config = config_of(1, {});
  tcp::Budget budget(tcp::Budget::needed(config));
  CHECK_EQ(budget.reserve("a", 0, config), "");
  budget.release("a");
  CHECK(budget.share_of("a", 0, config) == budget.share_of("a", 0, config));
  CHECK(!budget.reserve("b", 0, config).empty());
  budget.release("a", 0);
  CHECK_EQ(budget.reserve("b", 0, config), "");
}

// --- Rooms ---

using shm_ranks::Rank;

TEST(ranks_that_share_memory_have_the_same_limits) {
  const auto memory = std::make_shared<shm::Memory>(shm_ranks::small_shape(2));
  std::atomic<std::size_t> called{0};
  JobConfig::Tables tables;
  tables.open = 50'000;
  tables.names = 64 * 30;
  Rank first(memory, 0, 0, tables);
  Rank second(memory, 1);
  std::vector<float> values(10, 1.0F);
  std::vector<std::uint64_t> handles;
  do {
    first.at_next_call([&called] { ++called; });
    handles.push_back(first.submit("x", values));
    // The group takes it in a thread of its own.
    while (called < handles.size() && !first.done(handles.back())) {
      std::this_thread::yield();
    }
  } while (!first.done(handles.back()));
  CHECK(first.status(handles.back()).code == Code::limit);
  CHECK(first.status(handles.back()).message.find("50000 bytes (open_bytes)") != std::string::npos);
  CHECK(handles.size() > 10);
  std::vector<float> theirs(10, 2.0F);
  for (std::size_t i = 0; i + 1 < handles.size(); ++i) {
    CHECK(second.wait(second.submit("x", theirs)).ok());
  }
  const Status told = second.wait(second.submit("x", theirs));
  CHECK(told.code == Code::failed_on_rank);
  CHECK(told.message.find("50000 bytes (open_bytes)") != std::string::npos);
  for (std::size_t i = 0; i + 1 < handles.size(); ++i) {
    CHECK(first.wait(handles[i]).ok());
  }
  // There is group again, but not for more names.
  for (int name = 1; name < 30; ++name) {
    const std::string other = "name " + std::to_string(name);
    const std::uint64_t handle = first.submit(other, values);
    CHECK(second.wait(second.submit(other, theirs)).ok() && first.wait(handle).ok());
  }
  CHECK(first.wait(first.submit("another", values)).message.find("(names_bytes)") != std::string::npos);
}

}  // namespace

RUN_TESTS()
