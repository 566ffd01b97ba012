#include "protocol/server/summation.h"

#include <utility>

#include "base/invariant.h"

namespace shoal::server {

Summation::Summation(const Epochs& epochs, OperationTable& operations, Admission& admission, Results& results,
                     ServerWorld& world)
    : epochs_(epochs), operations_(operations), admission_(admission), results_(results), world_(world) {}

bool Summation::contribute(Operation& operation, std::uint64_t number, std::size_t member, Contribution contribution) {
  Segments& segments = operation.segments();
  if (!segments.add(number, member, std::move(contribution))) {
    return false;
  }
  Segment segment = segments.take(number);
  if (segments.contributors(number) == 1) {
    return finish(operation, number, std::move(segment));
  }
  start_sum(operation, number, std::move(segment));
  return false;
}

void Summation::start_sum(const Operation& operation, std::uint64_t number, Segment segment) {
  const wire::Opening& attributes = operation.attributes();
  Sum sum;
  // The result takes the place of the first contribution.
  const Contribution& first = segment.contributions.front();
  sum.destination = first.buffer.data() + (first.data - first.buffer.data());
  for (const Contribution& contribution : segment.contributions) {
    sum.sources.push_back(contribution.data);
  }
  sum.count = segment.range.size() / size_of(attributes.wire_dtype());
  sum.dtype = attributes.wire_dtype();
  sum.op = attributes.op;
  sum.divisor = attributes.divisor > 0 ? attributes.divisor : static_cast<double>(operation.size());
  sum.token = next_token_++;
  summing_.emplace(sum.token,
                   Summing{epochs_.number(), operation.serial(), &operation.group(), number, std::move(segment)});
  world_.sum(std::move(sum));
}

Operation* Summation::summed(Token token) {
  auto summing = summing_.extract(token);
  Summing& done = summing.mapped();
  if (done.epoch != epochs_.number()) {
    return nullptr;
  }
  Operation* operation = operations_.find(done.serial);
  if (operation == nullptr || operation->is(Operation::State::failed)) {
    results_.refund(*done.group, done.segment);
    return nullptr;
  }
  return finish(*operation, done.number, std::move(done.segment)) ? operation : nullptr;
}

bool Summation::finish(Operation& operation, std::uint64_t number, Segment segment) {
  Segments& segments = operation.segments();
  if (number != segments.next_result()) {
    segments.finish(number, std::move(segment));
    return false;
  }
  if (number == 0) {
    admission_.forget(operation);
  }
  segments.pass_result();
  results_.send(operation, number, std::move(segment));
  while (segments.has_result()) {
    const std::uint64_t next = segments.next_result();
    results_.send(operation, next, segments.take_result());
  }
  return segments.all_answered();
}

void Summation::release(Operation& operation) {
  admission_.forget(operation);
  for (const Segment& segment : operation.segments().take_all()) {
    results_.refund(operation.group(), segment);
  }
}

void Summation::add_summing(std::vector<std::uint64_t>& by_rank) const {
  for (const auto& [token, summing] : summing_) {
    for (std::size_t i = 0; summing.epoch == epochs_.number() && i < summing.segment.contributions.size(); ++i) {
      by_rank[summing.group->ranks[i]] += summing.segment.contributions[i].credit;
    }
  }
}

void Summation::check_invariants() const {
  for (const auto& [token, summing] : summing_) {
    SHOAL_INVARIANT(token < next_token_);
    SHOAL_INVARIANT(summing.epoch <= epochs_.number());
    SHOAL_INVARIANT(summing.segment.contributions.size() == summing.group->ranks.size());
    SHOAL_INVARIANT(summing.segment.arrived == summing.group->ranks.size());
  }
}

}  // namespace shoal::server
