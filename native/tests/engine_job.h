// Whole jobs in one process for tests: the product's machines on the TCP driver, every rank an engine with a thread of
// its own.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "drivers/shm/memory.h"
#include "drivers/tcp/dedicated.h"
#include "engine/engine.h"
#include "tests/check.h"

namespace shoal::tests {

using engine::Engine;
using engine::Operation;
using tcp::DedicatedServer;
using tcp::Socket;

inline constexpr std::chrono::seconds longest_operation{60};

inline std::pair<int, int> connection() {
  int ends[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  return {ends[0], ends[1]};
}

// A job of `size` ranks; servers on the first `colocated` ranks, then `dedicated` ones. `leaders`: of workers that
// share memory.
struct Job {
  Job(std::uint32_t ranks, std::uint32_t colocated, std::uint32_t dedicated, std::uint32_t segment = 4096,
      std::vector<std::uint32_t> leaders = {}) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      config.hosts.push_back("host" + std::to_string(rank));
    }
    config.leaders = std::move(leaders);
    for (std::uint32_t index = 0; index < colocated + dedicated; ++index) {
      config.server_names.push_back("server" + std::to_string(index));
      config.server_ranks.push_back(index < colocated ? static_cast<std::int32_t>(index) : -1);
      config.weights.push_back(1);
    }
    config.segment = segment;
    config.credit = 4 * segment;
    config.eager = 64 * 1024;
    config.small = 1024;
    config.least_shard = 4096;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      engines.push_back(std::make_unique<Engine>(rank, config));
    }
    connect();
    share_memory();
    for (const auto& engine : engines) {
      engine->start();
    }
    // What Python does for a rank: connects workers when they ask for it.
    connector = std::thread([this] { serve_events(); });
  }

  ~Job() {
    stopping = true;
    connector.join();
    for (const auto& engine : engines) {
      engine->close();
    }
  }

  void connect() {
    for (std::uint32_t rank = 1; rank < size(); ++rank) {
      const auto [worker, coordinator] = connection();
      engines[0]->attach_control(rank, Socket(coordinator));
      engines[rank]->attach_coordinator(Socket(worker));
    }
    for (std::uint32_t index = 0; index < config.servers(); ++index) {
      const std::int32_t holder = config.server_ranks[index];
      for (std::uint32_t rank = 0; rank < size(); ++rank) {
        if (static_cast<std::int32_t>(rank) == holder) {
          continue;
        }
        const auto [worker, server] = connection();
        engines[rank]->attach_server(index, Socket(worker));
        if (holder >= 0) {
          engines[static_cast<std::size_t>(holder)]->attach_worker(index, rank, Socket(server));
        } else {
          servers.attach("job", index, 0, rank, server, config);
        }
      }
    }
  }

  void share_memory() {
    std::map<std::uint32_t, std::shared_ptr<shm::Memory>> workers;
    for (std::uint32_t rank = 0; rank < config.leaders.size(); ++rank) {
      auto& memory = workers[config.leaders[rank]];
      if (memory == nullptr) {
        const auto here = static_cast<std::uint32_t>(config.node_of(rank).size());
        memory = std::make_shared<shm::Memory>(shm::shape_for(here, here == size()));
      }
      engines[rank]->share_memory(memory);
    }
  }

  void serve_events() {
    while (!stopping) {
      for (std::uint32_t rank = 0; rank < size(); ++rank) {
        while (const auto event = engines[rank]->next_event(std::chrono::milliseconds(1))) {
          if (event->kind == "connect") {
            const auto [near, far] = connection();
            engines[rank]->attach_peer(static_cast<std::uint32_t>(event->index), Socket(near));
            engines[static_cast<std::size_t>(event->index)]->attach_peer(rank, Socket(far));
          } else if (event->kind == "ended") {
            ++ended;
          }
        }
      }
    }
  }

  std::uint32_t size() const { return config.size(); }

  JobConfig config;
  DedicatedServer servers{2};
  std::vector<std::unique_ptr<Engine>> engines;
  std::atomic<bool> stopping{false};
  std::atomic<std::uint32_t> ended{0};
  std::thread connector;
};

inline Submission of(Collective collective, std::string name, std::vector<float>& input, std::vector<float>* output) {
  Submission submission;
  submission.collective = collective;
  submission.name = std::move(name);
  submission.op =
      collective == Collective::all_reduce || collective == Collective::reduce_scatter ? Operator::sum : Operator::none;
  submission.dtype = DType::float32;
  submission.shape = {static_cast<std::int64_t>(input.size())};
  submission.input = reinterpret_cast<const std::byte*>(input.data());
  submission.input_bytes = input.size() * sizeof(float);
  if (output != nullptr) {
    submission.output = reinterpret_cast<std::byte*>(output->data());
    submission.output_bytes = output->size() * sizeof(float);
  }
  submission.timeout = 30 * second;
  return submission;
}

inline const Status& outcome(const std::shared_ptr<Operation>& operation) {
  CHECK(operation->wait(longest_operation));
  return operation->status();
}

inline void expect_well(const std::shared_ptr<Operation>& operation) { CHECK_EQ(outcome(operation).message, ""); }

inline std::vector<float> ramp(std::size_t count, std::uint32_t rank) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), static_cast<float>(rank));
  return values;
}

}  // namespace shoal::tests
