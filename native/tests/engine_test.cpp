// Whole jobs in one process (engine_job.h): what operations give, and how jobs end.

#include "engine/engine.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "drivers/tcp/dedicated.h"
#include "tests/engine_job.h"
#include "tests/tcp_sides.h"

namespace {

using namespace shoal;
using namespace shoal::tests;

TEST(all_reduce_with_servers_in_every_node) {
  Job job(4, 4, 0);
  all_reduce_everywhere(job, 50'000, 20);
}

TEST(all_reduce_with_dedicated_servers_on_several_threads) {
  Job job(3, 0, 3);
  all_reduce_everywhere(job, 50'000, 20);
}

TEST(all_reduce_with_both_kinds_of_servers_and_many_small_operations) {
  Job job(3, 2, 2);
  all_reduce_everywhere(job, 10, 400);
}

TEST(all_reduce_among_nodes_of_several_ranks) {
  Job job(5, 3, 1, 4096, {0, 0, 2, 2, 2});
  all_reduce_everywhere(job, 300'000, 5);
  all_reduce_everywhere(job, 10, 200);
}

TEST(all_reduce_among_a_node_of_two_ranks_and_one_of_one) {
  Job job(3, 0, 2, 4096, {0, 1, 0});
  all_reduce_everywhere(job, 300'000, 5);
}

TEST(all_reduce_of_one_rank_with_itself) {
  Job job(1, 1, 0);
  all_reduce_everywhere(job, 100'000, 3);
}

TEST(broadcast_and_reduce_scatter) {
  Job job(3, 3, 0);
  std::vector<std::vector<float>> inputs;
  std::vector<std::vector<float>> chunks;
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    inputs.push_back(ramp(30'000, rank));
    chunks.emplace_back(10'000);
  }
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    operations.push_back(
        job.engines[rank]->submit(of(Collective::reduce_scatter, "scatter", inputs[rank], &chunks[rank])));
  }
  for (const auto& operation : operations) {
    expect_well(operation);
  }
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    for (std::size_t i = 0; i < 10'000; ++i) {
      CHECK_EQ(chunks[rank][i], 3 * static_cast<float>(rank * 10'000 + i) + 3);
    }
  }
  operations.clear();
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    Submission submission = of(Collective::broadcast, "spread", inputs[rank], &inputs[rank]);
    submission.root = 2;
    operations.push_back(job.engines[rank]->submit(std::move(submission)));
  }
  for (const auto& operation : operations) {
    expect_well(operation);
  }
  CHECK(inputs[0] == ramp(30'000, 2));
  CHECK(inputs[1] == ramp(30'000, 2));
}

// As a program with several threads does, and the longest that a sanitizer gets to see of engines and servers at work.
void reduce_and_spread(Job& job, std::uint32_t rank, int thread, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const std::string name = std::to_string(thread) + "." + std::to_string(round % 7);
    const std::size_t count = 1 + static_cast<std::size_t>(round) * 997 % 30'000;
    const auto root = static_cast<std::uint32_t>(round) % job.size();
    std::vector<float> sums = ramp(count, rank);
    std::vector<float> news = ramp(count, rank);
    Submission spread = of(Collective::broadcast, "news " + name, news, &news);
    spread.root = root;
    const auto summed = job.engines[rank]->submit(of(Collective::all_reduce, "sum " + name, sums, &sums));
    const auto spread_out = job.engines[rank]->submit(std::move(spread));
    expect_well(spread_out);
    expect_well(summed);
    CHECK(news == ramp(count, root));
    CHECK_EQ(sums.front(), 6.0F);
    CHECK_EQ(sums.back(), 4 * static_cast<float>(count - 1) + 6);
  }
}

void call_from_two_threads_of_each_rank(Job& job) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < job.size(); ++rank) {
    for (const int thread : {0, 1}) {
      threads.emplace_back([&job, rank, thread] { reduce_and_spread(job, rank, thread, 200); });
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(four_ranks_with_two_threads_each_call_operations_at_once) {
  Job job(4, 2, 2);
  call_from_two_threads_of_each_rank(job);
}

TEST(the_same_on_two_nodes_of_two_ranks) {
  Job job(4, 0, 2, 4096, {0, 0, 2, 2});
  call_from_two_threads_of_each_rank(job);
}

TEST(all_gather_gives_memory_of_the_size_that_was_found) {
  Job job(3, 3, 0);
  for (const std::size_t base : {3, 20'000}) {
    std::vector<std::vector<float>> inputs;
    std::vector<std::shared_ptr<Operation>> operations;
    std::vector<float> expected;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      inputs.push_back(ramp(base * rank, rank));
      expected.insert(expected.end(), inputs.back().begin(), inputs.back().end());
    }
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      operations.push_back(job.engines[rank]->submit(
          of(Collective::all_gather, "gather " + std::to_string(base), inputs[rank], nullptr)));
    }
    for (const auto& operation : operations) {
      expect_well(operation);
      CHECK(operation->blocks() == (std::vector<std::uint64_t>{0, base * 4, base * 8}));
      CHECK_EQ(operation->output_bytes(), expected.size() * sizeof(float));
      CHECK(std::equal(expected.begin(), expected.end(), reinterpret_cast<const float*>(operation->output())));
    }
  }
}

// Rank 0 calls last. What a rank hears of the others' calls is never earlier, and results are not either.
void moments_of(Job& job, Collective collective, std::size_t count, bool leads_only, bool has_first_result) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<float>> arrays(job.size(), ramp(count, 0));
  std::vector<std::shared_ptr<Operation>> operations(job.size());
  const auto submit = [&](std::uint32_t rank) {
    std::vector<float>* const output = collective == Collective::all_reduce ? &arrays[rank] : nullptr;
    operations[rank] = job.engines[rank]->submit(of(collective, "watched", arrays[rank], output));
  };
  const Clock::time_point before = Clock::now();
  for (std::uint32_t rank = job.size() - 1; rank > 0; --rank) {
    submit(rank);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const Clock::time_point last_call = Clock::now();
  submit(0);
  for (std::uint32_t rank = 0; rank < job.size(); ++rank) {
    expect_well(operations[rank]);
    const engine::Course& course = *operations[rank]->course();
    CHECK(course.sent >= before);
    CHECK(course.sent <= operations[rank]->finished_at());
    if (leads_only && rank % 2 != 0) {
      continue;
    }
    CHECK(course.all_called >= last_call);
    CHECK(course.all_called <= operations[rank]->finished_at());
    if (has_first_result) {
      CHECK(course.first_result >= course.all_called);
      CHECK(course.first_result <= operations[rank]->finished_at());
    }
  }
}

void record(Job& job, bool on) {
  for (const auto& engine : job.engines) {
    engine->record(on);
  }
}

TEST(operations_note_when_all_had_called_and_when_results_came) {
  Job apart(3, 1, 1);
  record(apart, true);
  for (const std::size_t count : {10U, 30'000U}) {
    moments_of(apart, Collective::all_reduce, count, false, true);
    moments_of(apart, Collective::all_gather, count, false, count > 10);
  }
  Job one_node(2, 2, 0, 4096, {0, 0});
  record(one_node, true);
  moments_of(one_node, Collective::all_reduce, 10, false, false);
  moments_of(one_node, Collective::all_reduce, 30'000, false, false);
  moments_of(one_node, Collective::all_gather, 1000, false, false);
  // The leaders hear of the other nodes.
  Job nodes(4, 0, 1, 4096, {0, 0, 2, 2});
  record(nodes, true);
  moments_of(nodes, Collective::all_reduce, 10, true, true);
  moments_of(nodes, Collective::all_reduce, 30'000, true, true);
  moments_of(nodes, Collective::all_gather, 10, true, true);
  moments_of(nodes, Collective::all_gather, 1000, true, true);
}

// Those of the core: a call that failed on one rank, and that nobody records, counts too.
TEST(operations_note_the_numbers_of_their_calls_which_are_equal_on_all_ranks) {
  for (const bool is_one_node : {false, true}) {
    Job job(2, 2, 0, 4096, is_one_node ? std::vector<std::uint32_t>{0, 0} : std::vector<std::uint32_t>());
    std::vector<float> arrays[2] = {ramp(10, 0), ramp(10, 1)};
    const auto submit = [&](std::uint32_t rank, const std::string& failure) {
      Submission submission = of(Collective::all_reduce, "x", arrays[rank], &arrays[rank]);
      submission.failure = failure;
      return job.engines[rank]->submit(std::move(submission));
    };
    const std::shared_ptr<Operation> failed = submit(0, "");
    static_cast<void>(submit(1, "no such array"));
    CHECK(failed->wait(longest_operation) && !failed->status().ok());
    record(job, true);
    for (std::uint32_t number = 1; number < 3; ++number) {
      for (const std::shared_ptr<Operation>& operation : {submit(0, ""), submit(1, "")}) {
        expect_well(operation);
        const engine::Course& course = *operation->course();
        CHECK(course.has_ended() && course.code() == Code::ok && course.ended_at() == operation->finished_at());
        CHECK_EQ(course.occurrence().value(), number);
      }
    }
  }
}

TEST(operations_note_nothing_while_nobody_records) {
  Job job(2, 0, 1);
  record(job, true);
  record(job, false);
  std::vector<float> arrays[2] = {ramp(10, 0), ramp(10, 1)};
  std::shared_ptr<Operation> operations[2];
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    operations[rank] = job.engines[rank]->submit(of(Collective::all_reduce, "x", arrays[rank], &arrays[rank]));
  }
  for (const auto& operation : operations) {
    expect_well(operation);
    CHECK(operation->course() == nullptr);
  }
}

TEST(ranks_that_disagree_all_hear_of_it_and_go_on) {
  Job job(3, 1, 1);
  std::vector<std::vector<float>> arrays;
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    arrays.push_back(ramp(rank == 1 ? 5'000 : 6'000, rank));
  }
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    operations.push_back(job.engines[rank]->submit(of(Collective::all_reduce, "odd", arrays[rank], &arrays[rank])));
  }
  for (const auto& operation : operations) {
    CHECK(outcome(operation).code == Code::mismatch);
  }
  all_reduce_everywhere(job, 1000, 1);
}

TEST(a_rank_that_closes_is_lost_to_the_others_and_its_own_operations_end) {
  Job job(3, 2, 1);
  std::vector<float> array = ramp(10'000, 0);
  std::vector<float> other = ramp(10'000, 0);
  const auto waiting = job.engines[0]->submit(of(Collective::all_reduce, "x", array, &array));
  const auto own = job.engines[2]->submit(of(Collective::all_reduce, "y", other, &other));
  job.engines[2]->close();
  CHECK(outcome(own).code == Code::cancelled);
  CHECK(outcome(waiting).code == Code::peer_lost);
  CHECK_EQ(waiting->status().rank, 2);
  bool refused = false;
  try {
    job.engines[2]->submit(of(Collective::all_reduce, "z", other, &other));
  } catch (const std::runtime_error&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(what_was_lost_first_is_why_everything_fails_after_it) {
  Job job(3, 0, 2);
  std::vector<float> array = ramp(10'000, 0);
  const auto waiting = job.engines[2]->submit(of(Collective::all_reduce, "x", array, &array));
  job.engines[1]->close();
  CHECK(outcome(waiting).code == Code::peer_lost);
  // Rank 0 ends because of that, and the job with it.
  job.engines[0]->abort("rank 1 is lost");
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (job.ended == 0) {
    CHECK(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto later = job.engines[2]->submit(of(Collective::all_reduce, "y", array, &array));
  CHECK(outcome(later).code == Code::peer_lost);
  CHECK_EQ(later->status().rank, 1);
  job.engines[2]->close();  // as a session does when its job has ended
  const auto last = job.engines[2]->submit(of(Collective::all_reduce, "z", array, &array));
  CHECK(outcome(last).code == Code::peer_lost);
  CHECK_EQ(last->status().rank, 1);
  CHECK(job.engines[2]->has_losses());
}

TEST(an_abort_reaches_the_others_with_its_reason) {
  Job job(3, 3, 0);
  std::vector<float> array = ramp(10'000, 0);
  const auto waiting = job.engines[1]->submit(of(Collective::all_reduce, "x", array, &array));
  job.engines[2]->abort("ran out of luck");
  CHECK(!outcome(waiting).ok());
  CHECK(waiting->status().message.find("ran out of luck") != std::string::npos);
}

TEST(goodbyes_end_the_job_for_all) {
  Job job(3, 2, 1);
  all_reduce_everywhere(job, 5'000, 3);
  for (const auto& engine : job.engines) {
    engine->leave();
  }
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (job.ended < job.size() || !job.engines[2]->left()) {
    CHECK(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const auto& engine : job.engines) {
    engine->close();
  }
  // The dedicated server forgets a job whose links are gone.
  while (!job.servers.jobs().empty()) {
    CHECK(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_EQ(job.servers.statistics().at("links"), 0u);
  CHECK_EQ(job.servers.statistics().at("buffer_bytes"), 0u);
}

TEST(a_dedicated_server_refuses_links_that_do_not_fit) {
  JobConfig config;
  config.hosts = {"a", "b"};
  config.server_names = {"s"};
  config.server_ranks = {-1};
  config.weights = {1};
  config.segment = 4096;
  config.credit = 4096;
  config.eager = 4096;
  config.small = 64;
  DedicatedServer server(1);
  std::vector<int> ours;
  const auto attach = [&](std::uint32_t index, std::uint32_t rank, const JobConfig& described,
                          std::uint32_t attempt = 0) {
    const auto [near, far] = connection();
    ours.push_back(near);
    try {
      server.attach("job", index, attempt, rank, far, described);
      return true;
    } catch (const std::invalid_argument&) {
      return false;
    }
  };
  CHECK(attach(0, 0, config));
  CHECK(!attach(0, 0, config));    // twice
  CHECK(attach(0, 0, config, 1));  // since the workers have reached it again
  CHECK(!attach(1, 1, config));    // no such server
  CHECK(!attach(0, 2, config));    // no such rank
  JobConfig other = config;
  other.credit = 8192;
  CHECK(!attach(0, 1, other));
  for (const std::uint32_t seconds : {0U, 60U, 86'401U, 1'000'000'000U}) {
    other = config;
    other.peer_timeout = seconds;
    CHECK(!attach(0, 1, other));
  }
  CHECK(attach(0, 1, config));
  CHECK_EQ(server.jobs().size(), 1u);
  server.end_job("job");
  char byte;
  CHECK_EQ(::recv(ours.front(), &byte, 1, 0), 0);
  CHECK_EQ(::recv(ours.back(), &byte, 1, 0), 0);
  for (const int descriptor : ours) {
    ::close(descriptor);
  }
}

int tcp_option(int socket, int option) {
  int value = 0;
  socklen_t size = sizeof value;
  CHECK_EQ(::getsockopt(socket, IPPROTO_TCP, option, &value, &size), 0);
  return value;
}

JobConfig one_server_for(std::vector<std::string> hosts) {
  JobConfig config;
  config.hosts = std::move(hosts);
  config.server_names = {"s"};
  config.server_ranks = {-1};
  config.weights = {1};
  config.segment = 4096;
  config.credit = 4096;
  return config;
}

TEST(a_dedicated_server_has_the_patience_of_each_job_on_its_links) {
  JobConfig config = one_server_for({"a"});
  DedicatedServer server(1);
  std::map<std::uint32_t, int> links;  // by peer timeout: the server's end
  std::vector<int> ours;
  for (const std::uint32_t seconds : {6U, 60U, 86'400U}) {
    const auto [near, far] = tests::tcp_pair();
    const int of_the_handshake = 10'000;
    CHECK_EQ(::setsockopt(far, IPPROTO_TCP, TCP_USER_TIMEOUT, &of_the_handshake, sizeof of_the_handshake), 0);
    config.peer_timeout = seconds;
    server.attach("job of " + std::to_string(seconds), 0, 0, 0, far, config);
    ours.push_back(near);
    links[seconds] = far;
  }
  while (server.statistics().at("links") < links.size()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const auto& [seconds, link] : links) {
    CHECK_EQ(tcp_option(link, TCP_KEEPIDLE), static_cast<int>(seconds / 3));
    CHECK_EQ(tcp_option(link, TCP_KEEPINTVL), static_cast<int>(seconds / 6));
    CHECK_EQ(tcp_option(link, TCP_KEEPCNT), 4);
    CHECK_EQ(tcp_option(link, TCP_USER_TIMEOUT), 0);
  }
  for (const int descriptor : ours) {
    ::close(descriptor);
  }
}

TEST(a_connection_that_cannot_be_watched_costs_a_dedicated_server_nothing_else) {
  JobConfig config = one_server_for({"a", "b"});
  DedicatedServer server(1);
  const auto [near, far] = tests::tcp_pair();
  server.attach("a job", 0, 0, 1, far, config);
  server.attach("a job", 0, 0, 0, ::open("/dev/null", O_RDWR | O_CLOEXEC), config);
  server.attach("another", 0, 0, 0, ::open("/dev/null", O_RDWR | O_CLOEXEC), config);
  while (server.jobs().size() > 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_EQ(server.statistics().at("links"), 1U);
  // Its place is free again.
  const auto [near_again, far_again] = tests::tcp_pair();
  server.attach("a job", 0, 0, 0, far_again, config);
  while (server.statistics().at("links") < 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::close(near);
  ::close(near_again);
}

TEST(a_forked_child_can_neither_use_nor_harm_the_engine) {
  Job job(2, 2, 0);
  const pid_t child = ::fork();
  if (child == 0) {
    bool refused = false;
    try {
      job.engines[0]->leave();
    } catch (const std::runtime_error&) {
      refused = true;
    }
    job.engines[0]->close();
    job.engines[1].reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  all_reduce_everywhere(job, 10'000, 2);
}

}  // namespace

RUN_TESTS()
