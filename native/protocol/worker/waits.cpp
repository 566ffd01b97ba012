#include "protocol/worker/waits.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/invariant.h"

namespace shoal::worker {

using wire::Type;

namespace {

constexpr Time look_again = second;

}  // namespace

Waits::Waits(const Environment& environment, const OperationTable& operations, const Groups& groups,
             const CallRegistry& calls, const Links& links)
    : environment_(environment), operations_(operations), groups_(groups), calls_(calls), links_(links) {}

void Waits::look() {
  look_at_ = environment_.now() + look_again;
  const WorkerWorld::Waiting waiting = environment_.world().waiting();
  if (waiting.changes != std::exchange(seen_changes_, waiting.changes)) {
    unchanged_since_ = environment_.now();
    return;
  }
  const bool has_lasted = environment_.now() - unchanged_since_ >= waiting.patience;
  if (!waiting.blocked || waiting.changes == told_changes_ || !has_lasted) {
    return;
  }
  std::optional<std::vector<wire::Wait>> waits = described(waiting.handles);
  if (!waits) {
    return;  // one is being ended, or begun
  }
  // What is too much to be said is not tried again.
  told_changes_ = waiting.changes;
  const wire::Bytes bytes = wire::encode(wire::Waits{waiting.changes, std::move(*waits)});
  if (!waiting.handles.empty() && bytes.size() <= wire::circle_bytes) {
    links_.tell_coordinator(Type::waits, bytes);
  }
}

// In no order. None if one of them is not open. One pass over the open operations, however many are asked for.
std::optional<std::vector<wire::Wait>> Waits::described(std::vector<std::uint64_t> handles) const {
  std::sort(handles.begin(), handles.end());
  handles.erase(std::unique(handles.begin(), handles.end()), handles.end());
  std::map<std::uint64_t, wire::Wait> by_handle = environment_.world().described_inside(handles);
  operations_.visit_open([&](const Operation& operation) {
    if (operation.is_undecided() && std::binary_search(handles.begin(), handles.end(), operation.handle())) {
      const wire::Opening& opening = operation.opening();
      by_handle[operation.handle()] = {
          {opening.group, opening.occurrence, opening.name}, operation.submission().collective, {}};
    }
  });
  if (by_handle.size() < handles.size()) {
    return std::nullopt;
  }
  std::map<Hash128, std::vector<wire::Stride>> members;  // of groups that have come up
  std::vector<wire::Wait> waits;
  for (auto& [handle, wait] : by_handle) {
    const auto [known, is_new] = members.try_emplace(wait.call.group);
    if (is_new) {
      const Group* group = groups_.find(known->first);
      if (group == nullptr) {
        return std::nullopt;
      }
      known->second = wire::strides_of(group->ranks);
    }
    wait.members = known->second;
    waits.push_back(std::move(wait));
  }
  return waits;
}

Status Waits::receive_probe(const Frame& frame) {
  wire::Probe probe;
  if (Status status = wire::decode(frame.bytes(), probe); !status.ok()) {
    return status;
  }
  const WorkerWorld::Waiting waiting = environment_.world().waiting();
  // A rank that waits for an operation that is being ended, as one of another circle, is about to go on.
  const bool stands_still = waiting.blocked && described(waiting.handles);
  if (!stands_still) {
    told_changes_ = 0;  // the coordinator forgets what was said
  }
  wire::Calls calls{probe.round, stands_still ? waiting.changes : 0, {}};
  for (const wire::Call& call : probe.calls) {
    calls.called.push_back(calls_.has_called(call) || environment_.world().has_called_inside(call));
  }
  links_.tell_coordinator(Type::calls, wire::encode(calls));
  return {};
}

Status Waits::receive_circle(const Frame& frame, std::map<std::uint64_t, Status>& failed) {
  wire::Circle circle;
  if (Status status = wire::decode(frame.bytes(), circle); !status.ok()) {
    return status;
  }
  // The coordinator has forgotten what was said. It is said again if an operation stays open after all: its home may be
  // lost before it ends it.
  told_changes_ = 0;
  std::map<std::uint64_t, Status> by_handle;
  std::map<wire::Call, Status> by_call;
  for (wire::Call& call : circle.calls) {
    Status why = Status::error(Code::mismatch, "'" + call.name + "' can never be complete: " + circle.why);
    const WorkerWorld::Failed inside = environment_.world().fail_inside(call, why);
    if (inside.handle) {
      by_handle.emplace(*inside.handle, std::move(why));
    } else if (!inside.found) {
      by_call.emplace(std::move(call), std::move(why));
    }
  }
  // In one go through what is open.
  operations_.visit_open([&](const Operation& operation) {
    const auto of_handle = by_handle.find(operation.handle());
    const wire::Opening& opening = operation.opening();
    const auto of_call = by_call.find({opening.group, opening.occurrence, opening.name});
    if (operation.is_undecided() && (of_handle != by_handle.end() || of_call != by_call.end())) {
      failed.emplace(operation.number(), of_handle != by_handle.end() ? of_handle->second : of_call->second);
    }
  });
  return {};
}

void Waits::check_invariants() const { SHOAL_INVARIANT(unchanged_since_ <= environment_.now()); }

}  // namespace shoal::worker
