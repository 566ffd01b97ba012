#include "drivers/tcp/dedicated.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "base/buffer.h"
#include "drivers/tcp/budget.h"
#include "drivers/tcp/hosted_server.h"
#include "drivers/tcp/loop.h"
#include "protocol/server/server.h"

namespace shoal::tcp {

namespace {

// Memory that is freed goes back to the operating system at once if it is so much: the next job may have another
// thread, and with it memory of its own.
constexpr std::size_t large = std::size_t{16} * 1024 * 1024;

void trim_after([[maybe_unused]] std::size_t freed) {
#ifdef __GLIBC__
  if (freed > large) {
    ::malloc_trim(0);
  }
#endif
}

void check(const JobConfig& config, std::uint32_t index, std::uint32_t rank) {
  if (const std::string problem = problem_with(config); !problem.empty()) {
    throw std::invalid_argument(problem);
  }
  if (index >= config.servers() || rank >= config.size()) {
    throw std::invalid_argument("a job of " + std::to_string(config.size()) + " ranks and " +
                                std::to_string(config.servers()) + " servers has no rank " + std::to_string(rank) +
                                " or no server " + std::to_string(index));
  }
}

}  // namespace

class DedicatedServer::Impl {
 public:
  Impl(std::uint32_t proxies, std::size_t memory);
  ~Impl() { close(); }

  std::string reserve(const std::string& incarnation, std::uint32_t index, const JobConfig& config);
  void release(const std::string& incarnation) { budget_.release(incarnation); }

  void attach(const std::string& incarnation, std::uint32_t index, std::uint32_t attempt, std::uint32_t rank,
              Socket socket, const JobConfig& config);
  void end_job(const std::string& incarnation);
  std::vector<std::string> jobs() const;
  void close();
  std::map<std::string, std::uint64_t> statistics() const;

 private:
  // A job's server with this index, since the workers reached it for this time: what an earlier machine knew is void.
  struct Key {
    std::string incarnation;
    std::uint32_t index = 0;
    std::uint32_t attempt = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  struct Hosted : HostedServer {
    Hosted(const JobConfig& config, std::uint32_t index, Loop& loop, std::shared_ptr<MemoryShare> share)
        : HostedServer(config, index, loop), memory(std::move(share), machine, pool) {}
    std::set<std::uint32_t> ranks;  // that were attached
    MemoryUse memory;
  };
  struct Proxy {
    Loop loop;
    std::map<Key, std::unique_ptr<Hosted>> hosted;
    std::uint64_t links_gone = 0;
    std::atomic<std::uint64_t> buffer_bytes{0};
    std::atomic<std::uint64_t> operations{0};
  };
  struct Job {
    JobConfig config;
    std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> links;  // index, attempt and rank
  };

  void attach_on(Proxy& proxy, const Key& key, std::uint32_t rank, Socket socket, const JobConfig& config);
  void detach_from(Proxy& proxy, std::map<Key, std::unique_ptr<Hosted>>::iterator place, std::uint32_t rank);
  void after_round(Proxy& proxy);
  void keep_to_share(Hosted& hosted);
  std::map<Key, std::unique_ptr<Hosted>>::iterator forget(Proxy& proxy,
                                                          std::map<Key, std::unique_ptr<Hosted>>::iterator place);

