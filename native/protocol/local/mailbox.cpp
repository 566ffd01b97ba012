#include "protocol/local/mailbox.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/invariant.h"

namespace shoal::local {

namespace {

constexpr std::size_t unit = 64;

struct Head {
  std::uint64_t bytes;  // of the whole record, a multiple of the unit
  RecordKind kind;
  std::uint32_t body;
  std::uint32_t data;
  std::uint32_t unused;
  Hash128 key;
};
static_assert(sizeof(Head) <= unit);

std::size_t aligned(std::size_t bytes) { return (bytes + unit - 1) / unit * unit; }

void copy(std::byte* to, ConstBytes from) {
  if (!from.empty()) {
    std::memcpy(to, from.data(), from.size());
  }
}

}  // namespace

bool may_say(std::uint32_t place, const Record& record, bool has_other_nodes) {
  switch (record.kind) {
    case RecordKind::admit:
      return place == 0;
    case RecordKind::part:
    case RecordKind::blocks:
    case RecordKind::done:
      return place == 0 && has_other_nodes;
    case RecordKind::ready:
      return place != 0 && has_other_nodes;
    case RecordKind::failed:
      return place == 0 && (has_other_nodes || record.data.empty());
    case RecordKind::fail_pending:
    case RecordKind::go_on:
      return place == 0 && !has_other_nodes;
    default:
      return true;
  }
}

std::uint64_t MailboxWriter::slowest_reader() const {
  std::uint64_t slowest = written_;
  for (std::uint32_t place = 0; place < memory_.ranks(); ++place) {
    const bool has_ended = std::find(ended_.begin(), ended_.end(), place) != ended_.end();
    if (place != own_ && !has_ended && !memory_.is_gone(place)) {
      slowest = std::min(slowest, memory_.words(place).read[own_].load());
    }
  }
  return slowest;
}

bool MailboxWriter::write(const Record& record) {
  const std::size_t size = memory_.shape().mailbox;
  const std::size_t bytes = unit + aligned(record.body.size()) + aligned(record.data.size());
  const std::size_t at = written_ % size;
  const std::size_t skipped = size - at < bytes ? size - at : 0;
  const auto is_full = [&] { return written_ + skipped + bytes - slowest_reader() > size; };
  RankWords& words = memory_.words(own_);
  if (is_full()) {
    if (blocked_) {
      return false;
    }
    blocked_ = true;
    words.blocked.store(1);
    // A reader that went on before it could see this will not ring.
    if (is_full()) {
      for (std::uint32_t place = 0; place < memory_.ranks(); ++place) {
        if (place != own_) {
          bells_.ring(place, true);
        }
      }
      return false;
    }
  }
  if (std::exchange(blocked_, false)) {
    words.blocked.store(0);
  }
  std::byte* const begin = memory_.mailbox(own_);
  if (skipped > 0) {
    const Head skip{skipped, RecordKind::skip, 0, 0, 0, {}};
    std::memcpy(begin + at, &skip, sizeof skip);
  }
  std::byte* const to = begin + (written_ + skipped) % size;
  const Head head{bytes,
                  record.kind,
                  static_cast<std::uint32_t>(record.body.size()),
                  static_cast<std::uint32_t>(record.data.size()),
                  0,
                  record.key};
  std::memcpy(to, &head, sizeof head);
  copy(to + unit, record.body);
  copy(to + unit + aligned(record.body.size()), record.data);
  written_ += skipped + bytes;
  words.written.store(written_);
  return true;
}

void MailboxWriter::check_invariants() const {
  SHOAL_INVARIANT(memory_.words(own_).written.load() == written_);
  SHOAL_INVARIANT(slowest_reader() <= written_ && written_ - slowest_reader() <= memory_.shape().mailbox);
  SHOAL_INVARIANT((memory_.words(own_).blocked.load() != 0) == blocked_);
}

std::optional<Record> MailboxReader::next() {
  const std::size_t size = memory_.shape().mailbox;
  for (;;) {
    const std::uint64_t unread = written_->load() - read_;
    if (unread == 0) {
      return std::nullopt;
    }
    const std::size_t at = read_ % size;
    const std::byte* const from = memory_.mailbox(writer_) + at;
    Head head;
    std::memcpy(&head, from, sizeof head);
    const std::size_t needed = unit + aligned(head.body) + aligned(head.data);
    if (unread > size || head.bytes == 0 || head.bytes % unit != 0 || head.bytes > std::min(size - at, unread) ||
        (head.kind != RecordKind::skip && head.bytes != needed)) {
      is_damaged_ = true;
      throw std::runtime_error("the node's shared memory is damaged");
    }
    end_ = read_ + head.bytes;
    if (head.kind != RecordKind::skip) {
      return Record{head.kind, head.key, {from + unit, head.body}, {from + unit + aligned(head.body), head.data}};
    }
    done();
  }
}

void MailboxReader::done() {
  read_ = end_;
  memory_.words(own_).read[writer_].store(read_);
  if (memory_.words(writer_).blocked.load() != 0) {
    bells_->ring(writer_, true);
  }
}

}  // namespace shoal::local
