#include "protocol/local/calls.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/invariant.h"

namespace shoal::local {

namespace {

bool equal(const wire::Bytes& a, ConstBytes b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace

wire::Opening decoded_opening(ConstBytes body) {
  wire::Opening opening;
  std::size_t inline_offset = 0;
  if (const Status status = wire::decode(body, opening, inline_offset); !status.ok()) {
    throw std::runtime_error(status.message);
  }
  return opening;
}

Status decoded_status(ConstBytes body) {
  wire::Failure failure;
  if (const Status status = wire::decode(body, failure); !status.ok()) {
    throw std::runtime_error(status.message);
  }
  return failure.status;
}

void Calls::note_own(std::uint32_t own, bool has_data, const std::optional<Offsets>& offsets) {
  Call& call = calls_[own];
  call.opened = call.same = true;
  call.has_data = has_data;
  call.offsets = offsets;
  ++count_;
}

void Calls::hear(std::uint32_t place, const Record& record, const wire::Bytes& own_body) {
  Call& call = calls_[place];
  if (call.opened) {
    throw std::runtime_error("a rank of this node has called the same operation twice");
  }
  const bool same = !own_body.empty() && equal(own_body, record.body);
  const bool in_region = record.kind == RecordKind::open_in_region;
  const bool has_data = record.kind == RecordKind::open_with_data;
  if ((!same && decoded_opening(record.body).key != record.key) ||
      (!has_data && record.data.size() != (in_region ? sizeof(Offsets) : 0))) {
    throw std::runtime_error("the node's shared memory is damaged: a call that cannot be one");
  }
  call.opened = true;
  ++count_;
  call.same = same;
  call.has_data = has_data;
  if (in_region) {
    std::memcpy(&call.offsets.emplace(), record.data.data(), sizeof(Offsets));
  } else {
    call.data.assign(record.data.begin(), record.data.end());
  }
  if (!same) {
    call.body.assign(record.body.begin(), record.body.end());
  }
}

std::uint32_t Calls::first() const {
  const auto first = std::find_if(calls_.begin(), calls_.end(), [](const Call& call) { return call.opened; });
  return static_cast<std::uint32_t>(first - calls_.begin());
}

std::vector<std::uint32_t> Calls::missing() const {
  std::vector<std::uint32_t> places;
  for (std::uint32_t place = 0; place < calls_.size(); ++place) {
    if (!calls_[place].opened) {
      places.push_back(place);
    }
  }
  return places;
}

bool Calls::is_same(std::uint32_t place, const wire::Bytes& own_body) {
  Call& call = calls_[place];
  if (!call.same && equal(own_body, call.body)) {
    call.same = true;
    call.body.clear();
  }
  return call.same;
}

wire::Opening Calls::opening_of(std::uint32_t place, const wire::Opening& own) const {
  return calls_[place].same ? own : decoded_opening(calls_[place].body);
}

std::vector<wire::Opening> Calls::others() const {
  std::vector<wire::Opening> openings;
  for (const Call& call : calls_) {
    if (!call.body.empty()) {
      openings.push_back(decoded_opening(call.body));
    }
  }
  return openings;
}

bool Calls::all_have_data() const {
  return std::all_of(calls_.begin(), calls_.end(), [](const Call& call) { return call.has_data; });
}

void Calls::check_invariants() const {
  std::size_t opened = 0;
  for (const Call& call : calls_) {
    opened += call.opened ? 1 : 0;
    SHOAL_INVARIANT(call.opened || (!call.same && !call.has_data && call.body.empty()));
    SHOAL_INVARIANT(!call.same || call.body.empty());
  }
  SHOAL_INVARIANT(opened == count_);
}

}  // namespace shoal::local
