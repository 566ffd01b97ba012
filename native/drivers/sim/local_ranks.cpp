#include "drivers/sim/local_ranks.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <variant>

#include "base/invariant.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"
#include "reduce/reduce.h"

namespace shoal::sim {

namespace {

// Whoever is not woken looks by itself after so long.
constexpr Time longest_sleep = second;

// Thrown where a rank dies; nothing catches it on its way out of the group.
struct Death {};

// Small, so that chunks and records take turns in them.
local::Shape shape_for(std::uint32_t ranks, Random& random) {
  local::Shape shape;
  shape.ranks = ranks;
  shape.mailbox = static_cast<std::size_t>(random.pick({4, 8, 16, 64})) * 1024;
  shape.slot = 64 * ranks * static_cast<std::size_t>(random.between(1, 4));
  shape.slots = static_cast<std::uint32_t>(random.between(1, 3));
  shape.results = static_cast<std::uint32_t>(random.between(1, 3));
  shape.share = 64 * static_cast<std::size_t>(random.between(1, 8));
  shape.share_up = 64 * static_cast<std::size_t>(random.between(1, 4));
  return shape;
}

}  // namespace

// One rank in one local group.
class LocalRanks::Member final : private local::World {
 public:
  Member(LocalRanks& ranks, std::uint32_t rank, const HeapGroup& memory, std::vector<std::uint32_t> members,
         bool has_other_nodes)
      : ranks_(ranks),
        rank_(rank),
        place_(static_cast<std::uint32_t>(std::find(members.begin(), members.end(), rank) - members.begin())),
        memory_(memory),
        members_(members),
        reached_(members.size()),
        group_(memory, ranks.plan_.config, std::move(members), rank, has_other_nodes, *this) {}

  local::LocalGroup& group() { return group_; }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t place() const { return place_; }
  const HeapGroup& memory() const { return memory_; }
  std::uint32_t number = 0;  // in the worker, of the group that it was made for

  void submit(Submission submission) {
    memory_.words(place_).open.fetch_add(1);
    submitted_.emplace_back(std::move(submission));
    wake(0);
  }
  void input_ready(std::uint64_t handle) {
    submitted_.emplace_back(handle);
    wake(0);
  }
  void join(std::uint32_t group, bool over) {
    submitted_.emplace_back(Join{group, over});
    wake(0);
  }
  void received(std::uint64_t handle, Range range) { ring_own(network_results_.received(handle, range)); }
  void averaged(std::uint64_t handle, Status status) { ring_own(network_results_.ended(handle, std::move(status))); }
  std::byte* allocate_told(std::uint64_t handle, const BlockBytes& by_node) {
    return network_results_.allocate(handle, by_node);
  }
  void gone(std::uint32_t rank) {
    group_.note_gone(rank);
    wake(0);
  }
  void leave() {
    group_.leave();
    wake(0);
  }

  // As a driver that is told of a loss: what can still be finished is, as far as its time goes.
  void fail_all(const Status& why) {
    if (!group_.broken().ok()) {
      return;
    }
    take_network_results();
    take_steps(ranks_.network_.random().between(0, 100));
    if (is_dead_) {
      return;
    }
    take_network_results();
    group_.fail_all(why, true);
    wake(0);
  }

  // It has something to do after so long.
  void wake(Time after) {
    if (awake_) {
      return;
    }
    awake_ = true;
    Network& network = ranks_.network_;
    network.scheduler().at(network.now() + after, ranks_.hosts_[rank_].actor, [this] { act(false); });
  }

  void be_gone() {
    group_.detach_arrays();
    memory_.words(place_).gone.store(1);
    for (std::uint32_t other = 0; other < memory_.ranks(); ++other) {
      if (other != place_ && memory_.words(other).blocked.load() != 0) {
        ring(other, true);
      }
    }
    ring_all();
  }

