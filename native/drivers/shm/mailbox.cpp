#include "drivers/shm/mailbox.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace shoal::shm {

namespace {

constexpr std::size_t unit = 64;

struct Head {
  std::uint64_t bytes;  // of the whole record, a multiple of the unit
  Kind kind;
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

std::uint64_t MailboxWriter::slowest_reader() const {
  std::uint64_t slowest = written_;
  for (std::uint32_t rank = 0; rank < memory_.shape().ranks; ++rank) {
    if (rank != own_ && !memory_.is_gone(rank)) {
      slowest = std::min(slowest, memory_.desk(rank).read[own_].load());
    }
  }
  return slowest;
}

bool MailboxWriter::write(const Record& record) {
  const std::size_t size = memory_.shape().mailbox;
  const std::size_t bytes = unit + aligned(record.body.size()) + aligned(record.data.size());
  const std::size_t at = written_ % size;
  const std::size_t skipped = size - at < bytes ? size - at : 0;
  Desk& desk = memory_.desk(own_);
  if (written_ + skipped + bytes - slowest_reader() > size) {
    desk.blocked.store(1);
    // A reader that went on before it could see this will not ring.
    if (written_ + skipped + bytes - slowest_reader() > size) {
      for (std::uint32_t rank = 0; rank < memory_.shape().ranks; ++rank) {
        if (rank != own_) {
          ring(memory_.desk(rank), true);
        }
      }
      return false;
    }
  }
  desk.blocked.store(0);
  std::byte* const begin = memory_.mailbox(own_);
  if (skipped > 0) {
    const Head skip{skipped, Kind::skip, 0, 0, 0, {}};
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
  desk.written.store(written_);
  return true;
}

std::optional<Record> MailboxReader::next() {
  const std::size_t size = memory_.shape().mailbox;
  for (;;) {
    if (memory_.desk(writer_).written.load() == read_) {
      return std::nullopt;
    }
    const std::size_t at = read_ % size;
    const std::byte* const from = memory_.mailbox(writer_) + at;
    Head head;
    std::memcpy(&head, from, sizeof head);
    const std::size_t needed = unit + aligned(head.body) + aligned(head.data);
    if (head.bytes == 0 || head.bytes % unit != 0 || head.bytes > size - at ||
        (head.kind != Kind::skip && head.bytes != needed)) {
      throw std::runtime_error("the node's shared memory is damaged");
    }
    end_ = read_ + head.bytes;
    if (head.kind != Kind::skip) {
      return Record{head.kind, head.key, {from + unit, head.body}, {from + unit + aligned(head.body), head.data}};
    }
    done();
  }
}

void MailboxReader::done() {
  read_ = end_;
  memory_.desk(own_).read[writer_].store(read_);
  if (memory_.desk(writer_).blocked.load() != 0) {
    ring(memory_.desk(writer_), true);
  }
}

}  // namespace shoal::shm
