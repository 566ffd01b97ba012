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
// share memory. Each server has a lane in each of the `channels`.
struct Job {
  Job(std::uint32_t ranks, std::uint32_t colocated, std::uint32_t dedicated, std::uint32_t segment = 4096,
      std::vector<std::uint32_t> leaders = {}, std::uint32_t channels = 1) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      config.hosts.push_back("host" + std::to_string(rank));
    }
    config.leaders = std::move(leaders);
    for (std::uint32_t index = 0; index < (colocated + dedicated) * channels; ++index) {
      const std::uint32_t server = index / channels;
      config.server_names.push_back("server" + std::to_string(server));
      config.server_ranks.push_back(server < colocated ? static_cast<std::int32_t>(server) : -1);
      config.weights.push_back(1);
    }
    config.lanes = config.channels = channels;
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
    for (std::uint32_t channel = 0; channel < config.channels; ++channel) {
      for (std::uint32_t rank = 1; rank < size(); ++rank) {
        const auto [worker, coordinator] = connection();
        engines[0]->attach_control(channel, rank, Socket(coordinator));
        controls[{channel, rank}] = worker;
        engines[rank]->attach_coordinator(channel, Socket(worker));
      }
    }
    for (std::uint32_t index = 0; index < config.servers(); ++index) {
      const std::int32_t holder = config.server_ranks[index];
      for (std::uint32_t rank = 0; rank < size(); ++rank) {
        if (static_cast<std::int32_t>(rank) == holder) {
          continue;
        }
        const auto [worker, server] = connection();
        lanes[{index, rank}] = worker;
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
  // The ranks' ends of connections, which their engines own: control links by channel and rank, others by server index
  // and rank.
  std::map<std::pair<std::uint32_t, std::uint32_t>, int> controls;
  std::map<std::pair<std::uint32_t, std::uint32_t>, int> lanes;
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

// Every rank sums `rounds` arrays with the others, which begin in another order on every second rank.
inline void all_reduce_everywhere(Job& job, std::size_t count, int rounds) {
  std::vector<std::vector<std::vector<float>>> arrays(job.size());
  std::vector<std::vector<std::shared_ptr<Operation>>> operations(job.size());
  for (std::uint32_t rank = 0; rank < job.size(); ++rank) {
    static_cast<void>(job.engines[rank]->take_finished());
    for (int i = 0; i < rounds; ++i) {
      arrays[rank].push_back(ramp(count + static_cast<std::size_t>(i), rank));
    }
    for (int i = 0; i < rounds; ++i) {
      // Every second rank goes through the names backwards.
      const int which = rank % 2 == 0 ? i : rounds - 1 - i;
      std::vector<float>& array = arrays[rank][static_cast<std::size_t>(which)];
      operations[rank].push_back(
          job.engines[rank]->submit(of(Collective::all_reduce, "array " + std::to_string(which), array, &array)));
    }
  }
  const auto ranks = static_cast<float>(job.size());
  const float offset = ranks * (ranks - 1) / 2;
  for (std::uint32_t rank = 0; rank < job.size(); ++rank) {
    for (const auto& operation : operations[rank]) {
      expect_well(operation);
    }
    for (const std::vector<float>& array : arrays[rank]) {
      for (std::size_t i = 0; i < array.size(); ++i) {
        CHECK_EQ(array[i], ranks * static_cast<float>(i) + offset);
      }
    }
    CHECK_EQ(job.engines[rank]->take_finished().size(), static_cast<std::size_t>(rounds));
  }
}

}  // namespace shoal::tests
