#include "drivers/sim/network.h"

#include <algorithm>
#include <iomanip>
#include <utility>

#include "base/invariant.h"
#include "reduce/reduce.h"

namespace shoal::sim {

namespace {

// A machine whose deadline does not move although it was told the time would spin a real driver.
constexpr int most_wakes_at_once = 100;

}  // namespace

std::string describe(const wire::Header& header) {
  std::string text = wire::name_of(header.type);
  if (header.operation != 0) {
    text += " operation " + std::to_string(header.operation);
  }
  if (header.type == wire::Type::data || header.type == wire::Type::result) {
    text += ", offset " + std::to_string(header.offset);
  }
  if (header.length != 0) {
    text += ", length " + std::to_string(header.length);
  }
  if (header.credit != 0) {
    text += ", credit " + std::to_string(header.credit);
  }
  if (header.epoch != 0) {
    text += ", epoch " + std::to_string(header.epoch);
  }
  if (header.flags != 0) {
    text += ", flags " + std::to_string(header.flags);
  }
  return text;
}

std::string describe(const End& from) { return from.seat->name + " → " + from.other->seat->name; }

void Network::trace(const std::string& what) {
  if (trace_ != nullptr) {
    *trace_ << std::setw(14) << std::fixed << std::setprecision(3) << static_cast<double>(now()) / 1e6 << " ms  "
            << what << "\n";
  }
}

Time Network::delay() {
  if (timing_.tail > timing_.longest && random_.chance(timing_.tail_chance)) {
    return random_.between(timing_.longest, timing_.tail);
  }
  return random_.between(timing_.shortest, timing_.longest);
}

Seat& Network::add_seat(ActorId actor, std::string name) {
  Seat& seat = seats_.emplace_back();
  seat.actor = actor;
  seat.name = std::move(name);
  return seat;
}

End& Network::add_link(LinkKind kind, Seat& client, std::uint32_t client_rank, Seat& service,
                       std::uint32_t service_index) {
  for (Seat* seat : {&client, &service}) {
    End& end = *ends_.emplace_back(std::make_unique<End>(static_cast<LinkId>(ends_.size())));
    end.kind = kind;
    end.seat = seat;
    end.is_client = seat == &client;
    end.client = client_rank;
    end.service = service_index;
  }
  End& near = *ends_[ends_.size() - 2];
  End& far = *ends_.back();
  near.other = &far;
  far.other = &near;
  return near;
}

void Network::attach_later(End& end, Time when, std::function<void()> attach) {
  End::Chunk chunk;
  chunk.attach = std::move(attach);
  end.last_arrival = std::max(end.last_arrival, when);
  arrive(end, std::move(chunk));
}

void Network::turn(Seat& seat, const std::function<void(Machine&)>& body) {
  if (seat.machine == nullptr) {
    return;
  }
  seat.machine->on_time(now());
  body(*seat.machine);
  if (seat.machine == nullptr) {
    return;
  }
  try {
    seat.machine->check_invariants();
  } catch (const InvariantViolated& violation) {
    observer_.violated(seat.name + ": " + violation.what());
  }
  schedule_deadline(seat);
  if (seat.after) {
    seat.after();
  }
}

void Network::schedule_deadline(Seat& seat) {
  const Time deadline = seat.machine->deadline();
  if (deadline == never) {
    return;
  }
  // Drivers wake late now and then.
  const Time when = std::max(deadline, now()) + (random_.chance(0.5) ? 0 : random_.between(1, timing_.longest));
  if (seat.wake <= when) {
    return;
  }
  seat.wake = when;
  scheduler_.at(when, seat.actor, [this, &seat, when] {
    if (seat.wake != when) {
      return;
    }
    seat.wake = never;
    seat.wakes = seat.last_wake == now() ? seat.wakes + 1 : 0;
    seat.last_wake = now();
    if (seat.wakes > most_wakes_at_once) {
      observer_.violated(seat.name + " asks to be woken at a time that has passed, again and again");
      return;
    }
    turn(seat, [](Machine&) {});
  });
}

End* Network::usable(Seat& seat, LinkId link, const char* action) {
  End* end = link < ends_.size() ? ends_[link].get() : nullptr;
  if (end == nullptr || end->seat != &seat) {
    observer_.violated(seat.name + " " + action + " a link that it does not have: " + std::to_string(link));
    return nullptr;
  }
  if (!end->open) {
    observer_.violated(seat.name + " " + action + " a link that is gone: " + describe(*end));
    return nullptr;
  }
  return end;
}

void Network::send(Seat& seat, LinkId link, const wire::Header& header, Bytes owned,
                   std::span<const std::byte> borrowed, Token token) {
  End* end = usable(seat, link, "sends on");
  if (end == nullptr) {
    return;
  }
  if (header.length != owned.size() + borrowed.size()) {
    observer_.violated(describe(*end) + ": length is not that of the payload: " + describe(header));
    return;
  }
  if (traced()) {
    trace(describe(*end) + "  sends " + describe(header));
  }
  observer_.on_send(*end, header, owned, borrowed);
  End::Outgoing& frame = end->outgoing.emplace_back();
  frame.header = header;
  frame.owned = std::move(owned);
  frame.borrowed = borrowed;
  frame.token = token;
  start_transmitting(*end);
}

void Network::detach(Seat& seat, Token token) {
  for (const auto& end : ends_) {
    if (end->seat != &seat) {
      continue;
    }
    for (End::Outgoing& frame : end->outgoing) {
      if (frame.token == token && frame.detached.empty()) {
        frame.detached.assign(frame.borrowed.begin(), frame.borrowed.end());
        frame.borrowed = frame.detached;
      }
    }
  }
}

void Network::close(Seat& seat, LinkId link) {
  End* end = usable(seat, link, "closes");
  if (end == nullptr) {
    return;
  }
  trace(describe(*end) + "  closes");
  end->open = false;
  end->reader.stop();
  release(*end);
  tell_lost(*end->other, "connection closed by peer");
}

void Network::sum(Seat& seat, Sum sum) {
  if (sum.sources.empty() || !reducible(sum.dtype, sum.op)) {
    observer_.violated(seat.name + " asks for a sum that has no meaning");
    return;
  }
  auto kept = std::make_shared<Sum>(std::move(sum));
  const auto carry_out = [kept] {
    reduce(kept->destination, kept->sources, kept->count, kept->dtype, kept->op, kept->divisor);
  };
  // The sources must stay until on_summed, so half of the sums read them at the last moment.
  const bool at_the_end = random_.chance(0.5);
  if (!at_the_end) {
    scheduler_.at(now() + random_.between(0, timing_.longest), seat.actor, carry_out);
  }
  scheduler_.at(now() + timing_.longest + delay(), seat.actor, [this, &seat, kept, carry_out, at_the_end] {
    if (at_the_end) {
      carry_out();
    }
    if (traced()) {
      trace(seat.name + "  has a sum of " + std::to_string(kept->count) + " elements");
    }
    turn(seat, [&](Machine& machine) { machine.on_summed(kept->token); });
  });
}

void Network::start_transmitting(End& end) {
  if (end.transmitting || end.outgoing.empty() || end.cut) {
    return;
  }
  end.transmitting = true;
  const Time wait = random_.chance(0.5) ? 0 : delay();
  scheduler_.at(now() + wait, end.seat->actor, [this, &end] {
    end.transmitting = false;
    transmit(end);
  });
}

void Network::transmit(End& end) {
  if (end.cut || end.outgoing.empty()) {
    return;
  }
  End::Outgoing& frame = end.outgoing.front();
  const std::size_t rest = frame.borrowed.size() - frame.handed_over;
  const bool in_pieces = random_.chance(timing_.split_chance);
  hand_over(end, frame, in_pieces ? random_.below(rest + 1) : rest);
  start_transmitting(end);
}

// Moves the frame's header, its owned bytes and `bytes` of its borrowed ones into the network.
void Network::hand_over(End& end, End::Outgoing& frame, std::size_t bytes) {
  Bytes moved;
  const auto piece = frame.borrowed.subspan(frame.handed_over, bytes);
  if (!piece.empty() && frame.detached.empty()) {
    observer_.on_read(end, piece);
  }
  const bool begins = !std::exchange(frame.begun, true);
  if (begins) {
    moved.reserve(wire::header_bytes + frame.owned.size() + bytes);
    moved.resize(wire::header_bytes);
    moved.insert(moved.end(), frame.owned.begin(), frame.owned.end());
  }
  moved.insert(moved.end(), piece.begin(), piece.end());
  frame.handed_over += bytes;
  if (begins) {
    const std::span<std::byte> payload = std::span(moved).subspan(wire::header_bytes);
    wire::Header header = frame.header;
    if (forge_chance_ > 0 && random_.chance(forge_chance_)) {
      forge(end, header, payload);
    }
    wire::encode(header, std::span(moved).first<wire::header_bytes>());
    if (corrupt_in_ > 0 && --corrupt_in_ == 0) {
      damage(end, std::span(moved).first(wire::header_bytes));
    }
    const bool has_elements = wire::Type::data == header.type || wire::Type::result == header.type;
    if (corrupt_elements_in_ > 0 && (corrupt_elements_in_ > 1 || (has_elements && !payload.empty())) &&
        --corrupt_elements_in_ == 0) {
      payload[random_.below(payload.size())] ^= std::byte(1U << random_.below(8));
      trace(describe(end) + "  elements damaged: " + describe(header));
    }
  }
  if (frame.handed_over == frame.borrowed.size()) {
    const Token token = frame.token;
    end.outgoing.pop_front();
    finish_sending(end, token);
  }
  if (!moved.empty()) {
    arrive(*end.other, std::move(moved));
  }
}

void Network::arrive(End& end, Bytes bytes) {
  if (bytes.size() > 1 && random_.chance(timing_.split_chance)) {
    // Half of the cuts are just before a payload.
    const bool at_header = bytes.size() > wire::header_bytes && random_.chance(0.5);
    const std::size_t cut = at_header ? wire::header_bytes : 1 + random_.below(bytes.size() - 1);
    End::Chunk first;
    first.bytes.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(cut));
    arrive(end, std::move(first));
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(cut));
  }
  End::Chunk chunk;
  chunk.bytes = std::move(bytes);
  arrive(end, std::move(chunk));
}