  Budget budget_;
  std::vector<std::unique_ptr<Proxy>> proxies_;
  mutable std::mutex mutex_;
  std::map<std::string, Job> jobs_;  // guarded by mutex_; by incarnation
  bool closed_ = false;              // guarded by mutex_
};

DedicatedServer::Impl::Impl(std::uint32_t proxies, std::size_t memory) : budget_(memory) {
  if (proxies == 0) {
    throw std::invalid_argument("a server needs at least one proxy");
  }
  for (std::uint32_t i = 0; i < proxies; ++i) {
    Proxy& proxy = *proxies_.emplace_back(std::make_unique<Proxy>());
    proxy.loop.after_round = [this, &proxy] { after_round(proxy); };
    proxy.loop.start();
  }
}

std::string DedicatedServer::Impl::reserve(const std::string& incarnation, std::uint32_t index,
                                           const JobConfig& config) {
  check(config, index, 0);
  return budget_.reserve(incarnation, index, config);
}

void DedicatedServer::Impl::attach(const std::string& incarnation, std::uint32_t index, std::uint32_t attempt,
                                   std::uint32_t rank, Socket socket, const JobConfig& config) {
  check(config, index, rank);
  const std::lock_guard lock(mutex_);
  if (closed_) {
    throw std::runtime_error("this server is closed");
  }
  const auto known = jobs_.find(incarnation);
  if (known != jobs_.end() && known->second.config != config) {
    throw std::invalid_argument("rank " + std::to_string(rank) + " on " + config.hosts[rank] +
                                " describes the job otherwise than the rank that came first");
  }
  if (known != jobs_.end() && known->second.links.contains({index, attempt, rank})) {
    throw std::invalid_argument("rank " + std::to_string(rank) + " on " + config.hosts[rank] +
                                " is connected to server " + std::to_string(index) + " already");
  }
  Proxy& proxy = *proxies_[index % proxies_.size()];
  // Tasks can be copied, sockets cannot.
  const auto carried = std::make_shared<Socket>(std::move(socket));
  const bool posted = proxy.loop.post([this, &proxy, key = Key{incarnation, index, attempt}, rank, carried, config] {
    attach_on(proxy, key, rank, std::move(*carried), config);
  });
  if (!posted) {
    throw std::runtime_error("proxy " + std::to_string(index % proxies_.size()) +
                             " of this server has failed; restart the server");
  }
  Job& job = jobs_[incarnation];
  job.config = config;
  job.links.insert({index, attempt, rank});
}

void DedicatedServer::Impl::attach_on(Proxy& proxy, const Key& key, std::uint32_t rank, Socket socket,
                                      const JobConfig& config) {
  const auto place = proxy.hosted.try_emplace(key).first;
  std::unique_ptr<Hosted>& hosted = place->second;
  if (hosted == nullptr) {
    // The machines of a channel, here and on all ranks, are a job by itself.
    hosted =
        std::make_unique<Hosted>(config.of_channel(config.channel_of(key.index)), config.index_in_channel(key.index),
                                 proxy.loop, budget_.share_of(key.incarnation, key.index, config));
    keep_to_share(*hosted);
  }
  hosted->ranks.insert(rank);
  LinkId link = 0;
  try {
    // Other jobs of this server may have more patience, or less.
    link = proxy.loop.add_socket(hosted->machine, std::move(socket), LinkOptions::of(config));
  } catch (const std::exception&) {
    // The rank sees its connection closed, and takes this server for lost. The other jobs go on.
    return detach_from(proxy, place, rank);
  }
  hosted->machine.attach_worker(link, rank);
}

void DedicatedServer::Impl::detach_from(Proxy& proxy, std::map<Key, std::unique_ptr<Hosted>>::iterator place,
                                        std::uint32_t rank) {
  if (proxy.loop.links_of(place->second->machine) == 0) {
    forget(proxy, place);
    return;
  }
  const auto& [incarnation, index, attempt] = place->first;
  place->second->ranks.erase(rank);
  const std::lock_guard lock(mutex_);
  jobs_[incarnation].links.erase({index, attempt, rank});
}

void DedicatedServer::Impl::end_job(const std::string& incarnation) {
  for (const auto& proxy : proxies_) {
    static_cast<void>(proxy->loop.post([this, &proxy = *proxy, incarnation] {
      for (auto place = proxy.hosted.begin(); place != proxy.hosted.end();) {
        place = place->first.incarnation == incarnation ? forget(proxy, place) : std::next(place);
      }
    }));
  }
}

// Machines whose links are all gone go too.
void DedicatedServer::Impl::after_round(Proxy& proxy) {
  if (std::exchange(proxy.links_gone, proxy.loop.links_gone()) != proxy.loop.links_gone()) {
    for (auto place = proxy.hosted.begin(); place != proxy.hosted.end();) {
      place = proxy.loop.links_of(place->second->machine) == 0 ? forget(proxy, place) : std::next(place);
    }
  }
  std::uint64_t bytes = 0;
  std::uint64_t operations = 0;
  for (const auto& [key, hosted] : proxy.hosted) {
    keep_to_share(*hosted);
    bytes += hosted->pool.taken_bytes();
    operations += hosted->machine.operations();
  }
  proxy.buffer_bytes.store(bytes, std::memory_order_relaxed);
  proxy.operations.store(operations, std::memory_order_relaxed);
}

void DedicatedServer::Impl::keep_to_share(Hosted& hosted) {
  const std::size_t kept = hosted.pool.kept_bytes();
  if (hosted.memory.keep_to_share()) {
    budget_.divide_anew();
  }
  trim_after(kept - std::min(kept, hosted.pool.kept_bytes()));
}

std::map<DedicatedServer::Impl::Key, std::unique_ptr<DedicatedServer::Impl::Hosted>>::iterator
DedicatedServer::Impl::forget(Proxy& proxy, std::map<Key, std::unique_ptr<Hosted>>::iterator place) {
  const auto& [incarnation, index, attempt] = place->first;
  {
    const std::lock_guard lock(mutex_);
    Job& job = jobs_[incarnation];
    for (std::uint32_t rank : place->second->ranks) {
      job.links.erase({index, attempt, rank});
    }
    if (job.links.empty()) {
      jobs_.erase(incarnation);
    }
  }
  const auto is_tried_again = [&key = place->first](const auto& other) {
    return other.first.incarnation == key.incarnation && other.first.index == key.index &&
           other.first.attempt != key.attempt;
  };
  if (std::none_of(proxy.hosted.begin(), proxy.hosted.end(), is_tried_again)) {
    budget_.release(incarnation, index);
  }
  proxy.loop.remove(place->second->machine);
  const std::size_t had = place->second->memory.bytes();
  const auto next = proxy.hosted.erase(place);
  trim_after(had);
  return next;
}

std::vector<std::string> DedicatedServer::Impl::jobs() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> incarnations;
  for (const auto& [incarnation, job] : jobs_) {
    incarnations.push_back(incarnation);
  }
  return incarnations;
}

void DedicatedServer::Impl::close() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) {
      return;
    }
  }
  for (const auto& proxy : proxies_) {
    proxy->loop.stop();
    for (auto place = proxy->hosted.begin(); place != proxy->hosted.end();) {
      place = forget(*proxy, place);
    }
  }
}

