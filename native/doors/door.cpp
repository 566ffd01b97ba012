#include "doors/door.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <shared_mutex>
#include <stdexcept>
#include <utility>

#include "base/types.h"
#include "doors/finishers.h"
#include "doors/gradient_table.h"
#include "doors/short_waits.h"
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
const char* const other_job =
    "it was made for another job than this process is in now: trace the function again after shoal.init(), with a "
    "group of this job if it has one";
// Of one process. Never destroyed: threads of the framework may call until the last moment.
struct Door {
  const std::uint64_t generation = os::fork_generation();
  std::shared_mutex mutex;                  // held, shared, while an engine is called
  std::optional<Job> job;                   // guarded by mutex
  std::shared_ptr<const std::string> here;  // Job::here; guarded by mutex
  std::map<std::int64_t, Group> groups;     // of the job; guarded by mutex
  Finishers finishers;
  ShortWaits short_waits;

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

std::string named(const std::string& kind, const std::string& name, const std::string& here) {
  return kind + (name.empty() ? "" : " of '" + name + "'") + (here.empty() ? "" : " on " + here);
}

// Why this rank is not who was expected; empty: it is.
std::string unexpected(const Place& found, const ExpectedPlace& expected) {
  if ((expected.members == 0 || expected.members == found.members) &&
      (expected.index < 0 || expected.index == found.index)) {
    return "";
  }
  const auto place = [&expected](std::int64_t index, std::int64_t members) {
    const std::string all = std::to_string(members) + (members == 1 ? " rank" : " ranks");
    return expected.index < 0 ? all : "number " + std::to_string(index) + " of " + all;
  };
  return "it was traced for another job, for " + place(expected.index, expected.members) + ", and this is " +
         place(found.index, found.members) + ": trace the function again after shoal.init()";
}

// The operation, or null and why there is none.
std::shared_ptr<Operation> submit(std::int64_t group, Submission&& submission, Called& called, std::string& why) {
  Door& ours = door();
  const std::shared_lock lock(ours.mutex);
  called.here = ours.here;
  const char* missing = nullptr;
  const Group* const found = ours.find(group, &missing);
  if (found == nullptr) {
    why = missing;
    return nullptr;
  }
  submission.group = found->number;
  submission.timeout = std::max<Time>(found->timeout, 1);
  try {
    ours.finishers.prepare();
    return ours.job->engine->submit(std::move(submission));
  } catch (const std::exception& error) {
    why = error.what();
    return nullptr;
  }
}

Submission submission_of(const Call& call) {
  Submission submission;
  submission.collective = static_cast<Collective>(call.collective);
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
  submission.failure = call.failure == nullptr ? "" : call.failure;
  return submission;
}

// The core's messages begin with the operation's name, or with what was called and its name: the text has both already.
std::string without_second_name(std::string message, const Called& called) {
  const std::string before = called.text() + ": ";
  const std::string again = "'" + (called.name.empty() ? "#" : called.name) + "': ";
  std::string with_kind = name_of(called.collective);
  with_kind.append(" ").append(again);
  for (const std::string& beginning : {again, with_kind}) {
    if (message.starts_with(before + beginning)) {
      return message.erase(before.size(), beginning.size());
    }
  }
  return message;
}

void call_core(const Call* given, Ended ended, void* context) {
  call(given->group, submission_of(*given), [ended, context](const Outcome& outcome) {
    std::string message;
    if (!outcome.status.ok()) {
      message = without_second_name(outcome.status.message, outcome.called);
    }
    End end;
    end.code = static_cast<int>(outcome.status.code);
    end.message = message.c_str();
    end.outcome = &outcome;
    if (outcome.operation != nullptr) {
      end.output = outcome.operation->output();
      end.output_bytes = outcome.operation->output_bytes();
      end.blocks = outcome.operation->blocks().data();
      end.members = outcome.operation->blocks().size();
    }
    ended(context, &end);
  });
}

void* keep(const End* end) {
  return new std::shared_ptr<Operation>(static_cast<const Outcome*>(end->outcome)->operation);
}

void release(void* kept) { delete static_cast<std::shared_ptr<Operation>*>(kept); }

bool find_place(std::int64_t group, ExpectedPlace expected, Place* found, Sink why) {
  try {
    *found = place(group, expected);
    return true;
  } catch (const std::runtime_error& error) {
    why.write(why.text, error.what(), std::strlen(error.what()));
    return false;
  }
}

void describe(const char* kind, const char* name, std::size_t name_bytes, Sink text) {
  const std::string found = doors::described(kind, std::string(name, name_bytes));
  text.write(text.text, found.data(), found.size());
}

void describe_end(const End* end, Sink text) {
  const std::string found = static_cast<const Outcome*>(end->outcome)->called.text();
  text.write(text.text, found.data(), found.size());
}

}  // namespace