// Changes a field of the header, or a byte of the payload.
void Network::forge(const End& end, wire::Header& header, std::span<std::byte> payload) {
  const std::uint64_t change = random_.pick<std::uint64_t>({1, 8, 64, 1U << 20, random_.next()});
  switch (random_.below(payload.empty() ? 8 : 10)) {
    case 0:
      header.operation += change;
      break;
    case 1:
      header.offset += change;
      break;
    case 2:
      header.credit += static_cast<std::uint32_t>(change);
      break;
    case 3:
      header.acknowledged += static_cast<std::uint32_t>(change);
      break;
    case 4:
      header.type = static_cast<wire::Type>(random_.chance(0.1) ? random_.between(26, 27) : random_.between(1, 19));
      break;
    case 5:
      header.dtype = static_cast<DType>(random_.below(14));
      break;
    case 6:
      header.flags ^= 1;
      break;
    case 7:
      header.epoch += static_cast<std::uint32_t>(random_.pick<std::int64_t>({1, -1}));
      break;
    default:
      payload[random_.below(std::min<std::size_t>(payload.size(), 160))] ^= std::byte(1U << random_.below(8));
  }
  trace(describe(end) + "  forged: " + describe(header));
}

void Network::damage(End& end, std::span<std::byte> header) {
  const std::uint64_t first = random_.below(8 * header.size());
  const std::uint64_t length = std::min<std::uint64_t>(8 * header.size() - first, 1 + random_.below(32));
  for (std::uint64_t bit = first; bit < first + length; ++bit) {
    // The first and the last are the ends of the burst, so they change; those between do as they like.
    const bool changes = bit == first || bit + 1 == first + length || random_.chance(0.5);
    header[bit / 8] ^= changes ? std::byte(1U << (bit % 8)) : std::byte{0};
  }
  wire::Header decoded;
  if (wire::decode(header.first<wire::header_bytes>(), decoded).ok()) {
    observer_.violated(describe(end) + ": a damaged header was taken for " + describe(decoded));
  }
  end.other->damaged = forge_chance_ == 0;
  trace(describe(end) + "  a header is damaged");
}

