// The operations of an engine that are submitted and not finished.
//
// Every method may be called by any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "engine/gate_watch.h"
#include "engine/operation.h"
#include "engine/returning.h"

namespace shoal::engine {

class OpenOperations {
 public:
  struct Counts {
    std::uint64_t open;
    std::uint64_t finished;
    std::uint64_t passing;  // of the open ones
  };

  // `gates`: watches those of operations that end before they open. Lives longer.
  explicit OpenOperations(GateWatch& gates) : gates_(gates) {}

  // A new operation, with a handle that no other one of this process has. `passes`: it ends by itself before long.
  // `returning`: its gate is passed when it ends, before anybody hears that.
  // `number`: of the group whose operation the program calls. `course`: notes what it comes to.
  std::shared_ptr<Operation> open(const std::shared_ptr<shm::SharedGroup>& group, bool passes,
                                  std::optional<Returning> returning = {}, std::optional<std::uint32_t> number = {},
                                  std::shared_ptr<Course> course = nullptr);
  // One that is called for other ranks, and what follows its end.
  std::shared_ptr<Operation> open_for_others(const std::shared_ptr<shm::SharedGroup>& group,
                                             Operation::FollowUp follow_up);
  // Throws std::out_of_range if it is not open.
  std::shared_ptr<Operation> at(std::uint64_t handle) const;
  // Null if it is not open any more.
  std::shared_ptr<Operation> find(std::uint64_t handle) const;
  // `notes`: called with the operation's course, if it has one and has not ended.
  template <class Notes>
  void note(std::uint64_t handle, Notes notes) const {
    const std::lock_guard lock(mutex_);
    const auto place = open_.find(handle);
    if (place != open_.end() && place->second->course() != nullptr) {
      notes(*place->second->course());
    }
  }
  // The first call for a handle decides how the operation ended.
  void finish(std::uint64_t handle, Status status);
  void finish_all(const Status& status);
  // Handles that were finished since the last call.
  std::vector<std::uint64_t> take_finished();
  Counts counts() const;
  // How many operations of this group the program has called since it was asked last, and those that are open.
  Called take_called(std::uint32_t number);
  // Handles of open operations. `told_only`: only of those for which tell() was called.
  std::vector<std::uint64_t> handles(bool told_only) const;

 private:
  void note_finished(std::uint64_t handle);  // with the lock held
  void pass(const Returning& returning, bool well);

  GateWatch& gates_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Operation>> open_;  // guarded by mutex_
  std::unordered_map<std::uint64_t, Returning> returning_;              // guarded by mutex_
  std::unordered_set<std::uint64_t> passing_;                           // guarded by mutex_
  std::vector<std::uint64_t> finished_;                                 // guarded by mutex_
  std::uint64_t finished_count_ = 0;                                    // guarded by mutex_
  std::vector<std::uint64_t> called_;                                   // by group; guarded by mutex_
};

}  // namespace shoal::engine