 private:
  // Some steps, then others have their turn.
  void act(bool by_clock) {
    awake_ = false;
    Random& random = ranks_.network_.random();
    take_network_results();
    const bool all = take_steps(random.chance(0.3) ? 1'000 : random.between(1, 8), by_clock);
    if (!all) {
      wake(random.chance(0.5) ? 0 : ranks_.network_.delay());
    } else if (group_.deadline() != never) {
      sleep_until(group_.deadline());
    }
  }

  // Whether there was nothing more to do.
  bool take_steps(std::int64_t most, bool by_clock = false) {
    if (is_dead_) {
      return true;
    }
    Network& network = ranks_.network_;
    group_.on_time(network.now());
    bool is_done = true;
    guarded([&] {
      while (!submitted_.empty()) {
        if (auto* const submission = std::get_if<Submission>(&submitted_.front())) {
          group_.call(std::move(*submission));
        } else if (const auto* const handle = std::get_if<std::uint64_t>(&submitted_.front())) {
          group_.input_ready(*handle, "");
        } else if (const auto& join = std::get<Join>(submitted_.front()); join.over) {
          group_.end_join(join.group);
        } else {
          group_.join(join.group);
        }
        submitted_.pop_front();
      }
      by_clock_ = by_clock;
      bool more = true;
      std::int64_t taken = 0;
      for (; taken < most && more; ++taken) {
        more = group_.step() || group_.work();
        group_.check_invariants();
      }
      if (network.traced()) {
        network.trace("rank " + std::to_string(rank_) + "  takes " + std::to_string(taken) + " steps in group " +
                      std::to_string(number) + (more ? "" : ", then sleeps"));
      }
      by_clock_ = false;
      is_done = !more;
      ring_all();
    });
    return is_done;
  }

  // Ends where the rank dies.
  void guarded(const std::function<void()>& work) {
    try {
      is_dead_ ? void() : work();
    } catch (const Death&) {
      rung_.clear();
      awake_ = is_dead_ = true;
      const auto dies = [&user = ranks_.user_, rank = rank_] { user.on_death(rank); };
      ranks_.network_.scheduler().at(ranks_.network_.now(), outside, dies);
    } catch (const std::exception& error) {
      ranks_.user_.violated(name() + ": " + error.what());
    }
  }

  void take_network_results() {
    for (const local::NetworkResult& arrival : network_results_.take()) {
      guarded([&] {
        arrival.ended ? group_.averaged(arrival.handle, arrival.status, arrival.told)
                      : group_.chunk_averaged(arrival.handle, arrival.chunk);
      });
    }
  }

  void sleep_until(Time when) {
    if (wakes_at_ == when) {
      return;
    }
    wakes_at_ = when;
    ranks_.network_.scheduler().at(when, ranks_.hosts_[rank_].actor, [this, when] {
      // Where it is awake already, it looks what time it is when it acts, and sleeps anew.
      if (wakes_at_ == when) {
        wakes_at_ = never;
        if (!awake_) {
          act(true);
        }
      }
    });
  }

  std::string name() const { return "rank " + std::to_string(rank_) + " among the ranks of its machine"; }

  // --- Bells: rung when the steps have been taken ---

  void ring(std::uint32_t place, bool always) override { rung_.emplace_back(place, always); }
  // Who is in the middle of its steps rings at their end.
  bool others_are_at_it() const {
    const std::vector<Member*>& all = ranks_.sharing_[&memory_];
    return std::any_of(all.begin(), all.end(), [](const Member* one) { return one != nullptr && one->awake_; });
  }
  void ring_own(bool any) {
    if (any && memory_.words(place_).open.load() > 0) {
      wake(ranks_.network_.delay());
    }
  }
  void ring_all() {
    for (const auto& [place, always] : std::exchange(rung_, {})) {
      memory_.words(place).bell.fetch_add(1);
      if (ranks_.network_.traced()) {
        ranks_.network_.trace("rank " + std::to_string(rank_) + "  rings place " + std::to_string(place) +
                              (always ? ", whatever it does" : "") + " of '" + std::to_string(number) + "'");
      }
      Member* const other = ranks_.sharing_[&memory_][place];
      if (other == nullptr) {
        continue;
      }
      if (always || memory_.words(place).open.load() > 0) {
        other->wake(ranks_.network_.random().chance(0.5) ? 0 : ranks_.network_.delay());
      } else {
        other->sleep_until(std::min(other->wakes_at_, ranks_.network_.now() + longest_sleep));
      }
    }
  }

  // --- Work ---

  // Whose region these bytes are of; the group's size: nobody's.
  std::size_t owner_of(const std::byte* begin) const {
    const std::size_t region = memory_.shape().region;
    const std::byte* const first = memory_.region(0);
    const bool inside = region > 0 && begin >= first && begin < first + members_.size() * region;
    return inside ? static_cast<std::size_t>(begin - first) / region : members_.size();
  }
  // Where this rank finds them.
  template <class Byte>
  Byte* found(Byte* begin, std::size_t bytes, bool writes) {
    const std::size_t owner = owner_of(begin);
    if (owner == place_ || owner == members_.size()) {
      ranks_.user_.on_local_access(rank_, {begin, bytes});
      return begin;
    }
    const auto end = static_cast<std::size_t>(begin - memory_.region(static_cast<std::uint32_t>(owner))) + bytes;
    if (end > reached_[owner]) {
      ranks_.user_.violated(name() + ": it uses memory of rank " + std::to_string(members_[owner]) +
                            " that it cannot reach");
    }
    if (std::byte* const apart = ranks_.hosts_[members_[owner]].arena->detached(begin)) {
      return apart;
    }
    const bool withdrawn = memory_.words(static_cast<std::uint32_t>(owner)).withdrawn.load() != 0;
    ranks_.user_.on_reached(rank_, {begin, bytes}, writes || !withdrawn);
    return begin;
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes == 0) {
      return;
    }
    std::byte* const target = found(to, bytes, true);
    const std::byte* const source = found(from, bytes, false);
    std::memcpy(target, source, die_within(bytes));
    die_if_due();
  }
  void sum(std::byte* destination, std::span<const std::byte* const> sources, std::size_t count, DType dtype,
           Operator op, double divisor) override {
    const std::size_t bytes = count * size_of(dtype);
    std::vector<const std::byte*> found_at;
    for (const std::byte* source : sources) {
      found_at.push_back(found(source, bytes, false));
    }
    reduce(found(destination, bytes, true), found_at, die_within(count), dtype, op, divisor);
    die_if_due();
  }
  // How much of this is done, by one that may die meanwhile.
  std::size_t die_within(std::size_t whole) {
    std::optional<std::uint32_t>& dies_in = ranks_.hosts_[rank_].dies_in;
    if (!dies_in || *dies_in > 0) {
      dies_in = dies_in ? std::optional(*dies_in - 1) : std::nullopt;
      return whole;
    }
    dies_ = true;
    return ranks_.network_.random().below(whole + 1);
  }
  void die_if_due() const {
    if (dies_) {
      throw Death{};
    }
  }

