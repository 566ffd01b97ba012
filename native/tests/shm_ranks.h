// Ranks of a node for tests: as threads over one mapping, so that ThreadSanitizer sees them, or each in a process.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "drivers/shm/bells.h"
#include "drivers/shm/memory.h"
#include "drivers/shm/shared_group.h"
#include "protocol/keys.h"
#include "tests/check.h"

namespace shoal::shm_ranks {

using namespace shoal::shm;
using local::Chunks;
using local::MailboxReader;
using local::MailboxWriter;
using local::Record;
using local::RecordKind;

// Few and small slots, so that they are used again and again.
inline Shape small_shape(std::uint32_t ranks) {
  Shape shape;
  shape.ranks = ranks;
  shape.slots = 3;
  shape.slot = 4096;
  return shape;
}

inline JobConfig config_of(std::uint32_t ranks) {
  JobConfig config;
  config.hosts.assign(ranks, "here");
  config.eager = 64 * 1024;
  config.small = 16 * 1024;
  return config;
}

// A job of so many ranks of which the first ones are this node, and the others another.
inline JobConfig config_of(std::uint32_t ranks, std::uint32_t here) {
  JobConfig config = config_of(ranks);
  for (std::uint32_t rank = 0; ranks > here && rank < ranks; ++rank) {
    config.leaders.push_back(rank < here ? 0 : here);
  }
  return config;
}

inline JobConfig with(const JobConfig::Tables& tables, JobConfig config) {
  config.tables = tables;
  return config;
}

// Of the servers above a node.
inline const std::vector<std::uint32_t> weights_above{3, 0, 1};

inline std::vector<std::uint32_t> ranks_until(std::uint32_t count) {
  std::vector<std::uint32_t> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0U);
  return ranks;
}

// For what a test writes and reads by itself.
class RealBells final : public local::Bells {
 public:
  explicit RealBells(const Memory& memory) : memory_(memory) {}
  void ring(std::uint32_t rank, bool always) override { shm::ring(memory_.words(rank), always); }

 private:
  const Memory& memory_;
};

// One rank: its local group, and what became of its handles. `ranks`: of the job, if it has another node too.
class Rank final : public GroupUser {
 public:
  Rank(std::shared_ptr<const Memory> memory, std::uint32_t rank, std::uint32_t ranks = 0,
       const JobConfig::Tables& tables = {})
      : rank_(rank),
        group_(0, memory, with(tables, config_of(std::max(ranks, memory->shape().ranks), memory->shape().ranks)),
               ranks_until(memory->shape().ranks), rank, ranks > memory->shape().ranks, *this) {
    const std::uint32_t here = memory->shape().ranks;
    const std::vector<std::uint32_t> everyone = ranks_until(std::max(ranks, here));
    std::optional<local::Internode> internode;
    if (ranks > here) {
      internode = local::Internode{1, ranks, std::max(here, ranks - here), weights_above, 0, std::vector(ranks, 1U), 2};
      std::fill_n(internode->nodes.begin(), here, 0U);
    }
    group_.add_group(0, world_group_id(static_cast<std::uint32_t>(everyone.size())), everyone, internode);
    group_.start();
  }
  ~Rank() override { group_.close(); }