void Network::finish_sending(End& end, Token token) {
  if (token == 0) {
    return;
  }
  end.sent.push_back(token);
  const Time wait = random_.chance(0.3) ? 0 : delay();
  scheduler_.at(now() + wait, end.seat->actor, [this, &end] {
    const Token done = end.sent.front();
    end.sent.pop_front();
    turn(*end.seat, [&](Machine& machine) { machine.on_sent(done); });
  });
}

// The link is gone: what has not been sent never will be, and its memory is the machine's again.
void Network::release(End& end) {
  end.cut = true;
  while (!end.outgoing.empty()) {
    const Token token = end.outgoing.front().token;
    end.outgoing.pop_front();
    finish_sending(end, token);
  }
}

void Network::arrive(End& end, End::Chunk chunk) {
  end.last_arrival = std::max({end.last_arrival, end.silent_until, now() + delay()});
  chunk.due = end.last_arrival;
  end.incoming.push_back(std::move(chunk));
  scheduler_.at(end.last_arrival, end.seat->actor, [this, &end] { receive(end); });
}

// All that is due by now, as one event of the machine's: it was frozen, or the link silent.
void Network::receive(End& end) {
  const auto is_due = [&] { return end.open && !end.incoming.empty() && end.incoming.front().due <= now(); };
  if (!is_due()) {
    return;
  }
  turn(*end.seat, [&](Machine& machine) {
    while (is_due()) {
      End::Chunk chunk = std::move(end.incoming.front());
      end.incoming.pop_front();
      receive(end, machine, chunk);
    }
  });
}

