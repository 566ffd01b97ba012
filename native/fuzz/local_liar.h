// A rank in the memory of a machine that is not the product's: it writes records into its mailbox as it likes, and says
// of itself in its words what it likes. Mostly it says what others have said, or almost that, so that the others go
// on with it.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <vector>

#include "drivers/sim/heap_group.h"
#include "fuzz/damage.h"
#include "fuzz/input.h"
#include "fuzz/local_damage.h"
#include "protocol/local/mailbox.h"

namespace shoal::fuzz {

class LocalLiar {
 public:
  LocalLiar(const local::GroupMemory& memory, std::uint32_t place)
      : memory_(memory), place_(place), bells_(memory), writer_(memory, place, bells_) {
    for (std::uint32_t other = 0; other < memory.ranks(); ++other) {
      readers_.emplace_back(memory, place, other, bells_);
    }
    memory_.words(place).here.store(1);
  }

  void act(Input& input) {
    read_all();
    switch (input.below(8)) {
      case 0:
      case 1:
        do_its_part();
        break;
      case 2:
      case 3:
      case 4:
        say_again(input);
        break;
      case 5:
        say_all_again();
        break;
      default:
        decide(input);
        break;
    }
  }

 private:
  struct Heard {
    local::RecordKind kind;
    Hash128 key;
    wire::Bytes body;
    wire::Bytes data;
  };
  static constexpr std::size_t most_heard = 16;

  void read_all() {
    for (std::uint32_t other = 0; other < memory_.ranks(); ++other) {
      try {
        while (other != place_) {
          const std::optional<local::Record> record = readers_[other].next();
          if (!record) {
            break;
          }
          heard_.push_back({record->kind,
                            record->key,
                            {record->body.begin(), record->body.end()},
                            {record->data.begin(), record->data.end()}});
          readers_[other].done();
        }
      } catch (const std::runtime_error&) {
        // Others' memory may be damaged too.
      }
    }
    while (heard_.size() > most_heard) {
      heard_.pop_front();
    }
  }

  void say(const Heard& record) { writer_.write({record.kind, record.key, record.body, record.data}); }

  // Calls what others have called, in the order in which it was heard.
  void say_all_again() {
    for (const Heard& record : heard_) {
      say(record);
    }
    heard_.clear();
  }

  static void damage_number(wire::Bytes& bytes, std::size_t at, Input& input) {
    std::uint64_t value = 0;
    if (at + sizeof value <= bytes.size()) {
      std::memcpy(&value, bytes.data() + at, sizeof value);
      value = other_number(value, input);
      std::memcpy(bytes.data() + at, &value, sizeof value);
    }
  }

  // As another rank has said it, or almost.
  void say_again(Input& input) {
    if (heard_.empty()) {
      return;
    }
    Heard record = heard_[input.below(heard_.size())];
    const std::size_t way = input.below(8);
    if (way == 1) {
      record.kind = static_cast<local::RecordKind>(input.below(17));
    } else if (way == 2) {
      damage_payload(record.body, input);
    } else if (way == 3) {
      damage_payload(record.data, input);
    } else if (way == 4) {
      record.key.bytes[input.below(16)] ^= std::byte{1};
    } else if (way >= 5) {
      // Where an opening says its root, its size and the first of its dimensions and splits; or where a place is.
      constexpr std::array<std::size_t, 8> fields{8, 64, 64, 112, 120, 128, 136, 144};
      const bool is_placed = record.kind == local::RecordKind::open_in_region && input.once_in(2);
      damage_number(is_placed ? record.data : record.body, is_placed ? 8 * input.below(2) : input.one_of(fields),
                    input);
    }
    say(record);
  }

  // As the leader does of operations, or almost.
  void decide(Input& input) {
    Heard record{static_cast<local::RecordKind>(input.below(17)), {}, {}, {}};
    if (!heard_.empty() && !input.once_in(8)) {
      record.key = heard_[input.below(heard_.size())].key;
    }
    switch (input.below(4)) {
      case 0:
        break;
      case 1:
        record.body = wire::encode(wire::Failure{Status::error(static_cast<Code>(1 + input.below(9)), "so it is")});
        break;
      case 2: {
        const std::array<std::uint64_t, 2> range{64 * input.below(8), 64 * input.below(16)};
        const auto bytes = std::as_bytes(std::span(range));
        record.body.assign(bytes.begin(), bytes.end());
        break;
      }
      default:
        record.body = input.bytes(input.below(64));
        break;
    }
    switch (input.below(4)) {
      case 0:
        record.data = input.bytes(input.below(16));
        break;
      case 1:
        record.data.resize(4 * input.below(256));
        break;
      default:
        break;
    }
    say(record);
  }

  // As far as the others are.
  void do_its_part() {
    local::RankWords& own = memory_.words(place_);
    for (const auto counter : {&local::RankWords::contributed, &local::RankWords::reduced, &local::RankWords::collected,
                               &local::RankWords::delivered}) {
      std::uint64_t most = 0;
      for (std::uint32_t other = 0; other < memory_.ranks(); ++other) {
        most = std::max(most, (memory_.words(other).*counter).load());
      }
      (own.*counter).store(most);
    }
  }

  const local::GroupMemory& memory_;
  const std::uint32_t place_;
  sim::PromptHands bells_;
  local::MailboxWriter writer_;
  std::vector<local::MailboxReader> readers_;
  std::deque<Heard> heard_;
};

}  // namespace shoal::fuzz
