// What a node says of those who use it: what they wait for, once nothing there can call anything before one of those
// operations is done, and whether they have called what others wait for. The coordinator finds out whether ranks wait
// for each other in a circle (circles.h), and says so; then what can never be complete fails. docs/protocol.md,
// section 8.
#include <algorithm>
#include <utility>

#include "protocol/keys.h"
#include "protocol/node_impl.h"

namespace shoal {

using wire::Type;

namespace {

constexpr Time look_again = second;

}  // namespace

void Node::watch_waits() { impl_->watch_waits(); }
void Node::fail(std::uint64_t handle, const Status& why) { impl_->fail(handle, why); }

void Node::Impl::look_for_waits() {
  const bool is_over = !coordinator_ || goodbye_said_ || !broken_.ok();
  look_at_ = is_over ? never : now_ + look_again;
  if (is_over) {
    return;
  }
  const NodeWorld::Waiting waiting = world_.waiting();
  if (waiting.changes != std::exchange(seen_changes_, waiting.changes)) {
    unchanged_since_ = now_;
    return;
  }
  if (!waiting.blocked || waiting.changes == told_changes_ || now_ - unchanged_since_ < waiting.patience) {
    return;
  }
  wire::Waits waits{waiting.changes, {}};
  for (std::uint64_t handle : waiting.handles) {
    std::optional<wire::Wait> wait = described(handle);
    if (!wait) {
      return;  // it is being ended, or begun
    }
    waits.waits.push_back(std::move(*wait));
  }
  wire::Bytes bytes = wire::encode(waits);
  if (!waits.waits.empty() && bytes.size() <= wire::circle_bytes) {
    told_changes_ = waiting.changes;
    tell_coordinator(Type::waits, std::move(bytes));
  }
}

std::optional<wire::Wait> Node::Impl::described(std::uint64_t handle) const {
  std::optional<wire::Wait> wait = world_.described_inside(handle);
  for (const auto& [number, operation] : operations_) {
    if (operation->submission.handle == handle && !operation->failed_here) {
      const wire::Opening& opening = operation->opening;
      wait = {{opening.group, opening.occurrence, opening.name}, operation->submission.collective, {}};
    }
  }
  if (!wait) {
    return wait;
  }
  const auto group =
      std::find_if(groups_.begin(), groups_.end(), [&](const auto& each) { return each->id == wait->call.group; });
  if (group == groups_.end()) {
    return std::nullopt;
  }
  wait->members = (*group)->ranks;
  return wait;
}

bool Node::Impl::has_called(const wire::Call& call) const {
  const auto calls = occurrences_.find(operation_key(call.group, call.name, 0));
  return (calls != occurrences_.end() && calls->second > call.occurrence) || world_.has_called_inside(call);
}

Status Node::Impl::receive_probe(const LinkState& link) {
  wire::Probe probe;
  if (Status status = wire::decode(wire::ConstBytes(link.payload.data(), link.payload.size()), probe); !status.ok()) {
    return status;
  }
  const NodeWorld::Waiting waiting = world_.waiting();
  if (!waiting.blocked) {
    told_changes_ = 0;  // the coordinator forgets what was said
  }
  wire::Calls calls{probe.round, waiting.blocked ? waiting.changes : 0, {}};
  for (const wire::Call& call : probe.calls) {
    calls.called.push_back(has_called(call));
  }
  tell_coordinator(Type::calls, wire::encode(calls));
  return {};
}

Status Node::Impl::receive_circle(const LinkState& link) {
  wire::Circle circle;
  if (Status status = wire::decode(wire::ConstBytes(link.payload.data(), link.payload.size()), circle); !status.ok()) {
    return status;
  }
  for (const wire::Call& call : circle.calls) {
    const Status why = Status::error(Code::mismatch, "'" + call.name + "' can never be complete: " + circle.why);
    if (world_.fail_inside(call, why)) {
      continue;
    }
    for (const auto& [number, operation] : operations_) {
      const wire::Opening& opening = operation->opening;
      if (opening.group == call.group && opening.occurrence == call.occurrence && opening.name == call.name) {
        fail(operation->submission.handle, why);
        break;
      }
    }
  }
  return {};
}

void Node::Impl::fail(std::uint64_t handle, const Status& why) {
  for (const auto& [number, operation] : operations_) {
    const bool stands = !operation->finished && !operation->failed_here && !operation->timed_out && !operation->ending;
    if (operation->submission.handle == handle && stands) {
      operation->stall = "can never be complete, since ranks wait for each other in a circle";
      return ask_home_to_fail(*operation, why);
    }
  }
}

void Node::Impl::tell_coordinator(Type type, wire::Bytes bytes) {
  if (coordinator_ && !goodbye_said_) {
    const wire::Header header{.type = type, .length = static_cast<std::uint32_t>(bytes.size())};
    world_.send(*coordinator_, header, std::move(bytes), {}, 0);
  }
}

}  // namespace shoal
