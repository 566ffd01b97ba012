#include "protocol/pace.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace shoal {

namespace {

// Of the rate that the job has when it is alone: what it is content with, and what it aims at.
constexpr double least_share = 0.52;
constexpr double fair_share = 0.57;
constexpr double most_share = 0.62;

// Below this, a window may be too large for the queues, or too small.
constexpr double good_share = 0.88;
constexpr int poor_samples = 3;  // in a row, before one or two segments are tried

// One to be on its way while another is answered.
constexpr std::uint32_t usual_segments = 2;

constexpr double largest_step = 2;
constexpr double smallest_step = 1.1;

// What a window that is f times as large must bring: f to this power times the rate. (Where a queue is somebody else's,
// a share s of it becomes f s / (1 + (f - 1) s).)
constexpr double worth = 0.35;

// What any other change must bring: this many times the rate.
constexpr double worth_a_change = 1.15;

// After a change the first turnovers are not measured: queues take so long to become what they will be.
constexpr double settling_turnovers = 1;
constexpr double measured_turnovers = 2;
constexpr Time least_settling = second / 50;
constexpr Time least_measured = second / 10;

constexpr Time first_wait = second / 2;
constexpr Time longest_wait = 60 * second;

}  // namespace

Pace::Pace(const JobConfig& config)
    : segment_(config.segment),
      usual_(std::max(config.credit, config.rate == 0 ? 0 : usual_segments * config.segment)),
      least_(config.rate == 0 ? config.credit : config.segment),
      most_(config.rate == 0 ? config.credit : config.most_credit()),
      per_credit_(static_cast<double>(std::accumulate(config.weights.begin(), config.weights.end(), std::uint64_t{0})) /
                  *std::max_element(config.weights.begin(), config.weights.end())),
      credit_(config.credit),
      best_(static_cast<double>(config.rate)),
      wait_(first_wait) {}

void Pace::begin(Time now) { since_ = now; }

void Pace::pause(Time now) {
  busy_ += now - since_.value_or(now);
  since_.reset();
}

bool Pace::answered(std::uint64_t bytes, Time now) {
  if (least_ == most_ || !since_) {
    return false;
  }
  bytes_ += bytes;
  const Time busy = busy_ + now - *since_;
  const double moved = static_cast<double>(bytes_);
  return settling_ ? busy >= least_settling && moved >= settling_turnovers * turnover()
                   : busy >= least_measured && moved >= measured_turnovers * turnover();
}

std::optional<std::uint32_t> Pace::decide(std::uint64_t repairs, Time now) {
  const std::uint32_t before = credit_;
  if (!settling_) {
    const double busy = static_cast<double>(busy_ + now - since_.value_or(now));
    judge(static_cast<double>(bytes_) / busy * second, repairs > repairs_, now);
  }
  settling_ = credit_ != before;
  repairs_ = repairs;
  bytes_ = 0;
  busy_ = 0;
  since_ = now;
  return credit_ == before ? std::nullopt : std::optional(credit_);
}

void Pace::judge(double rate, bool lossy, Time now) {
  best_ = std::max(best_, rate);
  if (!decided(rate, now)) {
    return;
  }
  const double share = rate / best_;
  const double wanted = fair_share / share;
  if (share > most_share && credit_ > usual_) {
    credit_ = std::max(usual_, whole_segments(std::max(wanted, 1 / largest_step) * credit_, 0));
    return;
  }
  poor_ = share >= good_share ? 0 : poor_;
  if (now < not_before_ || share >= (credit_ > usual_ ? least_share : good_share)) {
    return;
  }
  const bool far_below = share < least_share;
  if (!far_below && ++poor_ < poor_samples) {
    return;
  }
  const std::uint32_t limit = far_below ? most_ : usual_;
  // Without others a window is too large where packets are lost, and can be too small only where none are.
  const bool may_grow = credit_ < limit && (far_below || !lossy);
  const bool may_shrink = credit_ > least_ && credit_ <= usual_ && lossy;
  // What did not pay is not tried twice in a row where there is another way.
  const bool growing = failed_ ? *failed_ == Way::shrinking : far_below;
  if (may_grow && (growing || !may_shrink)) {
    attempt(far_below ? std::clamp(wanted, smallest_step, largest_step) : largest_step, limit, rate);
  } else if (may_shrink) {
    attempt(1 / largest_step, least_, rate);
  }
}

void Pace::attempt(double factor, std::uint32_t limit, double rate) {
  poor_ = 0;
  before_ = Window{credit_, rate};
  const double tried = factor * credit_;
  credit_ = factor > 1 ? std::min(limit, whole_segments(tried, 1)) : std::max(limit, whole_segments(tried, 0));
}

// A part of a segment is of no use: nothing is sent for it. Down to whole ones, and `more` of them.
std::uint32_t Pace::whole_segments(double credit, std::uint32_t more) const {
  return (static_cast<std::uint32_t>(credit) / segment_ + more) * segment_;
}

// Whether `other` is to be preferred.
bool Pace::pays(const Window& other, const Window& present) const {
  const double larger = static_cast<double>(other.credit) / present.credit;
  const bool beside_others = larger > 1 && other.credit > usual_;
  return other.rate >= present.rate * (beside_others ? std::pow(larger, worth) : worth_a_change);
}

void Pace::paid() {
  wait_ = first_wait;
  failed_.reset();
}

bool Pace::decided(double rate, Time now) {
  const Window current{credit_, rate};
  if (before_ && !pays(current, *before_)) {
    // Or has the network changed in the meantime? The one before says.
    credit_ = before_->credit;
    before_.reset();
    tried_ = current;
    return false;
  }
  if (tried_ && !pays(*tried_, current)) {
    failed_ = tried_->credit > current.credit ? Way::growing : Way::shrinking;
    tried_.reset();
    not_before_ = now + wait_;
    wait_ = std::min(2 * wait_, longest_wait);
    return true;
  }
  if (tried_) {
    credit_ = tried_->credit;
    tried_.reset();
    paid();
    return false;
  }
  if (before_) {
    before_.reset();
    paid();
  }
  return true;
}

}  // namespace shoal
