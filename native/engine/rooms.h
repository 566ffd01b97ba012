// The rooms of one rank (drivers/shm/room.h): its node's, for groups of all ranks of the job, and one for each group of
// some ranks of the node, in memory of its own (drivers/shm/areas.h). Operations of other groups are the network's.
//
// Promises:
//   * All members of a group have a room for it, or none has.
//   * Rooms share nothing: what flows in one waits for no other, and what ends one ends no other.
//   * A rank leaves its node's room last, and makes no other after that: who has left it calls nothing anywhere.
//
// Groups are added by one thread at a time; otherwise every method may be called by any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "drivers/shm/memory.h"
#include "drivers/shm/room.h"
#include "engine/operation.h"
#include "protocol/job.h"

namespace shoal::engine {

class Rooms {
 public:
  // One of them, as those who wait for its operations have it.
  class Seat;

  // `node`: the memory of this rank's node. `world`: what all of them ask; empty() when all have been left.
  Rooms(std::shared_ptr<const shm::Memory> node, const JobConfig& config, std::uint32_t rank, shm::RoomWorld& world);
  ~Rooms();

  void start();
  // `make_group_of_nodes`: in the network, of these first ranks of the nodes; its number. Asked for a group of all
  // ranks of several nodes, on first ranks.
  using MakeGroupOfNodes = std::function<std::uint32_t(std::vector<std::uint32_t> leaders)>;
  void add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                 const MakeGroupOfNodes& make_group_of_nodes);
  // Null: the group's operations are the network's.
  std::shared_ptr<Seat> of(std::uint32_t group) const;
  shm::Room& node();

  // As the room does (drivers/shm/room.h) whose operation it is.
  std::map<std::uint64_t, wire::Wait> described(const std::vector<std::uint64_t>& handles) const;
  bool has_called(const wire::Call& call) const;
  shm::Room::Failed fail(const wire::Call& call, const Status& why);

  // Those of whose group something is lost, as `loss_of` says.
  void fail(const std::function<Status(std::uint32_t group)>& loss_of);
  void leave();
  void close();

 private:
  std::optional<shm::Uplink> uplink_of(const std::vector<std::uint32_t>& ranks,
                                       const MakeGroupOfNodes& make_group_of_nodes) const;
  std::shared_ptr<Seat> seat_for(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks);
  std::vector<std::shared_ptr<Seat>> of_groups() const;
  void one_is_left();

  const JobConfig config_;
  const std::uint32_t rank_;
  const std::vector<std::uint32_t> node_ranks_;
  const std::shared_ptr<const shm::Memory> memory_;
  shm::RoomWorld& world_;
  const std::shared_ptr<Seat> node_;

  mutable std::shared_mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<Seat>> by_group_;  // guarded by mutex_
  std::vector<std::shared_ptr<Seat>> of_groups_;             // guarded by mutex_
  std::size_t not_left_ = 0;                                 // guarded by mutex_: what the node's room waits for
  bool started_ = false;                                     // guarded by mutex_
  bool leaving_ = false;                                     // guarded by mutex_
  bool told_of_memory_ = false;  // that there is none for a group; of the thread that adds groups
};

class Rooms::Seat final : public Helper, private shm::RoomWorld {
 public:
  // `group`: for which it was made; of the node's, that of all ranks.
  Seat(Rooms& rooms, std::uint32_t group, std::shared_ptr<const shm::Memory> memory, std::vector<std::uint32_t> members,
       bool has_uplink)
      : rooms_(rooms),
        group_(group),
        room_(std::move(memory), rooms.config_, std::move(members), rooms.rank_, has_uplink, *this) {}

  std::uint32_t group() const { return group_; }
  shm::Room& room() { return room_; }
  void help(const Operation& operation, std::chrono::nanoseconds longest) override;

 private:
  void sending(std::uint64_t handle) override { rooms_.world_.sending(handle); }
  void finish(std::uint64_t handle, Status status) override { rooms_.world_.finish(handle, std::move(status)); }
  std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) override {
    return rooms_.world_.allocate_output(handle, block_bytes);
  }
  void warn(std::string text) override { rooms_.world_.warn(std::move(text)); }
  void hand_over(Submission submission) override { rooms_.world_.hand_over(std::move(submission)); }
  void send_up(Submission submission) override { rooms_.world_.send_up(std::move(submission)); }
  void contributed(std::uint64_t handle, Range range) override { rooms_.world_.contributed(handle, range); }
  void fail_job(const Status& why) override { rooms_.world_.fail_job(why); }
  void empty() override { this == rooms_.node_.get() ? rooms_.world_.empty() : rooms_.one_is_left(); }

  Rooms& rooms_;
  const std::uint32_t group_;
  shm::Room room_;
};

}  // namespace shoal::engine
