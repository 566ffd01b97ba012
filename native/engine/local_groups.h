// The local groups of one rank (protocol/local): its machine's, for groups of all ranks of the job, and one for each
// group of some ranks of the machine, in memory of its own (drivers/shm/areas.h). Operations of other groups are the
// worker's.
//
// Promises:
//   * All members of a group have a local group for it, or none has.
//   * Local groups share nothing: what flows in one waits for no other, and what ends one ends no other.
//   * A rank leaves its machine's group last, and makes no other after that: who has left it calls nothing anywhere.
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
  // `node`: the memory of this rank's machine. `user`: who uses all of them.
  LocalGroups(std::shared_ptr<const shm::Memory> node, const JobConfig& config, std::uint32_t rank,
              shm::GroupUser& user);
  ~LocalGroups();

  void start();
  // `make_group_of_nodes`: in the worker, of these first ranks of the nodes; its number. Asked for a group of all ranks
  // of several nodes, on first ranks.
  using MakeGroupOfNodes = std::function<std::uint32_t(std::vector<std::uint32_t> leaders)>;
  void add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                 const MakeGroupOfNodes& make_group_of_nodes);
  // Null: the group's operations are the worker's.
  std::shared_ptr<shm::SharedGroup> of(std::uint32_t group) const;
  shm::SharedGroup& node() { return *node_; }

  // As the local group does (protocol/local/local_group.h) whose operation it is.
  std::map<std::uint64_t, wire::Wait> described(const std::vector<std::uint64_t>& handles) const;
  bool has_called(const wire::Call& call) const;
  local::LocalGroup::Failed fail(const wire::Call& call, const Status& why);

  // Those of whose group something is lost, as `loss_of` says.
  void fail(const std::function<Status(std::uint32_t group)>& loss_of);
  void leave();
  // GroupUser::left() was called for this one. Whether all have been left.
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
  std::vector<std::shared_ptr<shm::SharedGroup>> subgroups_;             // guarded by mutex_
  std::size_t not_left_ = 0;     // guarded by mutex_: what the machine's group waits for
  bool started_ = false;         // guarded by mutex_
  bool leaving_ = false;         // guarded by mutex_
  bool told_of_memory_ = false;  // that there is none for a group; of the thread that adds groups
};

}  // namespace shoal::engine