  // --- The application and the worker ---

  void sending(std::uint64_t /*handle*/) override {}
  void finish(std::uint64_t handle, Status status) override {
    memory_.words(place_).open.fetch_sub(1);
    if (by_clock_ && status.ok() && !others_are_at_it()) {
      ranks_.user_.violated(name() + ": nobody woke it for operation " + std::to_string(handle) + ", which is done");
    }
    ranks_.user_.on_finish(rank_, handle, std::move(status));
  }
  std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) override {
    std::byte* const offered = ranks_.offered_output(rank_, handle, block_bytes);
    return offered != nullptr ? offered : ranks_.user_.on_allocate(rank_, handle, block_bytes);
  }
  void warn(std::string text) override { ranks_.user_.on_warning(rank_, text); }
  void called(std::uint32_t group, const wire::Opening& opening) override {
    if ((by_clock_ && !others_are_at_it()) || !called_.insert(opening.key).second) {
      ranks_.user_.violated(name() + ": nobody woke it for '" + opening.name +
                            "' of others, or it is told of it twice");
    }
    ranks_.user_.on_called(rank_, group, opening);
  }
  // As in the product, a group of some of the machine's ranks knows no arena.
  bool holds(const std::byte* begin, std::uint64_t bytes) const override {
    return memory_.shape().region > 0 && ranks_.hosts_[rank_].arena->holds(begin, bytes);
  }
  void reach(std::uint32_t place, std::size_t end) override { reached_[place] = std::max(reached_[place], end); }
  void detach(const std::byte* begin, std::uint64_t bytes) override {
    ranks_.hosts_[rank_].arena->detach(begin, bytes);
  }

