#include "engine/rooms.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "drivers/shm/areas.h"
#include "protocol/sharding.h"

namespace shoal::engine {

namespace {

std::vector<std::uint32_t> node_of(std::uint32_t rank, const JobConfig& config) {
  if (!config.leaders.empty()) {
    return config.node_of(rank);
  }
  std::vector<std::uint32_t> everyone(config.size());
  std::iota(everyone.begin(), everyone.end(), 0U);
  return everyone;
}

std::shared_ptr<const shm::Memory> checked(std::shared_ptr<const shm::Memory> memory, std::size_t ranks) {
  if (memory->shape().ranks != ranks) {
    throw std::invalid_argument("memory for " + std::to_string(memory->shape().ranks) +
                                " ranks does not fit to a node of " + std::to_string(ranks));
  }
  return memory;
}

}  // namespace

void Rooms::Seat::help(const Operation& operation, std::chrono::nanoseconds longest) {
  room_.wait([&operation] { return operation.done() || !operation.helped(); }, longest);
}

Rooms::Rooms(std::shared_ptr<const shm::Memory> node, const JobConfig& config, std::uint32_t rank,
             shm::RoomWorld& world)
    : config_(config),
      rank_(rank),
      node_ranks_(node_of(rank, config)),
      memory_(checked(std::move(node), node_ranks_.size())),
      world_(world),
      node_(std::make_shared<Seat>(*this, 0, memory_, node_ranks_, node_ranks_.size() < config.size())) {}

Rooms::~Rooms() = default;

void Rooms::start() {
  const std::unique_lock lock(mutex_);
  started_ = true;
  node_->room().start();
  for (const std::shared_ptr<Seat>& seat : of_groups_) {
    seat->room().start();
  }
}

void Rooms::add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                      const MakeGroupOfNodes& make_group_of_nodes) {
  const bool of_all = ranks.size() == config_.size();
  std::shared_ptr<Seat> seat = of_all ? node_ : seat_for(number, id, ranks);
  if (seat == nullptr) {
    return;
  }
  seat->room().add_group(number, id, ranks, of_all ? uplink_of(ranks, make_group_of_nodes) : std::nullopt);
  const std::unique_lock lock(mutex_);
  // Who leaves submits nothing more. That it has left the others see in the node's memory.
  if (leaving_) {
    return;
  }
  if (seat != node_) {
    of_groups_.push_back(seat);
    if (started_) {
      seat->room().start();
    }
  }
  by_group_.emplace(number, std::move(seat));
}

// Nothing where this node is the whole job. In a group of nodes these have the order in which they first come in the
// group of ranks.
std::optional<shm::Uplink> Rooms::uplink_of(const std::vector<std::uint32_t>& ranks,
                                            const MakeGroupOfNodes& make_group_of_nodes) const {
  std::vector<std::uint32_t> leaders;
  std::map<std::uint32_t, std::uint32_t> sizes;
  for (std::uint32_t rank : ranks) {
    const std::uint32_t leader = config_.leaders.empty() ? 0 : config_.leaders[rank];
    if (sizes[leader]++ == 0) {
      leaders.push_back(leader);
    }
  }
  if (leaders.size() == 1) {
    return std::nullopt;
  }
  shm::Uplink uplink;
  uplink.ranks = config_.size();
  for (const auto& [leader, size] : sizes) {
    uplink.largest = std::max(uplink.largest, size);
  }
  uplink.weights = config_.weights;
  uplink.shared_from = shared_from(config_);
  if (sizes.contains(rank_)) {
    uplink.group = make_group_of_nodes(std::move(leaders));
  }
  return uplink;
}

// Null where not all are of this node, or there is no memory.
std::shared_ptr<Rooms::Seat> Rooms::seat_for(std::uint32_t number, const Hash128& id,
                                             const std::vector<std::uint32_t>& ranks) {
  std::vector<std::uint32_t> places;
  for (std::uint32_t rank : ranks) {
    const auto place = std::lower_bound(node_ranks_.begin(), node_ranks_.end(), rank);
    if (place == node_ranks_.end() || *place != rank) {
      return nullptr;
    }
    places.push_back(static_cast<std::uint32_t>(place - node_ranks_.begin()));
  }
  if (places.size() < 2) {
    return nullptr;
  }
  std::shared_ptr<const shm::Memory> memory = shm::memory_for_group(memory_, id, places);
  if (memory == nullptr) {
    if (!std::exchange(told_of_memory_, true)) {
      world_.warn("there is no shared memory left on " + rank_text(rank_, config_) +
                  " for groups of some ranks of this machine: they may take " + bytes_text(memory_->shape().areas) +
                  " together (areas_bytes, at most a quarter of the machine's memory, and a sixteenth of the addresses "
                  "where ulimit -v leaves few); operations of further groups go through the network. Make groups once "
                  "and keep them");
    }
    return nullptr;
  }
  return std::make_shared<Seat>(*this, number, std::move(memory), ranks, false);
}

std::shared_ptr<Rooms::Seat> Rooms::of(std::uint32_t group) const {
  const std::shared_lock lock(mutex_);
  const auto found = by_group_.find(group);
  return found == by_group_.end() ? nullptr : found->second;
}

shm::Room& Rooms::node() { return node_->room(); }

// --- What is waited for ---

std::map<std::uint64_t, wire::Wait> Rooms::described(const std::vector<std::uint64_t>& handles) const {
  std::map<std::uint64_t, wire::Wait> waits = node_->room().described(handles);
  for (const std::shared_ptr<Seat>& seat : of_groups()) {
    waits.merge(seat->room().described(handles));
  }
  return waits;
}

bool Rooms::has_called(const wire::Call& call) const {
  bool has = node_->room().has_called(call);
  for (const std::shared_ptr<Seat>& seat : of_groups()) {
    has = has || seat->room().has_called(call);
  }
  return has;
}

shm::Room::Failed Rooms::fail(const wire::Call& call, const Status& why) {
  shm::Room::Failed failed = node_->room().fail(call, why);
  for (const std::shared_ptr<Seat>& seat : of_groups()) {
    failed = failed.found ? failed : seat->room().fail(call, why);
  }
  return failed;
}

// --- The end of all of them ---

// Not to be called with the lock held: what a room has to say may come back here.
std::vector<std::shared_ptr<Rooms::Seat>> Rooms::of_groups() const {
  const std::shared_lock lock(mutex_);
  return of_groups_;
}

void Rooms::fail(const std::function<Status(std::uint32_t group)>& loss_of) {
  std::vector<std::shared_ptr<Seat>> seats = of_groups();
  seats.push_back(node_);
  for (const std::shared_ptr<Seat>& seat : seats) {
    if (const Status loss = loss_of(seat->group()); !loss.ok()) {
      seat->room().fail_all(loss);
    }
  }
}

void Rooms::leave() {
  {
    const std::unique_lock lock(mutex_);
    if (std::exchange(leaving_, true)) {
      return;
    }
    not_left_ = of_groups_.size() + 1;
  }
  // Nothing is added any more.
  for (const std::shared_ptr<Seat>& seat : of_groups()) {
    seat->room().leave();
  }
  one_is_left();
}

void Rooms::one_is_left() {
  bool all = false;
  {
    const std::unique_lock lock(mutex_);
    all = --not_left_ == 0;
  }
  if (all) {
    node_->room().leave();
  }
}

void Rooms::close() {
  for (const std::shared_ptr<Seat>& seat : of_groups()) {
    seat->room().close();
  }
  node_->room().close();
}

}  // namespace shoal::engine
