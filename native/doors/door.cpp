#include "doors/door.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stdexcept>
#include <utility>

#include "base/types.h"
#include "doors/finishers.h"
#include "engine/operation.h"
#include "os/descriptor.h"
#include "protocol/collectives.h"
#include "protocol/submission.h"

namespace shoal::doors {

namespace {

using engine::Operation;

struct Group {
  std::uint32_t number = 0;  // the engine's
  Place place;
  std::int64_t timeout = 0;
};

const char* const no_job = "this process has not joined a job: call shoal.init() first";
const char* const other_job = "its group is not of the job that this process is in now: make it again";
// Of one process. Never destroyed: threads of the framework may call until the last moment.
struct Door {
  const std::uint64_t generation = os::fork_generation();
  std::shared_mutex mutex;  // held, shared, while an engine is called
  std::optional<Job> job;   // guarded by mutex
  std::map<std::int64_t, Group> groups;  // of the job; guarded by mutex
  std::int64_t last_group = 0;           // guarded by mutex
  Finishers finishers;

  // With mutex held. Null: `why` has the reason.
  const Group* find(std::int64_t group, const char** why) const {
    const auto found = groups.find(group);
    *why = !job.has_value() ? no_job : other_job;
    return found == groups.end() ? nullptr : &found->second;
  }
};

// That of the parent is left as it is in a child, where its lock may be held by nobody.
Door& door() {
  static std::atomic<Door*> current{[] {
    // Nothing of the framework's is called while the process goes.
    std::atexit([] { door().finishers.close(); });
    return new Door();
  }()};
  Door* found = current.load();
  while (found->generation != os::fork_generation()) {
    auto* fresh = new Door();
    if (current.compare_exchange_strong(found, fresh)) {
      return *fresh;
    }
    delete fresh;
  }
  return *found;
}

std::string described(const Call& call, const std::string& here) {
  const std::string name = name_of(static_cast<Collective>(call.collective));
  const std::string of_name = call.name_bytes > 0 ? " of '" + std::string(call.name, call.name_bytes) + "'" : "";
  return name + of_name + (here.empty() ? "" : " on " + here);
}

void fail(const Call& call, const std::string& here, const std::string& why, Ended ended, void* context) {
  const std::string message = described(call, here) + ": " + why;
  End end;
  end.code = static_cast<int>(Code::cancelled);
  end.message = message.c_str();
  ended(context, &end);
}

// An operation that goes on, and whom to tell.
struct Open {
  std::shared_ptr<Operation> operation;
  std::string what;
  Ended ended;
  void* context;

  void end() const {
    const Status& status = operation->status();
    const std::string message = status.ok() ? std::string() : what + ": " + status.message;
    End how;
    how.code = static_cast<int>(status.code);
    how.message = message.c_str();
    how.output = operation->output();
    how.output_bytes = operation->output_bytes();
    how.blocks = operation->blocks().data();
    how.members = operation->blocks().size();
    how.operation = &operation;
    ended(context, &how);
  }
};

Submission submission_of(const Call& call, const Group& group) {
  Submission submission;
  submission.collective = static_cast<Collective>(call.collective);
  submission.group = group.number;
  submission.name.assign(call.name == nullptr ? "" : call.name, call.name_bytes);
  submission.op = static_cast<Operator>(call.op);
  submission.dtype = static_cast<DType>(call.dtype);
  submission.root = call.root;
  submission.shape.assign(call.shape, call.shape + call.dimensions);
  submission.splits.assign(call.splits, call.splits + call.members);
  submission.input = static_cast<const std::byte*>(call.input);
  submission.input_bytes = call.input_bytes;
  submission.output = static_cast<std::byte*>(call.output);
  submission.output_bytes = call.output_bytes;
  submission.timeout = std::max<Time>(group.timeout, 1);
  submission.failure = call.failure == nullptr ? "" : call.failure;
  return submission;
}

// The operation, or null and why there is none.
std::shared_ptr<Operation> submit(const Call& call, std::string& here, std::string& why) {
  Door& ours = door();
  const std::shared_lock lock(ours.mutex);
  here = ours.job.has_value() ? ours.job->here : "";
  const char* missing = nullptr;
  const Group* const group = ours.find(call.group, &missing);
  if (group == nullptr) {
    why = missing;
    return nullptr;
  }
  try {
    ours.finishers.prepare();
    return ours.job->engine->submit(submission_of(call, *group));
  } catch (const std::exception& error) {
    why = error.what();
    return nullptr;
  }
}

void call_core(const Call* call, Ended ended, void* context) {
  std::string here;
  std::string why;
  const std::shared_ptr<Operation> operation = submit(*call, here, why);
  if (operation == nullptr) {
    fail(*call, here, why, ended, context);
    return;
  }
  const Open open{operation, described(*call, here), ended, context};
  if (operation->done()) {
    open.end();
    return;
  }
  door().finishers.expect(*operation, [open] { open.end(); });
}

void* keep(const End* end) {
  return new std::shared_ptr<Operation>(*static_cast<const std::shared_ptr<Operation>*>(end->operation));
}

void release(void* kept) { delete static_cast<std::shared_ptr<Operation>*>(kept); }

bool find_place(std::int64_t group, Place* found, char* message, std::size_t message_size) {
  try {
    *found = place(group);
    return true;
  } catch (const std::runtime_error& error) {
    std::strncpy(message, error.what(), message_size - 1);
    message[message_size - 1] = '\0';
    return false;
  }
}

}  // namespace

void open(Job job) {
  Door& ours = door();
  const std::unique_lock lock(ours.mutex);
  ours.groups.clear();
  ours.groups[0] = {0, job.place, job.timeout};
  ours.job = std::move(job);
}

void forget(const engine::Engine* engine) {
  Door& ours = door();
  const std::unique_lock lock(ours.mutex);
  if (ours.job.has_value() && ours.job->engine == engine) {
    ours.job.reset();
    ours.groups.clear();
  }
}

std::int64_t add_group(std::uint32_t group, Place place, std::int64_t timeout) {
  Door& ours = door();
  const std::unique_lock lock(ours.mutex);
  ours.groups[++ours.last_group] = {group, place, timeout};
  return ours.last_group;
}

Place place(std::int64_t group) {
  Door& ours = door();
  const std::shared_lock lock(ours.mutex);
  const char* why = nullptr;
  const Group* const found = ours.find(group, &why);
  if (found == nullptr) {
    throw std::runtime_error(why);
  }
  return found->place;
}

const Table& table() {
  static constexpr Table the_table{sizeof(Table), call_core, keep, release, find_place};
  return the_table;
}

}  // namespace shoal::doors
