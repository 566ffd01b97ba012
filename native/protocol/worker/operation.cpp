#include "protocol/worker/operation.h"

#include <cstring>
#include <limits>

#include "base/invariant.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"

namespace shoal::worker {

Operation::Operation(std::uint64_t number, const Group& group, Submission submission, Time now)
    : number_(number), group_(group), submission_(std::move(submission)), watch_(now) {}

std::string Operation::text() const { return std::string(name_of(submission_.collective)) + " '" + name() + "'"; }

void Operation::measure(const JobConfig& config) {
  const Submission& s = submission_;
  const CollectiveTraits& traits = traits_of(s.collective);
  contributes_ = shoal::contributes(s.collective, group_.own, s.root);
  const bool receives_only = traits.root_gives_alone() && !contributes_;
  bytes_ = failed_here_ ? 0 : receives_only ? s.output_bytes : s.input_bytes;
  opening_.bytes = bytes_;
  const std::uint64_t rows = rows_of(s.shape, group_.size(), group_.senders);
  wanted_ = received_by(s.collective, bytes_, rows, group_.size(), group_.own, s.root);
  is_small_ = bytes_ <= config.small;
  is_gather_ = traits.gathers();
  takes_ring_ = shoal::takes_ring(config, s.collective, bytes_);
  waits_for_others_ = !is_small_ && shoal::waits_for_others(s.collective, group_.own, s.root);
  shares_results_ = !is_small_ && !takes_ring_ && traits.shares_results();
}

void Operation::plan(std::uint32_t home, std::vector<Part> parts) {
  home_ = home;
  parts_ = std::move(parts);
  follows_reference_ =
      std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.follows_reference(); });
}

bool Operation::has_part(std::uint32_t server) const {
  return std::any_of(parts_.begin(), parts_.end(), [server](const Part& part) { return part.server() == server; });
}

std::size_t Operation::index_of(std::uint32_t server) const {
  return static_cast<std::size_t>(
      std::lower_bound(parts_.begin(), parts_.end(), server,
                       [](const Part& part, std::uint32_t index) { return part.server() < index; }) -
      parts_.begin());
}

bool Operation::all_settled() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.is_settled(); });
}

bool Operation::is_done() const {
  return !failed_here_ && std::all_of(parts_.begin(), parts_.end(), [this](const Part& part) {
    return part.is_done() && (part.is_settled() || !waits_for_others_);
  });
}

std::uint64_t Operation::least_segments_sent() const {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const Part& part : parts_) {
    if (!part.all_sent() && !part.is_lengthened()) {
      least = std::min(least, part.segments_sent());
    }
  }
  return least;
}

double Operation::reference_fraction() const {
  double least = 1;
  for (const Part& part : parts_) {
    const Range next = part.segment_at(part.next_to_send());
    if (part.is_reference() && !next.empty() && has_contribution(next)) {
      least = std::min(least, static_cast<double>(part.bytes_sent()) / static_cast<double>(part.shard().size()));
    }
  }
  return least;
}

bool Operation::in_step(const Part& part) const {
  return !part.follows_reference() ||
         static_cast<double>(part.bytes_sent()) <=
             reference_fraction() * static_cast<double>(part.shard().size()) + part.stagger();
}

void Operation::set_output(std::byte* output, std::size_t bytes) {
  submission_.output = output;
  submission_.output_bytes = bytes;
}

Range Operation::add_contributed(Range range) {
  if (submission_.offset) {
    const std::uint64_t begin = *submission_.offset;
    range = intersection(range, {begin, begin + submission_.input_bytes});
    if (range.empty()) {
      return {};
    }
    range = {range.begin - begin, range.end - begin};
  }
  contributed_.add(range);
  return range;
}