  void hand_over(Submission submission) override {
    memory_.words(place_).open.fetch_sub(1);
    to_worker([submission = std::move(submission)](Worker& worker) { worker.submit(submission); });
  }
  void send_up(Submission submission, const std::optional<local::Chunks>& chunks) override {
    network_results_.expect(submission.handle, chunks);
    submission.handle = local::internode_handle(submission.handle);
    to_worker([submission = std::move(submission)](Worker& worker) { worker.submit(submission); });
  }
  void contributed(std::uint64_t handle, Range range) override {
    to_worker([handle, range](Worker& worker) { worker.contributed(local::internode_handle(handle), range); });
  }
  void open_as_failed(Submission submission) override {
    to_worker([submission = std::move(submission)](Worker& worker) { worker.submit(submission); });
  }
  void fail_job(const Status& why) override {
    to_worker([why](Worker& worker) { worker.abort(why.message); });
  }
  void empty() override {
    to_worker([this](Worker&) { ranks_.note_left(*this); });
  }

  // In order, each when it likes.
  void to_worker(std::function<void(Worker&)> what) {
    Network& network = ranks_.network_;
    last_question_ = std::max(last_question_, network.now() + (network.random().chance(0.5) ? 0 : network.delay()));
    Host& host = ranks_.hosts_[rank_];
    network.scheduler().at(last_question_, host.actor, [&host, what = std::move(what)] { host.call_worker(what); });
  }

  LocalRanks& ranks_;
  const std::uint32_t rank_;
  const std::uint32_t place_;
  const HeapGroup& memory_;
  const std::vector<std::uint32_t> members_;  // ranks, by their places
  std::vector<std::size_t> reached_;          // bytes of each rank's region that this one can use
  struct Join {
    std::uint32_t group;
    bool over;
  };
  // And handles of those whose input is there.
  std::deque<std::variant<Submission, std::uint64_t, Join>> submitted_;
  std::set<Hash128> called_;  // what it was told of
  local::NetworkResults network_results_;
  std::vector<std::pair<std::uint32_t, bool>> rung_;
  bool awake_ = false;    // it will act
  bool is_dead_ = false;  // it never acts again
  bool by_clock_ = false;
  bool dies_ = false;
  Time wakes_at_ = never;
  Time last_question_ = 0;
  local::LocalGroup group_;
};

LocalRanks::LocalRanks(const Plan& plan, Network& network, LocalUser& user)
    : plan_(plan), network_(network), user_(user), hosts_(plan.config.size()) {}

LocalRanks::~LocalRanks() = default;

// --- Making ---

std::vector<std::uint32_t> LocalRanks::node_of(std::uint32_t rank) const {
  return plan_.config.leaders.empty() ? std::vector<std::uint32_t>{rank} : plan_.config.node_of(rank);
}

void LocalRanks::add_rank(std::uint32_t rank, ActorId actor, CallWorker call_worker) {
  Host& host = hosts_[rank];
  host.actor = actor;
  host.call_worker = std::move(call_worker);
}

