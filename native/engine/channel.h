// One thread of an engine: a loop, and the machines of the lanes that this channel serves. Every rank and every server
// has the same channels. The machines of one, on all of them, are a job by itself: they share nothing with those of
// another. docs/decisions/channels.md.
//
// The first channel carries out what is not divided, hears what ranks wait for, and knows who has joined.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "engine/machines.h"
#include "engine/transport.h"
#include "protocol/job.h"
#include "protocol/worker/worker.h"

namespace shoal::engine {

class Router;
struct Event;

// What has a channel, and hears of it. Called by the channel's thread.
class ChannelUser {
 public:
  virtual ~ChannelUser() = default;
  virtual Router& router() = 0;
  virtual void tell(Event event) = 0;
  // Something that a person should read. The channels may all have to say it.
  virtual void warn(std::uint32_t channel, std::string text) = 0;
  virtual WorkerWorld::Waiting waiting() = 0;
  // Every rank has left this channel or is lost there.
  virtual void ended(std::uint32_t channel) = 0;
};

class Channel {
 public:
  // `config`, of the whole job, and the user must outlive it. Throws std::invalid_argument for a configuration that
  // cannot be worked with.
  Channel(std::uint32_t number, std::uint32_t rank, const JobConfig& config, ChannelUser& user);
  ~Channel();

  std::uint32_t number() const { return number_; }
  Loop& loop() { return loop_; }
  const Loop& loop() const { return loop_; }
  // Its servers have the indices that they have in this channel (JobConfig::index_in_channel).
  Machines& machines() { return *machines_; }
  const Machines& machines() const { return *machines_; }
  Worker& worker() { return machines_->worker(); }
  const Worker& worker() const { return machines_->worker(); }

  // What its thread last noted of its machines; may be read by any thread.
  void note();
  bool left() const { return left_; }
  bool serves() const { return serves_; }
  bool has_losses() const { return has_losses_; }
  // True the first time: the job has ended in this channel. By its thread.
  bool has_to_tell_end() { return !std::exchange(has_told_end_, true); }
  std::uint64_t buffer_bytes() const { return buffer_bytes_.load(std::memory_order_relaxed); }

 private:
  class World;
  class DecidingWorld;

  const std::uint32_t number_;
  const JobConfig config_;  // of this channel
  Loop loop_;
  const std::unique_ptr<World> world_;
  const std::unique_ptr<DecidingWorld> deciding_world_;
  const std::unique_ptr<Machines> machines_;
  std::atomic<bool> left_{false};
  std::atomic<bool> serves_{true};
  std::atomic<bool> has_losses_{false};
  std::atomic<std::uint64_t> buffer_bytes_{0};
  bool has_told_end_ = false;
};

}  // namespace shoal::engine
