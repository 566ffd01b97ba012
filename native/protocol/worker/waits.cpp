// What a worker says of those who use it: what they wait for, once nothing there can call anything before one of those
// operations is done, and whether they have called what others wait for. The coordinator finds out whether ranks wait
// for each other in a circle (coordinator/circles.h), and says so; then what can never be complete fails.
// docs/protocol/lifecycle.md, Circles.
#include <algorithm>
#include <map>
#include <utility>

#include "protocol/keys.h"
#include "protocol/worker/impl.h"

namespace shoal {

using wire::Type;

namespace {

constexpr Time look_again = second;

}  // namespace

void Worker::watch_waits() { impl_->watch_waits(); }

void Worker::Impl::look_for_waits() {
  const bool is_over = !coordinator_ || goodbye_said_ || !broken_.ok();
  look_at_ = is_over ? never : now_ + look_again;
  if (is_over) {
    return;
  }
  const WorkerWorld::Waiting waiting = world_.waiting();
  if (waiting.changes != std::exchange(seen_changes_, waiting.changes)) {
    unchanged_since_ = now_;
    return;
  }
  if (!waiting.blocked || waiting.changes == told_changes_ || now_ - unchanged_since_ < waiting.patience) {
    return;
  }
  std::optional<std::vector<wire::Wait>> waits = described(waiting.handles);
  if (!waits) {
    return;  // one is being ended, or begun
  }
  // What is too much to be said is not tried again.
  told_changes_ = waiting.changes;
  wire::Bytes bytes = wire::encode(wire::Waits{waiting.changes, std::move(*waits)});
  if (!waiting.handles.empty() && bytes.size() <= wire::circle_bytes) {
    tell_coordinator(Type::waits, std::move(bytes));
  }
}

// In one go through what is open, however many are asked for.
std::optional<std::vector<wire::Wait>> Worker::Impl::described(std::vector<std::uint64_t> handles) const {
  std::sort(handles.begin(), handles.end());
  handles.erase(std::unique(handles.begin(), handles.end()), handles.end());
  std::map<std::uint64_t, wire::Wait> by_handle = world_.described_inside(handles);
  for (const auto& [number, operation] : operations_) {
    const std::uint64_t handle = operation->submission.handle;
    const bool ends = operation->failed_here || operation->timed_out || operation->ending;
    if (!ends && std::binary_search(handles.begin(), handles.end(), handle)) {
      const wire::Opening& opening = operation->opening;
      by_handle[handle] = {{opening.group, opening.occurrence, opening.name}, operation->submission.collective, {}};
    }
  }
  if (by_handle.size() < handles.size()) {
    return std::nullopt;
  }
  std::map<Hash128, std::vector<wire::Stride>> members;  // of groups that have come up
  std::vector<wire::Wait> waits;
  for (auto& [handle, wait] : by_handle) {
    const auto [known, is_new] = members.try_emplace(wait.call.group);
    if (is_new) {
      const Hash128& id = known->first;
      const auto group = std::find_if(groups_.begin(), groups_.end(), [&id](const auto& one) { return one->id == id; });
      if (group == groups_.end()) {
        return std::nullopt;
      }
      known->second = wire::strides_of((*group)->ranks);
    }
    wait.members = known->second;
    waits.push_back(std::move(wait));
  }
  return waits;
}

bool Worker::Impl::has_called(const wire::Call& call) const {
  const auto calls = occurrences_.find(operation_key(call.group, call.name, 0));
  return (calls != occurrences_.end() && calls->second > call.occurrence) || world_.has_called_inside(call);
}

Status Worker::Impl::receive_probe(const LinkState& link) {
  wire::Probe probe;
  if (Status status = wire::decode(wire::ConstBytes(link.payload.data(), link.payload.size()), probe); !status.ok()) {
    return status;
  }
  const WorkerWorld::Waiting waiting = world_.waiting();
  // Who waits for what is being ended, as one of another circle, is about to go on.
  const bool stands_still = waiting.blocked && described(waiting.handles);
  if (!stands_still) {
    told_changes_ = 0;  // the coordinator forgets what was said
  }
  wire::Calls calls{probe.round, stands_still ? waiting.changes : 0, {}};
  for (const wire::Call& call : probe.calls) {
    calls.called.push_back(has_called(call));
  }
  tell_coordinator(Type::calls, wire::encode(calls));
  return {};
}

Status Worker::Impl::receive_circle(const LinkState& link) {
  wire::Circle circle;
  if (Status status = wire::decode(wire::ConstBytes(link.payload.data(), link.payload.size()), circle); !status.ok()) {
    return status;
  }
  // The coordinator has forgotten what was said. It is said again if an operation stays open after all: its home may be
  // lost before it ends it.
  told_changes_ = 0;
  std::map<std::uint64_t, Status> by_handle;
  std::map<wire::Call, Status> by_call;
  for (wire::Call& call : circle.calls) {
    Status why = Status::error(Code::mismatch, "'" + call.name + "' can never be complete: " + circle.why);
    const WorkerWorld::Failed inside = world_.fail_inside(call, why);
    if (inside.handle) {
      by_handle.emplace(*inside.handle, std::move(why));
    } else if (!inside.found) {
      by_call.emplace(std::move(call), std::move(why));
    }
  }
  // In one go through what is open.
  for (const auto& [number, operation] : operations_) {
    const bool stands = !operation->finished && !operation->failed_here && !operation->timed_out && !operation->ending;
    const auto of_handle = by_handle.find(operation->submission.handle);
    const wire::Opening& opening = operation->opening;
    const auto of_call = by_call.find({opening.group, opening.occurrence, opening.name});
    if (stands && (of_handle != by_handle.end() || of_call != by_call.end())) {
      operation->stall = "can never be complete, since ranks wait for each other in a circle";
      ask_home_to_fail(*operation, of_handle != by_handle.end() ? of_handle->second : of_call->second);
    }
  }
  return {};
}

void Worker::Impl::tell_coordinator(Type type, wire::Bytes bytes) {
  if (coordinator_ && !goodbye_said_) {
    const wire::Header header{.type = type, .length = static_cast<std::uint32_t>(bytes.size())};
    world_.send(*coordinator_, header, std::move(bytes), {}, 0);
  }
}

}  // namespace shoal
