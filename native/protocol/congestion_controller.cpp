#include "protocol/congestion_controller.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

namespace shoal {

namespace {

// Of the rate that the job has when it is alone: what it is content with, and what it aims at.
constexpr double least_share = 0.52;
constexpr double fair_share = 0.57;
constexpr double most_share = 0.62;

// Below this, a window may be too large for the queues, or too small.
constexpr double good_share = 0.88;
constexpr int poor_samples = 3;   // in a row, before one or two segments are tried
constexpr int good_samples = 10;  // in a row, after which it is forgotten what did not pay

constexpr int generous_samples = 3;  // above most_share in a row, before links compete no more

// Packets are being lost where at least so many of the last ten samples saw it. (One may be of a packet that was late.)
constexpr std::uint32_t samples_remembered = (1U << 10U) - 1;
constexpr int lossy_samples = 2;

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
// Longer where links compete or yield from then on: congestion controls of both sides have to learn what that brings.
constexpr Time least_settling_of_manner = second / 5;
constexpr Time least_measured = second / 10;

// So long without an operation, and a new burst begins; and how much of its begin is not measured at most.
constexpr Time least_pause = second / 50;
constexpr Time longest_start = second / 20;

constexpr Time first_wait = second / 2;
constexpr Time longest_wait = 60 * second;
// Links that compete where that does not bring half go on until larger windows have been in vain for so long.
constexpr Time wait_before_yielding = 8 * second;

}  // namespace

CongestionController::CongestionController(const JobConfig& config)
    : segment_(config.segment),
      usual_(std::max(config.credit, config.rate == 0 ? 0 : usual_segments * config.segment)),
      least_(config.rate == 0 ? config.credit : config.segment),
      most_(config.rate == 0 ? config.credit : config.most_credit()),
      per_credit_(static_cast<double>(std::accumulate(config.weights.begin(), config.weights.end(), std::uint64_t{0})) /
                  *std::max_element(config.weights.begin(), config.weights.end())),
      setting_{config.credit, false},
      best_(static_cast<double>(config.rate)),
      settles_for_(least_settling),
      wait_(first_wait) {}

void CongestionController::begin(Time now) {
  since_ = now;
  if (!paused_at_ || now - *paused_at_ >= least_pause) {
    // Of short bursts some must remain.
    skip_ = paused_at_ ? std::min(longest_start, burst_ / 2) : longest_start;
    burst_ = 0;
  }
}

void CongestionController::pause(Time now) {
  busy_ += measured(now);
  burst_ += flowing(now);
  since_.reset();
  paused_at_ = now;
}

// Of the time since since_, what is not the begin of a burst.
Time CongestionController::measured(Time now) const {
  const Time time = flowing(now);
  return time - std::clamp<Time>(skip_ - burst_, 0, time);
}

bool CongestionController::answered(std::uint64_t bytes, std::uint64_t others, Time now) {
  if (least_ == most_ || !since_ || burst_ + flowing(now) < skip_) {
    return false;
  }
  bytes_ += bytes + others;
  guessed_ = guessed_ || others > 0;
  const Time busy = busy_ + measured(now);
  const double moved = static_cast<double>(bytes_);
  return settling_ ? busy >= settles_for_ && moved >= settling_turnovers * turnover()
                   : busy >= least_measured && moved >= measured_turnovers * turnover();
}

std::optional<CongestionController::Setting> CongestionController::decide(std::uint64_t retransmissions, Time now) {
  const Setting before = setting_;
  if (!settling_) {
    const double busy = static_cast<double>(busy_ + measured(now));
    judge(static_cast<double>(bytes_) / busy * second, retransmissions > repairs_, now);
  }
  settling_ = setting_ != before;
  if (settling_) {
    settles_for_ = setting_.competing == before.competing ? least_settling : least_settling_of_manner;
  }
  repairs_ = retransmissions;
  bytes_ = 0;
  guessed_ = false;
  busy_ = 0;
  burst_ += flowing(now);
  since_ = now;
  return settling_ ? std::optional(setting_) : std::nullopt;
}

void CongestionController::judge(double rate, bool lossy, Time now) {
  if (!guessed_) {
    best_ = std::max(best_, rate);
  }
  losses_ = (losses_ << 1U | (lossy ? 1U : 0U)) & samples_remembered;
  if (!decided(rate, now)) {
    return;
  }
  const double share = rate / best_;
  if (share <= most_share) {
    generous_ = 0;
  } else if (relax(share)) {
    return;
  }
  const bool beside_others = setting_.credit > usual_ || setting_.competing;
  note_good(share);
  if (now < not_before_ || share >= (beside_others ? least_share : good_share)) {
    return;
  }
  const bool far_below = share < least_share;
  if (!far_below && ++poor_ < poor_samples) {
    return;
  }
  if (const std::optional<Way> way = next_way(far_below, lossy)) {
    poor_ = 0;
    way_ = *way;
    before_ = Trial{setting_, rate};
    setting_ = setting_for(way_, fair_share / share, far_below);
  }
}

bool CongestionController::loses() const { return std::popcount(losses_) >= lossy_samples; }

void CongestionController::note_good(double share) {
  if (share < good_share) {
    good_ = 0;
    return;
  }
  poor_ = 0;
  if (++good_ == good_samples) {
    paid();
    not_before_ = 0;
  }
}

// With more than its half the job goes back to what is usual, one step at a time: smaller windows, then no insisting.
// Returns whether there was such a step.
bool CongestionController::relax(double share) {
  if (setting_.credit > usual_) {
    const double factor = std::max(fair_share / share, 1 / largest_step);
    setting_.credit = std::max(usual_, whole_segments(factor * setting_.credit, 0));
    return true;
  }
  if (!setting_.competing || ++generous_ < generous_samples) {
    return false;
  }
  generous_ = 0;
  setting_.competing = false;
  return true;
}

// What did not pay is not tried twice in a row where there is another way.
std::optional<CongestionController::Way> CongestionController::next_way(bool far_below, bool lossy) const {
  const auto open = [&](Way way) {
    switch (way) {
      case Way::growing:
        // Without others a window is too large where packets are lost, and can be too small only where none are.
        return setting_.credit < (far_below ? most_ : usual_) && (far_below || !lossy);
      case Way::insisting:
        // Where nothing is lost, nobody has given way.
        return far_below && !setting_.competing && loses() && (failed_ || setting_.credit >= most_);
      case Way::yielding:
        return setting_.competing && wait_ >= wait_before_yielding;
      case Way::shrinking:
        return setting_.credit > least_ && setting_.credit <= usual_ && lossy;
    }
    return false;
  };
  constexpr std::array beside_others{Way::growing, Way::insisting, Way::yielding, Way::shrinking};
  constexpr std::array alone{Way::shrinking, Way::growing};
  const auto choose = [&](std::span<const Way> ways) -> std::optional<Way> {
    const auto last = failed_ ? std::find(ways.begin(), ways.end(), way_) : ways.end();
    std::size_t next = last == ways.end() ? 0 : static_cast<std::size_t>(last - ways.begin()) + 1;
    for (std::size_t tried = 0; tried < ways.size(); ++tried, ++next) {
      if (open(ways[next % ways.size()])) {
        return ways[next % ways.size()];
      }
    }
    return std::nullopt;
  };
  return far_below ? choose(beside_others) : choose(alone);
}

CongestionController::Setting CongestionController::setting_for(Way way, double wanted, bool far_below) const {
  const double factor = far_below ? std::clamp(wanted, smallest_step, largest_step) : largest_step;
  switch (way) {
    case Way::growing:
      return {grown(factor, far_below ? most_ : usual_), setting_.competing};
    case Way::insisting:
      return {grown(factor, most_), true};
    case Way::yielding:
      return {setting_.credit, false};
    case Way::shrinking:
      return {std::max(least_, whole_segments(setting_.credit / largest_step, 0)), setting_.competing};
  }
  return setting_;
}

std::uint32_t CongestionController::grown(double factor, std::uint32_t limit) const {
  return std::min(limit, whole_segments(factor * setting_.credit, 1));
}

// A part of a segment is of no use: nothing is sent for it. Down to whole ones, and `more` of them.
std::uint32_t CongestionController::whole_segments(double credit, std::uint32_t more) const {
  return (static_cast<std::uint32_t>(credit) / segment_ + more) * segment_;
}

// Whether `other` is to be preferred.
bool CongestionController::pays(const Trial& other, const Trial& present) const {
  if (present.setting.competing && !other.setting.competing) {
    return other.rate >= present.rate;
  }
  const double larger = static_cast<double>(other.setting.credit) / present.setting.credit;
  const bool beside_others = larger > 1 && other.setting.credit > usual_;
  return other.rate >= present.rate * (beside_others ? std::pow(larger, worth) : worth_a_change);
}

void CongestionController::paid() {
  wait_ = first_wait;
  failed_ = false;
}

bool CongestionController::decided(double rate, Time now) {
  const Trial current{setting_, rate};
  if (before_ && !pays(current, *before_)) {
    // Or has the network changed in the meantime? The one before says.
    setting_ = before_->setting;
    before_.reset();
    tried_ = current;
    return false;
  }
  if (tried_ && !pays(*tried_, current)) {
    failed_ = true;
    tried_.reset();
    if (way_ == Way::growing && !setting_.competing && loses() && rate / best_ < least_share) {
      return true;  // insisting comes next, at once
    }
    not_before_ = now + wait_;
    wait_ = std::min(2 * wait_, longest_wait);
    return true;
  }
  if (tried_) {
    setting_ = tried_->setting;
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
