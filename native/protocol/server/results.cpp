#include "protocol/server/results.h"

#include <algorithm>
#include <utility>

#include "base/invariant.h"
#include "protocol/collectives.h"

namespace shoal::server {

using wire::Header;
using wire::Type;

Results::Results(const Terms& terms, Links& links, Credit& credit, Receipts& receipts)
    : terms_(terms), links_(links), credit_(credit), receipts_(receipts), unanswered_broadcasts_(terms.ranks()) {}

void Results::send(Operation& operation, std::uint64_t number, Segment segment) {
  const wire::Opening& attributes = operation.attributes();
  Segments& segments = operation.segments();
  const bool last = number + 1 == segments.count() && !segments.is_resumed();
  const bool root_is_last = traits_of(attributes.collective).root_gives_alone();
  const std::uint64_t settled = receipts_.settled(operation.serial());
  const Token token = next_token_++;
  InFlight& in_flight = in_flight_[token];
  const std::byte* data = nullptr;
  if (!segment.contributions.empty()) {
    // The result is in the place of the first contribution.
    const auto holder = std::find_if(segment.contributions.begin(), segment.contributions.end(),
                                     [](const Contribution& one) { return one.data != nullptr; });
    data = holder->data;
    in_flight.buffer = std::move(holder->buffer);
  }
  // Servers visit members in an order rotated by their place, so that not all send to the same one first.
  for (std::size_t turn = 0; turn < operation.size(); ++turn) {
    const std::size_t i = (terms_.index() + turn) % operation.size();
    if (!segments.is_answered(i, number)) {
      continue;
    }
    const std::uint32_t rank = operation.rank(i);
    const std::uint32_t spent = segment.contributions.empty() ? 0 : segment.contributions[i].credit;
    // Who had the result before the epoch may have left since.
    const bool is_news = !operation.member(i).opening.finished;
    const std::uint64_t serial = is_news ? operation.serial() : Receipts::no_operation;
    if (is_news) {
      receipts_.expect(serial, number);
    }
    Header header{.type = Type::result,
                  .flags = last ? wire::flag_last : std::uint8_t{0},
                  .dtype = attributes.wire_dtype(),
                  .operation = operation.member(i).number,
                  .offset = segment.range.begin,
                  .credit = spent};
    if (root_is_last && i == attributes.root) {
      in_flight.answers_root = true;
      in_flight.root = rank;
      in_flight.answer = header;
      in_flight.serial = serial;
      in_flight.segment = number;
      unanswered_broadcasts_[rank][header.operation].push_back(token);
      credit_.answer(rank, 0, operation.take_eager(i));  // its credit comes with the answer
      continue;
    }
    credit_.answer(rank, spent, operation.take_eager(i));
    header.credit = credit_.give_back(rank, spent);
    header.acknowledged = static_cast<std::uint32_t>(segments.settled_for(i, settled));
    const Range part = operation.lacks(i, number) ? intersection(segment.range, operation.wanted(i)) : Range{};
    if (part.empty()) {
      if (links_.send(rank, header)) {
        receipts_.sent(rank, serial, number);
      }
      continue;
    }
    header.offset = part.begin;
    if (links_.send(rank, header, {}, {data + (part.begin - segment.range.begin), part.size()}, token)) {
      ++in_flight.unwritten;
      receipts_.sent(rank, serial, number);
    }
  }
  if (in_flight.unwritten == 0) {
    end(token);
  }
}

bool Results::send_block(std::uint32_t rank, std::uint64_t number, DType dtype, Buffer buffer, std::size_t bytes) {
  const Token token = next_token_++;
  InFlight& in_flight = in_flight_[token];
  in_flight.buffer = std::move(buffer);
  in_flight.unwritten = 1;
  const Header header{.type = Type::result, .flags = wire::flag_last, .dtype = dtype, .operation = number};
  if (!links_.send(rank, header, {}, {in_flight.buffer.data(), bytes}, token)) {
    in_flight_.erase(token);
    return false;
  }
  return true;
}

void Results::refund(const Group& group, const Segment& segment) {
  for (std::size_t i = 0; i < segment.contributions.size(); ++i) {
    const std::uint32_t rank = group.ranks[i];
    const std::uint32_t credit = segment.contributions[i].credit;
    credit_.answer(rank, credit);
    links_.grant(rank, credit_.give_back(rank, credit));
  }
}

void Results::written(Token token) {
  const auto found = in_flight_.find(token);
  if (found != in_flight_.end() && --found->second.unwritten == 0) {
    end(token);
  }
}

void Results::end(Token token) {
  const auto ended = in_flight_.find(token);
  if (!ended->second.answers_root) {
    in_flight_.erase(ended);
    return;
  }
  const std::uint32_t root = ended->second.root;
  const auto broadcast = unanswered_broadcasts_[root].find(ended->second.answer.operation);
  std::deque<Token>& unanswered = broadcast->second;
  while (!unanswered.empty() && in_flight_.at(unanswered.front()).unwritten == 0) {
    auto done = in_flight_.extract(unanswered.front());
    unanswered.pop_front();
    Header& answer = done.mapped().answer;
    credit_.answer(root, answer.credit);
    answer.credit = credit_.give_back(root, answer.credit);
    if (links_.send(root, answer)) {
      receipts_.sent(root, done.mapped().serial, done.mapped().segment);
    }
  }
  if (unanswered.empty()) {
    unanswered_broadcasts_[root].erase(broadcast);
  }
}

void Results::begin_epoch() {
  std::erase_if(in_flight_, [](const auto& entry) { return entry.second.unwritten == 0; });
  for (auto& [token, in_flight] : in_flight_) {
    in_flight.answers_root = false;
  }
  for (auto& of_worker : unanswered_broadcasts_) {
    of_worker.clear();
  }
}

void Results::add_unanswered(std::vector<std::uint64_t>& by_rank) const {
  for (const auto& [token, in_flight] : in_flight_) {
    by_rank[in_flight.root] += in_flight.answers_root ? in_flight.answer.credit : 0;
  }
}

void Results::check_invariants() const {
  std::size_t answers = 0;
  for (const auto& [token, in_flight] : in_flight_) {
    SHOAL_INVARIANT(in_flight.unwritten > 0 || in_flight.answers_root);
    answers += in_flight.answers_root ? 1 : 0;
  }
  for (const auto& of_worker : unanswered_broadcasts_) {
    for (const auto& [number, tokens] : of_worker) {
      SHOAL_INVARIANT(!tokens.empty());
      SHOAL_INVARIANT(in_flight_.at(tokens.front()).unwritten > 0);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const InFlight& in_flight = in_flight_.at(tokens[i]);
        SHOAL_INVARIANT(in_flight.answers_root && in_flight.answer.operation == number);
        SHOAL_INVARIANT(i == 0 || tokens[i - 1] < tokens[i]);
        --answers;
      }
    }
  }
  SHOAL_INVARIANT(answers == 0);
}

}  // namespace shoal::server
