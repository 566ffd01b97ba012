// The local groups of one rank (protocol/local): its machine's, for groups of all ranks of the job, and one for each
// subgroup, a group of some ranks of the machine, in its own area of the memory (drivers/shm/areas.h). Operations of
// other groups go to the worker.
//
// Promises:
//   * All members of a group have a local group for it, or none has.
//   * Local groups share nothing: none waits for another, and none ends another.
//   * A rank leaves its machine's group last, and joins none after that: a rank that has left it calls nothing
//   anywhere.
//
// Groups are added by one thread at a time; otherwise every method may be called by any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "drivers/shm/memory.h"
#include "drivers/shm/shared_group.h"
#include "protocol/job.h"

namespace shoal::engine {

class LocalGroups {
 public:
  // `node`: the memory of this rank's machine. `user`: the user of all these groups.
  LocalGroups(std::shared_ptr<const shm::Memory> node, const JobConfig& config, std::uint32_t rank,
              shm::GroupUser& user);
  ~LocalGroups();

  void start();
  // Makes a group of these leaders in the worker and returns its number. Called on leaders only, for a group of all
  // ranks of several nodes.
  using MakeGroupOfNodes = std::function<std::uint32_t(std::vector<std::uint32_t> leaders)>;
  void add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                 const MakeGroupOfNodes& make_group_of_nodes);
  // Null: the group's operations go to the worker.
  std::shared_ptr<shm::SharedGroup> of(std::uint32_t group) const;
  shm::SharedGroup& node() { return *node_; }
  // The worker's number of the leaders' group by which this group's all-reduces go on to other nodes. None: they do
  // not, or this rank is no leader.
  std::optional<std::uint32_t> leaders_group_of(std::uint32_t group) const;

  // As protocol/local/local_group.h, by the group whose operation it is.
  std::map<std::uint64_t, wire::Wait> described(const std::vector<std::uint64_t>& handles) const;
  bool has_called(const wire::Call& call) const;
  local::LocalGroup::Failed fail(const wire::Call& call, const Status& why);

  // Fails the groups of which `loss_of` says that something is lost.
  void gone(std::uint32_t rank);
  void fail(const std::function<Status(std::uint32_t group)>& loss_of);
  void leave();
  // GroupUser::left() was called for this group. Returns whether it was the machine's, which is the last.
  bool note_left(const shm::SharedGroup& group);
  void close();

 private:
  std::optional<local::Internode> internode_of(const std::vector<std::uint32_t>& ranks,
                                               const MakeGroupOfNodes& make_group_of_nodes) const;
  std::shared_ptr<shm::SharedGroup> group_for(std::uint32_t number, const Hash128& id,
                                              const std::vector<std::uint32_t>& ranks);
  std::vector<std::shared_ptr<shm::SharedGroup>> subgroups() const;
  void count_left();

  const JobConfig config_;
  const std::uint32_t rank_;
  const std::vector<std::uint32_t> node_ranks_;
  const std::shared_ptr<const shm::Memory> memory_;
  shm::GroupUser& user_;
  const std::shared_ptr<shm::SharedGroup> node_;

  mutable std::shared_mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<shm::SharedGroup>> by_group_;  // guarded by mutex_
  std::map<std::uint32_t, std::uint32_t> leaders_groups_;                // by group, on a leader; guarded by mutex_
  std::vector<std::shared_ptr<shm::SharedGroup>> subgroups_;             // guarded by mutex_
  std::size_t not_left_ = 0;     // guarded by mutex_: how many must be left before the machine's group is
  bool started_ = false;         // guarded by mutex_
  bool leaving_ = false;         // guarded by mutex_
  bool told_of_memory_ = false;  // has warned that a subgroup has no memory; for the thread that adds groups
};

}  // namespace shoal::engine