  void release(std::uint64_t /*handle*/) override {}
  void sending(std::uint64_t) override {
    std::function<void()> next;
    {
      const std::lock_guard lock(mutex_);
      next = std::exchange(on_sending_, nullptr);
    }
    if (next) {
      next();
    }
  }
  void finish(std::uint64_t handle, Status status) override {
    std::function<void()> next;
    {
      const std::lock_guard lock(mutex_);
      CHECK(!finished_.contains(handle));
      finished_[handle] = std::move(status);
      next = std::exchange(on_finish_, nullptr);
    }
    if (next) {
      next();
    }
  }
  std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) override {
    const std::lock_guard lock(mutex_);
    std::uint64_t bytes = 0;
    for (const std::uint64_t block : block_bytes) {
      bytes += block;
    }
    if (!has_memory) {
      return nullptr;
    }
    return outputs_.try_emplace(handle, bytes).first->second.data();
  }
  void hand_over(Submission submission) override {
    if (submission.failure.empty()) {
      finish(submission.handle, Status::error(Code::ok, "handed over"));
    } else if (on_failure) {
      on_failure(submission);
    }
  }
  void warn(std::string) override {}
  void called(std::uint32_t /*group*/, const wire::Opening& /*opening*/) override {}
  void send_up(Submission submission) override {
    if (network) {
      network(std::move(submission));
    }
  }
  void contributed(std::uint64_t handle, Range range) override {
    if (on_contributed) {
      on_contributed(handle, range);
    }
  }
  void fail_job(const Status&) override { has_failed_job = true; }
  void left(SharedGroup&) override { has_left = true; }

  std::uint64_t submit(const std::string& name, std::vector<float>& values, Operator op = Operator::sum,
                       Collective collective = Collective::all_reduce) {
    return submit(name, values, values, op, collective);
  }
  std::uint64_t submit(const std::string& name, std::span<const float> input, std::span<float> output,
                       Operator op = Operator::sum, Collective collective = Collective::all_reduce) {
    Submission submission;
    submission.collective = collective;
    submission.name = name;
    submission.op = op;
    submission.dtype = DType::float32;
    submission.shape = {static_cast<std::int64_t>(input.size())};
    submission.input = reinterpret_cast<const std::byte*>(input.data());
    submission.output = reinterpret_cast<std::byte*>(output.data());
    submission.input_bytes = submission.output_bytes = input.size_bytes();
    return submit(std::move(submission));
  }
  std::uint64_t submit(Submission submission) {
    submission.handle = ++last_;
    submission.timeout = timeout;
    const std::uint64_t handle = submission.handle;
    group_.submit(std::move(submission));
    return handle;
  }
  // What a gather has brought.
  std::vector<float> gathered(std::uint64_t handle) {
    const std::lock_guard lock(mutex_);
    const std::vector<std::byte>& bytes = outputs_.at(handle);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  bool done(std::uint64_t handle) {
    const std::lock_guard lock(mutex_);
    return finished_.contains(handle);
  }
  Status wait(std::uint64_t handle) {
    group_.wait([&] { return done(handle); }, std::chrono::seconds(30));
    return status(handle);
  }
  // Leaves the work to the attendant.
  Status watch(std::uint64_t handle) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!done(handle) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return status(handle);
  }
  Status status(std::uint64_t handle) {
    const std::lock_guard lock(mutex_);
    CHECK(finished_.contains(handle));
    return finished_.at(handle);
  }

  SharedGroup& group() { return group_; }
  std::uint32_t rank() const { return rank_; }

  // What is done when the next call has been written, and when the next operation is finished.
  void at_next_call(std::function<void()> what) {
    const std::lock_guard lock(mutex_);
    on_sending_ = std::move(what);
  }
  void at_next_finish(std::function<void()> what) {
    const std::lock_guard lock(mutex_);
    on_finish_ = std::move(what);
  }

  // What the network does with what is sent up, and as it grows.
  std::function<void(Submission)> network;
  std::function<void(std::uint64_t handle, Range range)> on_contributed;
  // What is said to the other nodes of an operation that has failed here.
  std::function<void(const Submission&)> on_failure;
  std::atomic<bool> has_left{false};
  std::atomic<bool> has_failed_job{false};
  std::atomic<bool> has_memory{true};  // for what gathers bring
  Time timeout = 60 * second;

 private:
  const std::uint32_t rank_;
  std::mutex mutex_;
  std::map<std::uint64_t, Status> finished_;
  std::function<void()> on_sending_;
  std::function<void()> on_finish_;
  std::map<std::uint64_t, std::vector<std::byte>> outputs_;
  std::uint64_t last_ = 0;
  SharedGroup group_;
};

// `in_all`: ranks of the job, if it has another node too.
template <class Work>
void on_ranks(std::uint32_t ranks, const Shape& shape, Work work, std::uint32_t in_all = 0) {
  const auto memory = std::make_shared<Memory>(shape);
  std::vector<std::unique_ptr<Rank>> all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    all.push_back(std::make_unique<Rank>(memory, rank, in_all));
  }
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { work(*all[rank]); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace shoal::shm_ranks