const HeapGroup& LocalRanks::memory_for(const std::vector<std::uint32_t>& ranks, const Hash128& id, bool is_node) {
  std::unique_ptr<HeapGroup>& memory = memories_[{id, *std::min_element(ranks.begin(), ranks.end())}];
  if (memory == nullptr) {
    local::Shape shape = shape_for(static_cast<std::uint32_t>(ranks.size()), network_.random());
    if (is_node) {
      shape.region = local::region_grain;  // which large jobs use up
      memory = std::make_unique<HeapGroup>(shape);
    } else {
      const std::vector<std::uint32_t> node = node_of(ranks.front());
      std::vector<std::uint32_t> places;
      for (const std::uint32_t rank : ranks) {
        places.push_back(static_cast<std::uint32_t>(std::find(node.begin(), node.end(), rank) - node.begin()));
      }
      const Hash128 of_node = world_group_id(plan_.config.size());
      memory = std::make_unique<HeapGroup>(shape, &memory_for(node, of_node, true), std::move(places));
    }
    sharing_[memory.get()].resize(ranks.size());
  }
  return *memory;
}

LocalRanks::Member& LocalRanks::member(std::uint32_t rank, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                                       bool is_node) {
  Host& host = hosts_[rank];
  const HeapGroup& memory = memory_for(ranks, id, is_node);
  const bool has_other_nodes = is_node && ranks.size() < plan_.config.size();
  Member& made = *host.members.emplace_back(std::make_unique<Member>(*this, rank, memory, ranks, has_other_nodes));
  sharing_[&memory][made.place()] = &made;
  if (is_node) {
    host.arena = std::make_unique<HeapArena>(memory.region(made.place()), memory.shape().region);
  }
  return made;
}

void LocalRanks::add_group(std::uint32_t rank, const GroupPlan& group, std::uint32_t number, Worker& worker) {
  const std::vector<std::uint32_t> node = node_of(rank);
  const bool of_all = group.ranks.size() == plan_.config.size();
  const auto is_here = [&node](std::uint32_t one) { return std::binary_search(node.begin(), node.end(), one); };
  const bool is_local = of_all || std::all_of(group.ranks.begin(), group.ranks.end(), is_here);
  Host& host = hosts_[rank];
  if (plan_.config.leaders.empty() || group.ranks.size() < 2 || !is_local) {
    return;
  }
  if (!of_all) {
    Member& own = member(rank, worker.id_of(number), group.ranks, false);
    own.number = number;
    own.group().add_group(number, worker.id_of(number), group.ranks, std::nullopt);
    host.by_group[number] = &own;
    return;
  }
  if (host.members.empty()) {
    member(rank, world_group_id(plan_.config.size()), node, true);
  }
  Member& own = *host.members.front();
  std::vector<std::uint32_t> leaders;
  std::optional<local::Internode> internode = local::internode_of(plan_.config, group.ranks, leaders);
  if (internode && std::find(leaders.begin(), leaders.end(), rank) != leaders.end()) {
    internode->group = worker.make_group_of_nodes(std::move(leaders), number, group.name);
    host.leaders_groups[number] = internode->group;
  }
  own.group().add_group(number, worker.id_of(number), group.ranks, internode);
  host.by_group[number] = &own;
}

// --- Events ---

std::byte* LocalRanks::allocate(std::uint32_t rank, std::size_t bytes) {
  HeapArena* const arena = hosts_[rank].arena.get();
  return arena == nullptr ? nullptr : arena->allocate(bytes);
}

bool LocalRanks::submit(std::uint32_t rank, Submission& submission) {
  const auto found = hosts_[rank].by_group.find(submission.group);
  if (found == hosts_[rank].by_group.end()) {
    return false;
  }
  if (is_gather(submission.collective) && submission.output != nullptr) {
    hosts_[rank].offered[submission.handle] = {std::exchange(submission.output, nullptr),
                                               std::exchange(submission.output_bytes, 0)};
  }
  found->second->submit(std::move(submission));
  return true;
}

