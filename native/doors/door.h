// The door of this process for frameworks that call operations from C++: the present job's engine, behind Table.
//
// Python opens it for each job, and says which groups there are. A framework's graph outlives jobs, and may be saved.
// So calls name groups by numbers that no other job and no other process has; 0 is all ranks of the job at hand. What
// is right for the job alone in which it was traced names all ranks by such a number, too.
//
// Promises:
//   * Each call ends once, whatever becomes of the job, and nothing that goes wrong is thrown.
//   * No engine is used after forget() has returned.
//   * A child made by fork() begins with no job: its calls fail.
//
// Every function may be called by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/types.h"
#include "doors/table.h"
#include "engine/engine.h"
#include "engine/operation.h"
#include "protocol/submission.h"

namespace shoal::doors {

// What every call of a job has in common.
struct Job {
  engine::Engine* engine = nullptr;  // until forget()
  std::string here;                  // this rank, for messages: "rank 2 (host b)"
  std::int64_t timeout = 0;          // nanoseconds without progress
  Place place;                       // of this rank among all
};

// From now on calls go to this job.
void open(Job job);
// The engine is about to go.
void forget(const engine::Engine* engine);
// This rank, for messages; empty without a job.
std::string here();
// For what graphs know by a number.
std::int64_t fresh_number();
// The door's number for a group of the present job. `group`: the engine's number. `timeout`: as in Job.
std::int64_t add_group(std::uint32_t group, Place place, std::int64_t timeout);

// What was called, and where: text for messages, which is made when there is one.
struct Called {
  Collective collective{};
  std::string name;
  std::shared_ptr<const std::string> here;  // this rank; null: it was in no job

  // "allreduce of 'name' on rank 2 (host b)"
  std::string text() const;
};

// How an operation has ended. `status`: its message is whole: it says operation, name, rank and host. `operation`: null
// if it could not be submitted.
struct Outcome {
  Status status;
  std::shared_ptr<engine::Operation> operation;
  Called called;
};

// Submits for the group; of `submission` group and timeout are set here. `ended` is called once: before call() returns,
// which may wait for short operations (short_waits.h), or on a thread of the finishers (finishers.h). Throws nothing.
void call(std::int64_t group, Submission&& submission, std::function<void(const Outcome&)> ended);

// Memory for arrays, all zero: such that ranks of a machine share, if there is such. Throws std::system_error or
// std::bad_alloc if there is not so much.
std::shared_ptr<std::byte> allocate(std::size_t bytes);

// Who this rank is in the group. Throws std::runtime_error if the group is not of the present job, or this rank is not
// who was expected.
Place place(std::int64_t group, ExpectedPlace expected = {});

// For messages: "allreduce of 'name' on rank 2 (host b)".
std::string described(const std::string& kind, const std::string& name);

const Table& table();

}  // namespace shoal::doors
