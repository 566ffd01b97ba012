// The door of this process for frameworks that call operations from C++: the present job's engine, behind Table.
//
// Python opens it for each job, and says which groups there are. A framework's graph outlives jobs, so calls name
// groups by numbers of the door's own, which are never used again; 0 is all ranks of the job at hand.
//
// Promises:
//   * Each call ends once, whatever becomes of the job, and nothing that goes wrong is thrown.
//   * No engine is used after forget() has returned.
//   * A child made by fork() begins with no job: its calls fail.
//
// Every function may be called by any thread.
#pragma once

#include <cstdint>
#include <string>

#include "doors/table.h"
#include "engine/engine.h"

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
// The door's number for a group of the present job. `group`: the engine's number. `timeout`: as in Job.
std::int64_t add_group(std::uint32_t group, Place place, std::int64_t timeout);

// Who this rank is in the group. Throws std::runtime_error if the group is not of the present job.
Place place(std::int64_t group);

const Table& table();

}  // namespace shoal::doors
