#include "engine/local_groups.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "drivers/shm/areas.h"

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

LocalGroups::LocalGroups(std::shared_ptr<const shm::Memory> node, const JobConfig& config, std::uint32_t rank,
                         shm::GroupUser& user)
    : config_(config),
      rank_(rank),
      node_ranks_(node_of(rank, config)),
      memory_(checked(std::move(node), node_ranks_.size())),
      user_(user),
      node_(std::make_shared<shm::SharedGroup>(0, memory_, config_, node_ranks_, rank_,
                                               node_ranks_.size() < config.size(), user)) {}

LocalGroups::~LocalGroups() = default;

void LocalGroups::start() {
  const std::unique_lock lock(mutex_);
  started_ = true;
  node_->start();
  for (const std::shared_ptr<shm::SharedGroup>& group : subgroups_) {
    group->start();
  }
}

void LocalGroups::add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                            const MakeGroupOfNodes& make_group_of_nodes) {
  const bool of_all = ranks.size() == config_.size();
  std::shared_ptr<shm::SharedGroup> group = of_all ? node_ : group_for(number, id, ranks);
  if (group == nullptr) {
    return;
  }
  const std::optional<local::Internode> internode = of_all ? internode_of(ranks, make_group_of_nodes) : std::nullopt;
  group->add_group(number, id, ranks, internode);
  const std::unique_lock lock(mutex_);
  if (internode && rank_ == node_ranks_.front()) {
    leaders_groups_[number] = internode->group;
  }
  // A rank that leaves submits nothing more. The others see in the node's memory that it has left.
  if (leaving_) {
    return;
  }
  if (group != node_) {
    if (started_) {
      group->start();
    }
    subgroups_.push_back(group);
  }
  by_group_.emplace(number, std::move(group));
}

std::optional<local::Internode> LocalGroups::internode_of(const std::vector<std::uint32_t>& ranks,
                                                          const MakeGroupOfNodes& make_group_of_nodes) const {
  std::vector<std::uint32_t> leaders;
  std::optional<local::Internode> internode = local::internode_of(config_, ranks, leaders);
  if (internode && std::find(leaders.begin(), leaders.end(), rank_) != leaders.end()) {
    internode->group = make_group_of_nodes(std::move(leaders));
  }
  return internode;
}

// Null where not all are of this node, or there is no memory.
std::shared_ptr<shm::SharedGroup> LocalGroups::group_for(std::uint32_t number, const Hash128& id,
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
      user_.warn("there is no shared memory left on " + rank_text(rank_, config_) +
                 " for groups of some ranks of this machine: they may take " + bytes_text(memory_->shape().areas) +
                 " together (areas_bytes, at most a quarter of the machine's memory, and a sixteenth of the addresses "
                 "where ulimit -v leaves few); operations of further groups go through the network. Make groups once "
                 "and keep them");
    }
    return nullptr;
  }
  return std::make_shared<shm::SharedGroup>(number, std::move(memory), config_, ranks, rank_, false, user_);
}

std::shared_ptr<shm::SharedGroup> LocalGroups::of(std::uint32_t group) const {
  const std::shared_lock lock(mutex_);
  const auto found = by_group_.find(group);
  return found == by_group_.end() ? nullptr : found->second;
}

std::optional<std::uint32_t> LocalGroups::leaders_group_of(std::uint32_t group) const {
  const std::shared_lock lock(mutex_);
  const auto found = leaders_groups_.find(group);
  return found == leaders_groups_.end() ? std::nullopt : std::optional(found->second);
}

// --- What is waited for ---

std::map<std::uint64_t, wire::Wait> LocalGroups::described(const std::vector<std::uint64_t>& handles) const {
  std::map<std::uint64_t, wire::Wait> waits = node_->described(handles);
  for (const std::shared_ptr<shm::SharedGroup>& group : subgroups()) {
    waits.merge(group->described(handles));
  }
  return waits;
}

bool LocalGroups::has_called(const wire::Call& call) const {
  bool has = node_->has_called(call);
  for (const std::shared_ptr<shm::SharedGroup>& group : subgroups()) {
    has = has || group->has_called(call);
  }
  return has;
}

local::LocalGroup::Failed LocalGroups::fail(const wire::Call& call, const Status& why) {
  local::LocalGroup::Failed failed = node_->fail(call, why);
  for (const std::shared_ptr<shm::SharedGroup>& group : subgroups()) {
    failed = failed.found ? failed : group->fail(call, why);
  }
  return failed;
}

// --- The end of all of them ---

// Not to be called with the lock held: what a group has to say may come back here.
std::vector<std::shared_ptr<shm::SharedGroup>> LocalGroups::subgroups() const {
  const std::shared_lock lock(mutex_);
  return subgroups_;
}

void LocalGroups::fail(const std::function<Status(std::uint32_t group)>& loss_of) {
  std::vector<std::shared_ptr<shm::SharedGroup>> groups = subgroups();
  groups.push_back(node_);
  for (const std::shared_ptr<shm::SharedGroup>& group : groups) {
    if (const Status loss = loss_of(group->number()); !loss.ok()) {
      group->fail_all(loss);
    }
  }
}

void LocalGroups::gone(std::uint32_t rank) {
  for (const std::shared_ptr<shm::SharedGroup>& group : subgroups()) {
    group->gone(rank);
  }
  node_->gone(rank);
}

void LocalGroups::leave() {
  {
    const std::unique_lock lock(mutex_);
    if (std::exchange(leaving_, true)) {
      return;
    }
    not_left_ = subgroups_.size() + 1;
  }
  // Nothing is added any more.
  for (const std::shared_ptr<shm::SharedGroup>& group : subgroups()) {
    group->leave();
  }
  count_left();
}

bool LocalGroups::note_left(const shm::SharedGroup& group) {
  const bool all = &group == node_.get();
  if (!all) {
    count_left();
  }
  return all;
}

void LocalGroups::count_left() {
  bool all = false;
  {
    const std::unique_lock lock(mutex_);
    all = --not_left_ == 0;
  }
  if (all) {
    node_->leave();
  }
}

void LocalGroups::close() {
  for (const std::shared_ptr<shm::SharedGroup>& group : subgroups()) {
    group->close();
  }
  node_->close();
}

}  // namespace shoal::engine
