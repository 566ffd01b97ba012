// One server, and workers that have proven who they are and then say what they like: openings, contributions, failures
// and goodbyes as the protocol has them, almost so, or not at all, in any order and broken off anywhere.
//
// What must hold: no memory is used that is not there; what a server sends can be read; what waits to be written to a
// worker does not grow however often it joins; a worker never has more credit than the largest window, and has all of
// it again when nothing is open; buffers stay within what server.h promises; when all links are gone, nothing is left.
#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/limits.h"
#include "drivers/common/sums.h"
#include "fuzz/damage.h"
#include "fuzz/input.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"
#include "protocol/server/server.h"
#include "protocol/sharding.h"
#include "wire/crc32c.h"

using namespace shoal;
using fuzz::Frame;
using fuzz::Input;
using fuzz::require;
using wire::Header;
using wire::Type;

namespace {

constexpr std::uint32_t ranks = 3;
constexpr std::size_t commands_per_input = 200;
constexpr std::size_t names = 4;
constexpr std::size_t leaders = 2;  // by index of the groups
constexpr std::size_t most_open = 6;

JobConfig config_of(Input& input) {
  JobConfig config;
  config.hosts = {"a", "b", "c"};
  config.segment = 256;
  config.credit = 256U << input.below(3);
  config.eager = 512;
  config.small = input.once_in(4) ? 0 : 128;
  config.least_shard = config.small == 0 ? 1 : 256;
  config.least_segment = config.small == 0 ? 64 : 0;
  config.tables.server = config.small == 0 ? 8 * 1024 : 64 * 1024;
  config.ring = input.once_in(8);
  if (!config.ring) {
    config.leaders = {0, 0, 2};
  }
  config.weights = std::array<std::vector<std::uint32_t>, 4>{{{1}, {1, 1}, {3, 1}, {1, 0, 5}}}[input.below(4)];
  config.server_names.assign(config.weights.size(), "s");
  config.server_ranks.assign(config.weights.size(), config.weights.size() == 2 ? 0 : -1);
  config.rate = 1;
  require(problem_with(config).empty(), "the configuration is one");
  return config;
}

// An operation as a worker has opened it.
struct Opened {
  std::uint64_t number = 0;
  wire::Opening opening;
  std::uint64_t next = 0;
  std::uint64_t end = 0;
  std::uint32_t segment = 0;
};

// What a worker knows of itself.
struct Worker {
  bool connected = true;
  bool left = false;
  std::uint64_t next_number = 1;
  std::set<std::size_t> joined;                                              // groups
  std::map<std::pair<std::size_t, std::size_t>, std::uint32_t> occurrences;  // by group and name
  std::map<std::uint64_t, Opened> opened;
  std::vector<std::uint64_t> admitted;
  std::uint32_t results = 0;
  std::int64_t credit = 0;
  std::map<std::uint64_t, std::uint32_t> inlined;  // by number: bytes without an answer
  std::optional<Frame> half_received;              // its header is with the server, its payload is not
  std::byte* place = nullptr;
};

class Job final : public ServerWorld {
 public:
  explicit Job(Input& input)
      : input_(input),
        config_(config_of(input)),
        groups_{world_group_id(ranks), group_id({0, 1}, "g", 1), group_id({2, 0}, "h", 1)},
        most_credit_(config_.credit_of(0, config_.credit)),
        least_credit_(most_credit_),
        server_(config_, 0, *this, pool_) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      workers_[rank].credit = most_credit_;
      server_.attach_worker(rank, rank);
    }
  }

  void run() {
    for (std::size_t i = 0; i < commands_per_input && !input_.empty(); ++i) {
      command();
      check();
    }
    finish();
  }

  // --- Actions of the server ---

  void send(LinkId link, const Header& header, Bytes owned, std::span<const std::byte> borrowed, Token token) override {
    Worker& to = workers_.at(link);
    require(to.connected, "nothing is sent over a link that is gone");
    require(header.length == owned.size() + borrowed.size(), "a header has its payload's length");
    Header read = header;
    require(fuzz::reread(read).ok() && read == header, "a frame that is sent can be read");
    require(borrowed.empty() || token != 0, "the server hears when borrowed memory is free");
    if (header.type == Type::result || header.type == Type::grant) {
      to.credit += header.credit;
    }
    to.results += header.type == Type::result || header.type == Type::sizes ? 1 : 0;
    if (header.type == Type::result || header.type == Type::sizes || header.type == Type::fail) {
      to.inlined.erase(header.operation);
    }
    const auto answered = to.opened.find(header.operation);
    if (header.type == Type::admit && header.flags == wire::flag_full && answered != to.opened.end()) {
      answered->second.segment = config_.window_of(0).segment;
    }
    const bool goes_on =
        header.type == Type::result && answered != to.opened.end() && answered->second.next < answered->second.end;
    if (header.type == Type::admit || goes_on) {
      to.admitted.push_back(header.operation);
    }
    if (header.type == Type::fail) {
      wire::Failure failure;
      require(wire::decode(owned, failure).ok(), "a FAIL that is sent can be read");
    }
    std::optional<Call> told;
    if (header.type == Type::called) {
      wire::Opening called;
      require(wire::decode_called(owned, called).ok() && owned.size() <= wire::called_limit(),
              "a CALLED that is sent can be read");
      const Call call{called.group, called.key};
      // What a lost worker alone has opened is forgotten, and is new when another opens it.
      const bool forgets =
          std::any_of(workers_.begin(), workers_.end(), [](const Worker& one) { return !one.connected; });
      require(forgets || std::none_of(on_wire_.begin(), on_wire_.end(),
                                      [&](const OnWire& one) { return one.link == link && one.told == call; }),
              "nobody is told of a call again while the first frame is on its way");
      told = call;
    }
    on_wire_.push_back({link, borrowed, token, told});
  }
  void detach(Token /*token*/) override { require(false, "a server's buffers are its own"); }
  void close(LinkId /*link*/) override { require(false, "a server closes no link"); }
  void sum(Sum sum) override { sums_.push_back(std::move(sum)); }

 private:
  using Call = std::pair<Hash128, Hash128>;  // group and key
  struct OnWire {
    LinkId link;
    std::span<const std::byte> borrowed;
    Token token;
    std::optional<Call> told;  // by CALLED
  };

  void command() {
    const auto rank = static_cast<std::uint32_t>(input_.below(ranks));
    Worker& worker = workers_[rank];
    switch (input_.below(20)) {
      case 0:
      case 1:
      case 2:
      case 3:
        // Whoever has as many open as it may gives one up instead, as a rule.
        say(rank, worker.opened.size() < most_open || input_.once_in(16) ? opening(worker, rank) : drop_oldest(worker));
        break;
      case 4:
      case 5:
      case 6:
      case 7:
      case 8:
        if (std::optional<Frame> frame = data(worker)) {
          say(rank, std::move(*frame));
        }
        break;
      case 9:
        say(rank, of_number(worker, input_.once_in(2) ? Type::ask : Type::drop));
        break;
      case 10: {
        Frame frame = of_number(worker, Type::fail);
        frame.payload = wire::encode(wire::Failure{Status::error(
            static_cast<Code>(1 + input_.below(9)), std::string(input_.byte(), 'x'), static_cast<int>(input_.byte()))});
        say(rank, std::move(frame));
        break;
      }
      case 11: {
        const bool first = input_.once_in(2);
        const std::vector<std::uint32_t> members =
            first ? std::vector<std::uint32_t>{0, 1} : std::vector<std::uint32_t>{2, 0};
        say(rank, {{.type = Type::group}, wire::encode(wire::GroupMembers{groups_[first ? 1 : 2], members, !first})});
        break;
      }
      case 12:
        say(rank, {{.type = Type::window,
                    .flags = input_.once_in(2) ? wire::flag_competing : std::uint8_t{0},
                    .credit = static_cast<std::uint32_t>(64 * input_.number(2))},
                   {}});
        break;
      case 13:
        if (input_.once_in(2)) {
          const std::size_t group = input_.below(3);
          // As a rule what can be: it joins, and joins no more.
          const bool over = worker.joined.contains(group) != input_.once_in(8);
          over ? static_cast<void>(worker.joined.erase(group)) : static_cast<void>(worker.joined.insert(group));
          const std::uint8_t flags = over ? wire::flag_over : std::uint8_t{0};
          say(rank, {{.type = Type::join, .flags = flags}, wire::encode_join(groups_[group])});
        } else {
          say(rank, {{.type = input_.once_in(4) ? Type::leave : Type::drop}, {}});
        }
        break;
      case 14:
        if (input_.once_in(4)) {
          lose(rank);
        }
        break;
      case 15:
        now_ += static_cast<Time>(input_.size() % static_cast<std::uint64_t>(60 * second));
        server_.on_time(now_);
        break;
      case 16:
      case 17:
        end_sum(input_.byte());
        break;
      case 18:
        end_sending(input_.byte());
        break;
      default:
        complete(rank);
        break;
    }
    // A network takes what it is given.
    while (on_wire_.size() > 64) {
      end_sending(0);
    }
  }

  // --- Frames ---

  Frame opening(Worker& worker, std::uint32_t rank) {
    Opened made;
    made.number = worker.next_number++;
    const std::size_t group = input_.once_in(4) ? 1 + input_.below(2) : 0;
    const std::size_t name = input_.below(names);
    wire::Opening& opening = made.opening;
    opening.name = std::string(1 + name * 3, static_cast<char>('a' + name));
    opening.group = groups_[group];
    opening.occurrence = worker.occurrences[{group, name}]++;
    opening.key = operation_key(groups_[group == leaders ? 0 : group], opening.name, opening.occurrence);
    attributes(opening, group, name);
    if (input_.once_in(12)) {
      opening.failed = true;
      opening.text = std::string(input_.byte(), 't');
    }
    const std::uint32_t home = home_of(opening.key, config_);
    const std::vector<Share> shares = shares_of(opening.bytes, home, config_);
    const Range shard = shares.front().server == 0 ? shares.front().shard : Range{};
    made.segment = config_.segment_for(config_.window_of(0), opening.bytes, shard.size());
    const std::uint32_t first = is_gather(opening.collective)
                                    ? static_cast<std::uint32_t>(opening.bytes <= config_.small ? opening.bytes : 0)
                                    : config_.inline_of(shard.size(), made.segment);
    const bool contributes = opening.collective != Collective::broadcast || group != 0 || opening.root == rank;
    std::uint32_t unanswered = first;
    for (const auto& [number, bytes] : worker.inlined) {
      unanswered += bytes;
    }
    const bool fits = unanswered <= config_.eager || input_.once_in(16);
    opening.inline_bytes = contributes && !opening.failed && fits && input_.once_in(2) ? first : 0;
    if (opening.inline_bytes > 0) {
      worker.inlined.emplace(made.number, opening.inline_bytes);
    }
    made.next = shard.begin + opening.inline_bytes;
    made.end = shard.end;
    Frame frame{{.type = Type::open, .operation = made.number}, wire::encode(opening)};
    frame.payload.resize(frame.payload.size() + opening.inline_bytes, std::byte{1});
    worker.opened.emplace(made.number, std::move(made));
    return frame;
  }

  // The same for everyone who opens this one, as a rule.
  void attributes(wire::Opening& opening, std::size_t group, std::size_t name) {
    auto [known, fresh] = attributes_.try_emplace({opening.group, opening.key});
    wire::Opening& common = known->second;
    if (fresh || input_.once_in(16)) {
      common.collective = static_cast<Collective>(1 + (input_.byte() + name) % 6);
      const bool reduces = common.collective <= Collective::reduce_scatter;
      common.dtype = common.collective == Collective::barrier ? DType::none : static_cast<DType>(1 + input_.below(13));
      common.op = reduces ? static_cast<Operator>(1 + input_.below(5)) : Operator::none;
      common.root = static_cast<std::uint32_t>(input_.below(2));
      const std::size_t element = std::max<std::size_t>(1, size_of(common.dtype));
      const std::uint64_t elements = input_.once_in(16) ? input_.size() >> 8 : input_.number(2) % 1024;
      common.bytes = common.collective == Collective::barrier ? 0 : elements * element;
      common.shape = {static_cast<std::int64_t>(common.bytes / element)};
      if (common.collective == Collective::all_to_all) {
        const auto members = static_cast<std::int64_t>(group == 0 ? ranks : 2);
        const auto each = static_cast<std::int64_t>(common.bytes) / members;
        common.splits.assign(static_cast<std::size_t>(members), each);
        common.splits[0] += static_cast<std::int64_t>(common.bytes) - each * members;
      }
    }
    opening.collective = common.collective;
    opening.op = common.op;
    opening.dtype = common.dtype;
    opening.root = common.root;
    opening.bytes = common.bytes;
    opening.shape = common.shape;
    opening.splits = common.splits;
  }

  Frame drop_oldest(Worker& worker) {
    const std::uint64_t number = worker.opened.extract(worker.opened.begin()).key();
    worker.inlined.erase(number);
    return {{.type = Type::drop, .operation = number}, {}};
  }

  // The next segment of an operation that the server has asked for, within the credit; or anything.
  std::optional<Frame> data(Worker& worker) {
    if (worker.opened.empty()) {
      return Frame{{.type = Type::data, .dtype = DType::uint8, .operation = input_.byte()}, wire::Bytes(input_.byte())};
    }
    const bool asked = !worker.admitted.empty() && !input_.once_in(16);
    const std::uint64_t number = asked ? worker.admitted[input_.below(worker.admitted.size())] : input_.byte();
    const auto found = worker.opened.find(number);
    Opened& operation = found != worker.opened.end() ? found->second : worker.opened.begin()->second;
    const std::uint64_t length = std::min<std::uint64_t>(operation.segment, operation.end - operation.next);
    if ((length == 0 || static_cast<std::int64_t>(length) > worker.credit) && !input_.once_in(16)) {
      return std::nullopt;
    }
    Frame frame{
        {.type = Type::data, .dtype = operation.opening.dtype, .operation = operation.number, .offset = operation.next},
        wire::Bytes(length, std::byte{2})};
    operation.next += length;
    return frame;
  }

  Frame of_number(Worker& worker, Type type) {
    const std::uint64_t back = input_.below(16);
    return {{.type = type, .operation = worker.next_number > back ? worker.next_number - back : 0}, {}};
  }

  // Header and payload, or the header only for now.
  void say(std::uint32_t rank, Frame frame) {
    Worker& worker = workers_[rank];
    complete(rank);
    if (!worker.connected) {
      return;
    }
    frame.header.length = static_cast<std::uint32_t>(frame.payload.size());
    frame.header.acknowledged = worker.results;
    if (input_.once_in(8)) {
      fuzz::damage(frame, input_);
    }
    if (!fuzz::reread(frame.header).ok()) {
      lose(rank);
      return;
    }
    const Placement placement = server_.on_header(rank, frame.header);
    if (!placement.status.ok()) {
      lose(rank);
      return;
    }
    require(frame.header.length == 0 || placement.memory != nullptr, "a payload has a place");
    require(frame.header.length <= std::max<std::size_t>(wire::opening_limit(ranks, limits::inline_bytes), 64 * 1024),
            "no header makes a server take much memory");
    worker.half_received = std::move(frame);
    worker.place = placement.memory;
    if (!input_.once_in(4)) {
      complete(rank);
    }
  }

  void complete(std::uint32_t rank) {
    Worker& worker = workers_[rank];
    if (!worker.half_received) {
      return;
    }
    Frame frame = std::move(*worker.half_received);
    worker.half_received.reset();
    frame.payload.resize(frame.header.length);
    std::copy(frame.payload.begin(), frame.payload.end(), worker.place);
    worker.credit -= frame.header.type == Type::data ? frame.header.length : 0;
    if (!server_.on_payload(rank).ok()) {
      lose(rank);
      return;
    }
    worker.left = worker.left || frame.header.type == Type::leave;
    if (frame.header.type == Type::window) {
      const std::uint32_t credit = config_.credit_of(0, frame.header.credit);
      most_credit_ = std::max(most_credit_, credit);
      least_credit_ = std::min(least_credit_, credit);
    }
  }

  void lose(std::uint32_t rank) {
    Worker& worker = workers_[rank];
    if (!worker.connected) {
      return;
    }
    worker.connected = false;
    worker.half_received.reset();
    server_.on_lost(rank, Status::error(Code::peer_lost, "gone"));
  }

  // --- What follows from actions ---

  void end_sum(std::size_t which) {
    if (sums_.empty()) {
      return;
    }
    const auto place = sums_.begin() + static_cast<std::ptrdiff_t>(which % sums_.size());
    const Sum sum = std::move(*place);
    sums_.erase(place);
    carry_out(sum);
    server_.on_summed(sum.token);
  }

  // Frames of one link end in order.
  void end_sending(std::size_t which) {
    if (on_wire_.empty()) {
      return;
    }
    const LinkId link = on_wire_[which % on_wire_.size()].link;
    const auto place =
        std::find_if(on_wire_.begin(), on_wire_.end(), [link](const OnWire& one) { return one.link == link; });
    const OnWire sent = *place;
    on_wire_.erase(place);
    // Reads it, so that memory that is gone is found.
    static_cast<void>(wire::crc32c(sent.borrowed));
    if (sent.token != 0) {
      server_.on_sent(sent.token);
    }
  }

  void settle() {
    while (!sums_.empty() || !on_wire_.empty()) {
      end_sum(0);
      end_sending(0);
    }
  }

  // --- What must hold ---

  void check() const {
    server_.check_invariants();
    for (const Worker& worker : workers_) {
      require(!worker.connected || worker.credit <= static_cast<std::int64_t>(most_credit_),
              "a worker never has more credit than the largest window");
    }
    // Of each worker: what it may send, openings with their inline data, and the frame that is being received. Of the
    // server: what is on its way to the workers, of which there are at most 64 frames here.
    const std::size_t one_opening = wire::opening_limit(ranks, config_.most_inline());
    const std::size_t of_node = most_credit_ + config_.most_inline() + (most_open + 1) * one_opening;
    require(pool_.taken_bytes() <= ranks * of_node + 70 * one_opening, "buffers stay within their limits");
    require(server_.deadline() > now_, "a machine does not ask for a time that has passed");
    require(server_.table_bytes() <= 2 * config_.tables.server + (ranks + 1) * one_opening,
            "tables stay within their limits");
  }

  void finish() {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      complete(rank);
    }
    settle();
    // Whoever can be asked to drops everything, and has all of its credit again.
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::uint64_t number = 0; number < workers_[rank].next_number && can_speak(rank); ++number) {
        const Header header{.type = Type::drop, .operation = number, .acknowledged = workers_[rank].results};
        require(server_.on_header(rank, header).status.ok() && server_.on_payload(rank).ok(), "DROP is never wrong");
      }
    }
    settle();
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      require(!can_speak(rank) || workers_[rank].credit >= static_cast<std::int64_t>(least_credit_),
              "all credit comes back");
    }
    check();
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      lose(rank);
    }
    settle();
    require(server_.operations() == 0, "without links there are no operations");
    require(pool_.taken_bytes() == 0, "without links no memory is held");
  }

  bool can_speak(std::uint32_t rank) const { return workers_[rank].connected && !workers_[rank].left; }

  Input& input_;
  const JobConfig config_;
  const std::array<Hash128, 3> groups_;  // of all ranks, of some, and of the leaders of all
  std::uint32_t most_credit_;            // that a window has had
  std::uint32_t least_credit_;           // the same
  std::map<Call, wire::Opening> attributes_;
  std::array<Worker, ranks> workers_;
  std::deque<OnWire> on_wire_;
  std::deque<Sum> sums_;
  Time now_ = 0;
  BufferPool pool_{0};
  Server server_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Job(input).run();
  return 0;
}