std::span<const std::byte> Operation::contribution(Range segment, wire::Bytes& owned) const {
  const bool is_result = shares_results_ && (finished_ || have_.contains(segment));
  if (!is_result) {
    return {submission_.input + segment.begin, static_cast<std::size_t>(segment.size())};
  }
  if (!finished_) {
    owned.insert(owned.end(), submission_.output + segment.begin, submission_.output + segment.end);
    return {};
  }
  const std::size_t before = owned.size();
  owned.resize(before + segment.size());
  retained_.copy(segment, owned.data() + before);
  return {};
}

Range Operation::place(std::uint64_t offset, std::span<const std::byte> result) const {
  const std::uint64_t begin = offset - wanted_.begin;
  std::memcpy(submission_.output + begin, result.data(), result.size());
  return {begin, begin + result.size()};
}

void Operation::keep_input(BufferPool& pool) {
  if (finished_ || !contributes_ || bytes_ == 0) {
    return;
  }
  own_input_ = pool.take(submission_.input_bytes);
  std::memcpy(own_input_.data(), submission_.input, submission_.input_bytes);
  submission_.input = own_input_.data();
}

void Operation::end_later(Status status) {
  if (!ends_later_) {
    ends_later_ = std::move(status);
  }
}

void Operation::finish() {
  finished_ = true;
  ends_later_.reset();
  ring_.reset();
  transfer_.forget_blocks();
  submission_.output = nullptr;
  if (!failure_.ok()) {
    own_input_ = Buffer();
    retained_.clear();
    for (Part& part : parts_) {
      part.fail(part.server() == home_);
    }
  }
  if (!own_input_) {
    submission_.input = nullptr;
  }
}

void Operation::settle(std::uint32_t server) {
  part_of(server).settle();
  if (retained_.empty()) {
    return;
  }
  RangeSet had_by_all;
  for (const Part& part : parts_) {
    if (part.is_settled()) {
      had_by_all.add(part.shard());
    }
  }
  retained_.forget(had_by_all);
}

void Operation::suspend() {
  for (Part& part : parts_) {
    retained_.take_over(part.results());
    if (!is_small_ && needs_admission()) {
      part.add_answered(have_);
    }
  }
}

void Operation::begin_again() {
  const bool has_ended = finished_ || ends_later_;
  opening_.finished = has_ended;
  if (has_ended && !failure_.ok()) {
    opening_.failed = true;
    opening_.code = failure_.code;
    opening_.rank = failure_.rank;
    opening_.text = failure_.message;
  }
  transfer_.restart();
  opening_.exchange = transfer_.number();
  reopened_ = true;
  opening_.have = has_ended ? std::vector<Range>() : have_.ranges();
  parts_.clear();
}

bool Operation::has_result_of(const Part& part) const {
  return finished_ || !needs_admission() || part.is_done() || have_.contains(intersection(part.shard(), wanted_));
}

bool Operation::is_transferred() const { return unsent_ == 0 && (ring_ ? ring_->is_done() : transfer_.is_done()); }

void Operation::check_invariants() const {
  SHOAL_INVARIANT(std::is_sorted(parts_.begin(), parts_.end(),
                                 [](const Part& a, const Part& b) { return a.server() < b.server(); }));
  SHOAL_INVARIANT(!finished_ || (submission_.output == nullptr && !ring_));
  SHOAL_INVARIANT(!finished_ || submission_.input == own_input_.data());
  SHOAL_INVARIANT(!ends_later_ || (ring_ && ring_->sums() > 0));
  for (const Part& part : parts_) {
    part.check_invariants();
  }
  transfer_.check_invariants();
  if (ring_) {
    ring_->check_invariants();
  }
  retained_.check_invariants();
  watch_.check_invariants();
}

// The texts and lists are there twice: as submitted, and in the opening. Four entries in tables lead to it.
std::size_t record_bytes(const Submission& submission, std::size_t servers) {
  constexpr std::size_t entry = 64;
  const std::size_t listed = 8 * (submission.shape.size() + submission.splits.size());
  return sizeof(Operation) + 4 * entry + servers * (sizeof(Part) + sizeof(wire::MissingRange)) +
         2 * (submission.name.size() + submission.failure.size() + listed);
}

}  // namespace shoal::worker