bool LocalRanks::input_ready(std::uint32_t rank, std::uint32_t group, std::uint64_t handle) {
  const auto found = hosts_[rank].by_group.find(group);
  if (found == hosts_[rank].by_group.end()) {
    return false;
  }
  found->second->input_ready(handle);
  return true;
}

std::vector<std::uint32_t> LocalRanks::join(std::uint32_t rank, std::uint32_t group, bool over) {
  Host& host = hosts_[rank];
  const auto found = host.by_group.find(group);
  if (found == host.by_group.end()) {
    return {group};
  }
  found->second->join(group, over);
  const auto leaders = host.leaders_groups.find(group);
  return leaders == host.leaders_groups.end() ? std::vector<std::uint32_t>() : std::vector{leaders->second, group};
}

std::byte* LocalRanks::offered_output(std::uint32_t rank, std::uint64_t handle,
                                      const std::vector<std::uint64_t>& block_bytes) {
  const auto found = hosts_[rank].offered.find(handle);
  const auto bytes = std::accumulate(block_bytes.begin(), block_bytes.end(), std::uint64_t{0});
  return found != hosts_[rank].offered.end() && found->second.size() == bytes ? found->second.data() : nullptr;
}

void LocalRanks::received(std::uint32_t rank, std::uint64_t handle, Range range) {
  hosts_[rank].members.front()->received(local::own_handle(handle), range);
}

void LocalRanks::averaged(std::uint32_t rank, std::uint64_t handle, Status status) {
  hosts_[rank].members.front()->averaged(local::own_handle(handle), std::move(status));
}

std::byte* LocalRanks::allocate_told(std::uint32_t rank, std::uint64_t handle, const BlockBytes& by_node) {
  return hosts_[rank].members.front()->allocate_told(local::own_handle(handle), by_node);
}

void LocalRanks::gone(std::uint32_t rank, std::uint32_t other) {
  for (const std::unique_ptr<Member>& member : hosts_[rank].members) {
    member->gone(other);
  }
}

void LocalRanks::fail(std::uint32_t rank, const Worker& worker) {
  for (const std::unique_ptr<Member>& member : hosts_[rank].members) {
    if (const Status loss = worker.loss_of(member->number); !loss.ok()) {
      member->fail_all(loss);
    }
  }
}

bool LocalRanks::leave(std::uint32_t rank) {
  Host& host = hosts_[rank];
  if (host.members.empty()) {
    return false;
  }
  host.not_left = host.members.size();
  for (std::size_t i = 1; i < host.members.size(); ++i) {
    host.members[i]->leave();
  }
  if (host.members.size() == 1) {
    host.members.front()->leave();
  }
  return true;
}

// The machine's own group is left last: who has left it calls nothing anywhere.
void LocalRanks::note_left(Member& member) {
  Host& host = hosts_[member.rank()];
  if (--host.not_left == 1) {
    host.members.front()->leave();
  } else if (host.not_left == 0) {
    host.call_worker([](Worker& worker) { worker.leave(); });
  }
}

void LocalRanks::end(std::uint32_t rank, bool gently) {
  Host& host = hosts_[rank];
  for (const std::unique_ptr<Member>& member : host.members) {
    if (gently) {
      member->be_gone();
    }
    sharing_[&member->memory()][member->place()] = nullptr;
  }
  host.by_group.clear();
  host.members.clear();
}

void LocalRanks::die_in_a_copy(std::uint32_t rank, std::uint32_t copies) { hosts_[rank].dies_in = copies; }

std::size_t LocalRanks::open_operations(std::uint32_t rank) const {
  std::size_t open = 0;
  for (const std::unique_ptr<Member>& member : hosts_[rank].members) {
    open += member->group().open_operations();
  }
  return open;
}

}  // namespace shoal::sim