std::string Called::text() const { return named(name_of(collective), name, here == nullptr ? "" : *here); }

std::int64_t fresh_number() {
  static std::mutex mutex;
  static std::random_device numbers;
  const std::lock_guard lock(mutex);
  const std::uint64_t high = numbers();
  return static_cast<std::int64_t>(((high << 32U) | numbers()) >> 1U | 1U);
}

void open(Job job) {
  Door& ours = door();
  const std::unique_lock lock(ours.mutex);
  ours.groups.clear();
  ours.groups[0] = {0, job.place, job.timeout};
  ours.here = std::make_shared<const std::string>(job.here);
  ours.job = std::move(job);
}

std::string here() {
  Door& ours = door();
  const std::shared_lock lock(ours.mutex);
  return ours.here == nullptr ? "" : *ours.here;
}

void call(std::int64_t group, Submission&& submission, std::function<void(const Outcome&)> ended) {
  Door& ours = door();
  std::string why;
  Called called{submission.collective, submission.name, nullptr};
  const bool waits = ours.short_waits.begin(std::max(submission.input_bytes, submission.output_bytes));
  const std::shared_ptr<Operation> operation = submit(group, std::move(submission), called, why);
  if (operation == nullptr) {
    ours.short_waits.end();
    Status status = Status::error(Code::cancelled, called.text() + ": " + why);
    ended({std::move(status), nullptr, std::move(called)});
    return;
  }
  auto end = [&ours, operation, called = std::move(called), ended = std::move(ended)]() mutable {
    ours.short_waits.end();
    Status status = operation->status();
    if (!status.ok()) {
      status.message = called.text() + ": " + status.message;
    }
    ended({std::move(status), operation, std::move(called)});
  };
  if (waits) {
    ours.short_waits.waited(operation->wait(ShortWaits::longest));
  }
  if (operation->done()) {
    end();
  } else {
    ours.finishers.expect(operation, std::move(end));
  }
}

std::shared_ptr<std::byte> allocate(std::size_t bytes) {
  constexpr std::size_t alignment = 64;
  {
    Door& ours = door();
    const std::shared_lock lock(ours.mutex);
    if (ours.job.has_value() && ours.job->place.members > 1) {
      if (std::shared_ptr<std::byte> shared = ours.job->engine->allocate(bytes)) {
        return shared;
      }
    }
  }
  const std::size_t rounded = std::max((bytes + alignment - 1) / alignment * alignment, alignment);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  std::memset(memory, 0, rounded);
  return {memory, [](std::byte* gone) { std::free(gone); }};
}

void forget(const engine::Engine* engine) {
  Door& ours = door();
  const std::unique_lock lock(ours.mutex);
  if (ours.job.has_value() && ours.job->engine == engine) {
    ours.job.reset();
    ours.here.reset();
    ours.groups.clear();
  }
}

std::int64_t add_group(std::uint32_t group, Place place, std::int64_t timeout) {
  Door& ours = door();
  const std::unique_lock lock(ours.mutex);
  const std::int64_t number = fresh_number();
  ours.groups[number] = {group, place, timeout};
  return number;
}

std::string described(const std::string& kind, const std::string& name) { return named(kind, name, here()); }

Place place(std::int64_t group, ExpectedPlace expected) {
  Door& ours = door();
  const std::shared_lock lock(ours.mutex);
  const char* why = nullptr;
  const Group* const found = ours.find(group, &why);
  if (found == nullptr || ours.job->engine->left()) {  // which may live on for a while
    throw std::runtime_error(found == nullptr ? why : no_job);
  }
  if (const std::string problem = unexpected(found->place, expected); !problem.empty()) {
    throw std::runtime_error(problem);
  }
  return found->place;
}

const Table& table() {
  static const Table the_table = [] {
    Table made;
    made.call = call_core;
    made.keep = keep;
    made.release = release;
    made.place = find_place;
    made.describe = describe;
    made.describe_end = describe_end;
    add_gradient_functions(made);
    return made;
  }();
  return the_table;
}

}  // namespace shoal::doors