void Network::receive(End& end, Machine& machine, End::Chunk& chunk) {
  if (chunk.attach) {
    trace(describe(end) + "  attached");
    chunk.attach();
    return;
  }
  if (!chunk.lost.ok()) {
    const std::string where = end.reader.in_frame() ? " in the middle of a frame" : "";
    trace(describe(end) + "  lost: " + chunk.lost.message + where);
    chunk.lost.message += where;
    end.open = false;
    machine.on_lost(end.id, chunk.lost);
    observer_.on_lost(end);
    release(end);
    return;
  }
  if (const std::span<std::byte> place = end.reader.place(); !place.empty()) {
    observer_.on_write(end, place.first(std::min(place.size(), chunk.bytes.size())));
  }
  if (!end.reader.consume(chunk.bytes, *this) && end.open) {
    refuse(end, machine, end.reader.why());
  }
}

Placement Network::frame_begins(LinkId link, const wire::Header& header) {
  End& end = *ends_[link];
  if (traced()) {
    trace(describe(*end.other) + "  arrives " + describe(header));
  }
  end.receiving = header;
  observer_.on_arrival(end, header);
  Placement placement = end.seat->machine->on_header(link, header);
  if (end.open && placement.status.ok() && placement.memory == nullptr && header.length > 0) {
    observer_.violated(describe(*end.other) + ": no place for " + describe(header));
    placement.status = Status::error(Code::protocol, "no place for a payload");
  }
  if (end.open && placement.status.ok() && header.length > 0) {
    observer_.on_write(end, {placement.memory, header.length});
  }
  return placement;
}

Status Network::frame_ends(LinkId link) {
  End& end = *ends_[link];
  observer_.on_received(end, end.receiving);
  return end.seat->machine->on_payload(link);
}

