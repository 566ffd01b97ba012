// Threads that run what follows the end of an operation in a framework.
//
// What follows may run any of the framework's code, so it never runs on the engine's threads. It may even wait for
// other operations: while a thread runs something, another one waits for what else is open.
//
// Operations of the ranks of one machine are carried out by whoever waits for them (drivers/shm/shared_group.h). So a
// thread waits for those of each group as a program does that waits in Python. The others wait until they are told.
//
// Every method may be called by any thread. A child made by fork() has none of the threads, and waits for nothing.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/completions.h"
#include "engine/operation.h"

namespace shoal::doors {

class Finishers {
 public:
  // What is to follow; called once.
  using Follow = std::function<void()>;

  Finishers() = default;
  Finishers(const Finishers&) = delete;
  Finishers& operator=(const Finishers&) = delete;

  // Throws std::system_error if there is no thread and the system has none.
  void prepare();
  // After prepare(): `follow` is called when the operation is done. The program may end before.
  void expect(const std::shared_ptr<engine::Operation>& operation, Follow follow);
  // The program ends: what has not begun to follow does not.
  void close();

 private:
  struct Expected {
    std::shared_ptr<engine::Operation> operation;
    Follow follow;
  };

  void serve();
  void start_if_none_waits();
  Follow take(std::uint64_t token);
  void be_told(const std::shared_ptr<engine::Operation>& operation, Follow follow);

  void wait_in_groups();
  void follow_first(std::unique_lock<std::mutex>& lock);
  void wait_in_group(const std::shared_ptr<engine::Operation>& operation, std::unique_lock<std::mutex>& lock);
  void rest(std::unique_lock<std::mutex>& lock);
  void call_one_if_needed();
  void come();
  bool has_any_for_groups() const;
  std::shared_ptr<engine::Operation> next_to_wait_for() const;
  bool any_has_ended(const engine::Operation& of_group);
  void take_ended(const engine::Operation& of_group);

  const std::shared_ptr<engine::Completions> completions_ = std::make_shared<engine::Completions>();
  std::mutex mutex_;
  // All guarded by mutex_.
  std::size_t waiting_ = 0;  // threads that wait to be told
  bool has_any_ = false;
  std::unordered_map<std::uint64_t, Expected> told_;  // by token
  std::uint64_t last_token_ = 0;
  std::list<Expected> local_;  // of groups on one machine
  // A thread waits in the group of each.
  std::vector<std::shared_ptr<engine::Operation>> waited_for_;
  std::list<Expected> ended_;  // to be followed, one at a time
  std::size_t resting_ = 0;    // threads that could
  std::size_t called_ = 0;     // threads that are on their way
  bool closed_ = false;
  std::condition_variable local_came_;
};

}  // namespace shoal::doors
