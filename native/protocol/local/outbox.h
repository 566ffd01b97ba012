// Records for the others of a group, in order, until there is room for them in this rank's mailbox.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "protocol/local/mailbox.h"
#include "wire/opening.h"

namespace shoal::local {

class Outbox {
 public:
  Outbox(const GroupMemory& memory, std::uint32_t own, Bells& bells) : writer_(memory, own, bells) {}

  void say(RecordKind kind, const Hash128& key, wire::Bytes body = {}, ConstBytes data = {}) {
    unsaid_.push_back({kind, key, std::move(body), wire::Bytes(data.begin(), data.end())});
  }
  bool empty() const { return unsaid_.empty(); }
  // Writes the next, if there is one and room for it, and returns its kind.
  std::optional<RecordKind> write_next();
  // Writes a record without keeping a copy, if the outbox is empty. False: it is not, or there is no room now.
  bool write(const Record& record) { return unsaid_.empty() && writer_.write(record); }

  void forget_reader(std::uint32_t place) { writer_.forget_reader(place); }

  void check_invariants() const { writer_.check_invariants(); }

 private:
  struct Unsaid {
    RecordKind kind;
    Hash128 key;
    wire::Bytes body;
    wire::Bytes data;
  };

  MailboxWriter writer_;
  std::deque<Unsaid> unsaid_;
};

inline std::optional<RecordKind> Outbox::write_next() {
  if (unsaid_.empty()) {
    return std::nullopt;
  }
  const Unsaid& next = unsaid_.front();
  if (!writer_.write({next.kind, next.key, next.body, next.data})) {
    return std::nullopt;
  }
  const RecordKind kind = next.kind;
  unsaid_.pop_front();
  return kind;
}

}  // namespace shoal::local
