// What a worker does when a link, a rank or a server is lost, and how it ends: with a goodbye, or with a reason for
// all.
#include <algorithm>
#include <utility>

#include "protocol/worker/impl.h"
#include "wire/bytes.h"
#include "wire/epoch.h"

namespace shoal {

using wire::Header;
using wire::Type;

namespace {

// How long a rank that leaves is there for those who may lack a result that it has.
constexpr Time longest_help = 60 * second;

}  // namespace

Status Worker::Impl::loss_of(std::uint32_t group) const {
  const auto first = std::find_if(lost_.begin(), lost_.end(), [&](const auto& loss) {
    return group < groups_.size() && groups_[group]->needs(loss.first);
  });
  return first == lost_.end() ? broken_ : first->second;
}

void Worker::Impl::lost_rank(std::uint32_t rank, Status why) {
  if (broken_.ok()) {
    lost_.emplace_back(rank, why);
  }
  bool held_server = rank == rank_;
  for (std::uint32_t i = 0; i < config_.servers(); ++i) {
    held_server = held_server || (config_.weights[i] > 0 && config_.server_ranks[i] == static_cast<std::int32_t>(rank));
  }
  if (held_server) {
    break_job(std::move(why));
    return;
  }
  std::vector<std::uint64_t> concerned;
  for (const auto& [number, operation] : operations_) {
    if (operation->group->needs(rank)) {
      concerned.push_back(number);
    }
  }
  std::sort(concerned.begin(), concerned.end());
  for (std::uint64_t number : concerned) {
    end(*find(number), why);
  }
  forget_finished([rank](const Operation& operation) { return operation.group->needs(rank); });
}

void Worker::Impl::break_job(Status why) {
  if (broken_.ok()) {
    broken_ = why;
  }
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, operation] : operations_) {
    numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  for (std::uint64_t number : numbers) {
    end(*find(number), why);
  }
  forget_finished([](const Operation&) { return true; });
}

void Worker::Impl::on_lost(LinkId link, const Status& why) {
  const auto found = links_.find(link);
  const LinkState::Kind kind = found->second.kind;
  const std::uint32_t index = found->second.index;
  links_.erase(found);
  switch (kind) {
    case LinkState::Kind::server:
      servers_[index].link.reset();
      if (servers_[index].attempt != 0) {
        server_unreachable(config_.first_lane(index), servers_[index].attempt);
      } else {
        report(wire::Loss::Kind::server, index, why.message);
      }
      break;
    case LinkState::Kind::peer:
      peers_[index].link.reset();
      report(wire::Loss::Kind::rank, index, why.message);
      peer_losses_.emplace(now_ + worker::peer_loss_wait, index);
      break;
    case LinkState::Kind::coordinator:
      coordinator_.reset();
      if (!goodbye_said_) {
        const auto known =
            std::find_if(lost_.begin(), lost_.end(), [](const auto& loss) { return loss.first == 0; });  // and said why
        break_job(known != lost_.end()
                      ? known->second
                      : Status::error(Code::peer_lost,
                                      rank_text(0, config_) + " is lost, and with it the job: its connection to " +
                                          rank_text(rank_, config_) + " ended (" + why.message + ")",
                                      0));
      }
      if (!ended_) {
        ended_ = true;
        world_.ended();
      }
      break;
  }
}

void Worker::Impl::report_rank(std::uint32_t rank, const std::string& why) {
  report(wire::Loss::Kind::rank, rank, why);
}

// Tells the coordinator, who decides. Not after goodbye: links may end then.
void Worker::Impl::report(wire::Loss::Kind kind, std::uint32_t index, const std::string& why) {
  if (goodbye_said_ || !coordinator_) {
    return;
  }
  wire::Loss loss;
  loss.kind = kind;
  loss.index = index;
  loss.status = Status::error(Code::peer_lost, why);
  wire::Bytes bytes = wire::encode(loss);
  const Header header{.type = Type::report, .length = static_cast<std::uint32_t>(bytes.size())};
  world_.send(*coordinator_, header, std::move(bytes), {}, 0);
}

void Worker::Impl::leave() {
  leaving_ = true;
  acknowledge(now_);
  say_goodbye_if_done();
}

bool Worker::Impl::serves() const {
  for (std::uint32_t i = 0; i < config_.servers(); ++i) {
    if (config_.weights[i] > 0 && config_.server_ranks[i] == static_cast<std::int32_t>(rank_)) {
      return true;
    }
  }
  return false;
}

void Worker::Impl::say_goodbye_if_done() {
  if (!leaving_ || goodbye_said_ || !operations_.empty()) {
    return;
  }
  // Others may need it to end theirs, if a server is lost now; but they are not waited for without end.
  const auto is_needed = [](const auto& entry) { return entry.second->failure.ok(); };
  if (std::any_of(finished_.begin(), finished_.end(), is_needed)) {
    if (give_up_at_ == never) {
      give_up_at_ = now_ + longest_help;
      acknowledge(now_);
    }
    return;
  }
  give_up_at_ = never;
  goodbye_said_ = true;
  forget_finished([](const Operation&) { return true; });
  for (std::uint32_t server = 0; server < config_.servers(); ++server) {
    if (servers_[server].link) {
      ++goodbyes_unsent_;
      send_to_server(server, {.type = Type::leave}, {}, {}, worker::goodbye);
    }
  }
  if (coordinator_) {
    ++goodbyes_unsent_;
    world_.send(*coordinator_, {.type = Type::leave}, {}, {}, worker::goodbye);
  }
}

void Worker::Impl::abort(const std::string& reason) {
  const std::string text = wire::cut(reason);
  if (coordinator_ && !goodbye_said_) {
    wire::Bytes bytes;
    wire::append_text(bytes, text);
    const Header header{.type = Type::abort, .length = static_cast<std::uint32_t>(bytes.size())};
    ++goodbyes_unsent_;
    world_.send(*coordinator_, header, std::move(bytes), {}, worker::goodbye);
  }
  leaving_ = true;
  goodbye_said_ = true;
  break_job(Status::error(Code::aborted, "this rank ends with an error: " + text, static_cast<std::int32_t>(rank_)));
}

}  // namespace shoal