void Network::refuse(End& end, Machine& machine, const Status& why) {
  trace(describe(*end.other) + "  refused: " + why.message);
  if (end.damaged && (why.code != Code::protocol || why.message.find("check") == std::string::npos)) {
    observer_.violated(describe(*end.other) + ": a damaged header was refused for something else: " + why.message);
  }
  observer_.on_refused(end, why);
  end.open = false;
  end.reader.stop();
  tell_lost(*end.other, "connection closed by peer");
  machine.on_lost(end.id, why);
  observer_.on_lost(end);
  release(end);
}

// Whatever is on its way arrives, then the end of the link.
void Network::tell_lost(End& end, const std::string& why) {
  if (end.cut && end.other->cut && !end.incoming.empty() && !end.incoming.back().lost.ok()) {
    return;
  }
  end.cut = true;
  end.other->cut = true;
  End::Chunk chunk;
  chunk.lost = Status::error(Code::peer_lost, why);
  arrive(end, std::move(chunk));
}

// What is on its way to this end arrives up to some byte.
void Network::drop_some(End& end) {
  std::size_t kept = random_.below(end.incoming.size() + 1);
  while (kept < end.incoming.size() && end.incoming[kept].attach) {
    ++kept;
  }
  if (kept < end.incoming.size()) {
    End::Chunk& last = end.incoming[kept];
    last.bytes.resize(random_.below(last.bytes.size() + 1));
    kept += last.bytes.empty() ? 0 : 1;
    end.incoming.resize(kept);
  }
}

void Network::break_link(End& end, const std::string& why) {
  if (end.cut || end.other->cut) {
    return;
  }
  trace(describe(end) + "  breaks: " + why);
  for (End* each : {&end, end.other}) {
    drop_some(*each);
    tell_lost(*each, why);
  }
}

void Network::silence(End& end, Time duration) {
  trace(describe(*end.other) + "  is silent");
  end.silent_until = std::max(end.silent_until, now() + duration);
  end.last_arrival = std::max(end.last_arrival, end.silent_until);
  for (End::Chunk& chunk : end.incoming) {
    if (chunk.due < end.silent_until) {
      chunk.due = end.silent_until;
      scheduler_.at(chunk.due, end.seat->actor, [this, &end] { receive(end); });
    }
  }
}

void Network::give_up_link(End& end, Time longest_difference, const std::string& why) {
  if (end.cut || end.other->cut) {
    return;
  }
  trace(describe(end) + "  breaks: " + why);
  for (End* each : {&end, end.other}) {
    std::erase_if(each->incoming, [](const End::Chunk& chunk) { return !chunk.attach; });
    each->silent_until = 0;
    each->last_arrival = now() + random_.between(0, longest_difference);
    tell_lost(*each, why);
  }
}

Time Network::acknowledged_at(ActorId actor) const {
  Time last = now();
  for (const auto& end : ends_) {
    if (end->seat->actor == actor && end->open && !end->cut && !end->other->incoming.empty()) {
      last = std::max(last, end->other->incoming.back().due);
    }
  }
  return last;
}

void Network::end_process(ActorId actor, bool gently) {
  for (const auto& pointer : ends_) {
    End& end = *pointer;
    if (end.seat->actor != actor || !end.open) {
      continue;
    }
    while (gently && !end.cut && !end.outgoing.empty()) {
      End::Outgoing& frame = end.outgoing.front();
      hand_over(end, frame, frame.borrowed.size() - frame.handed_over);
    }
    end.open = false;
    end.reader.stop();
    if (!gently) {
      drop_some(*end.other);
    }
    tell_lost(*end.other, gently ? "connection closed by peer" : "connection reset by peer");
  }
  for (Seat& seat : seats_) {
    if (seat.actor == actor) {
      seat.machine = nullptr;
    }
  }
  scheduler_.stop(actor);
}

}  // namespace shoal::sim