std::map<std::string, std::uint64_t> DedicatedServer::Impl::statistics() const {
  std::map<std::string, std::uint64_t> sums;
  for (const auto& proxy : proxies_) {
    const Loop::Counters counters = proxy->loop.counters();
    sums["bytes_sent"] += counters.bytes_sent;
    sums["bytes_received"] += counters.bytes_received;
    sums["links"] += counters.links;
    sums["open_operations"] += proxy->operations.load(std::memory_order_relaxed);
    sums["buffer_bytes"] += proxy->buffer_bytes.load(std::memory_order_relaxed);
  }
  sums["jobs"] = jobs().size();
  return sums;
}

DedicatedServer::DedicatedServer(std::uint32_t proxies, std::size_t memory)
    : impl_(std::make_unique<Impl>(proxies, memory)) {}
DedicatedServer::~DedicatedServer() = default;
std::string DedicatedServer::reserve(const std::string& incarnation, std::uint32_t index, const JobConfig& config) {
  return impl_->reserve(incarnation, index, config);
}
void DedicatedServer::release(const std::string& incarnation) { impl_->release(incarnation); }
void DedicatedServer::attach(const std::string& incarnation, std::uint32_t index, std::uint32_t attempt,
                             std::uint32_t rank, Socket&& socket, const JobConfig& config) {
  impl_->attach(incarnation, index, attempt, rank, std::move(socket), config);
}
void DedicatedServer::end_job(const std::string& incarnation) { impl_->end_job(incarnation); }
std::vector<std::string> DedicatedServer::jobs() const { return impl_->jobs(); }
void DedicatedServer::close() {
  if (!impl_.in_child()) {
    impl_->close();
  }
}
std::map<std::string, std::uint64_t> DedicatedServer::statistics() const { return impl_->statistics(); }

}  // namespace shoal::tcp
