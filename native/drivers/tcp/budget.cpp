#include "drivers/tcp/budget.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace shoal::tcp {

namespace {

// Bytes of a connection beside its payloads in flight: read-ahead, frames, and with encryption its records.
constexpr std::size_t link_bytes = 256 * 1024;

// The least for tables, which may reach twice their limit: enough for a job that averages each parameter of a large
// model by itself, 2,500 operations of 2 ranks or 1,000 of 8. However many jobs come, none has less.
constexpr std::size_t tables_bytes = 8 * 1024 * 1024;
constexpr std::size_t tables_bytes_of_rank = 256 * 1024;

std::size_t least_tables(std::size_t ranks) { return tables_bytes + tables_bytes_of_rank * ranks; }

// Of a window: contributions that wait for others', and as many results that some have not taken yet, in buffers that
// may be half empty.
constexpr std::size_t per_window_byte = 4;

}  // namespace

MemoryUse::MemoryUse(std::shared_ptr<MemoryShare> share, Server& machine, BufferPool& pool)
    : share_(std::move(share)), machine_(machine), pool_(pool) {}

bool MemoryUse::keep_to_share() {
  machine_.limit(share_->tables.load(), share_->credit.load());
  const std::size_t of_others = share_->used.load() + share_->kept.load() - bytes();
  const std::size_t most = share_->bytes.load();
  pool_.keep_within(most - std::min(most, of_others + machine_.table_bytes()));
  note(pool_.taken_bytes() + machine_.table_bytes(), pool_.kept_bytes());
  return share_->used.load() < share_->excess_until.load();
}

void MemoryUse::note(std::size_t used, std::size_t kept) {
  share_->used += used - std::exchange(used_, used);
  share_->kept += kept - std::exchange(kept_, kept);
}

std::size_t Budget::needed(const JobConfig& config) {
  const std::size_t window = std::size_t{config.credit} + config.segment;
  // Inline data comes with an opening, in one buffer.
  const std::size_t of_rank = per_window_byte * window + 2 * std::size_t{config.eager} + link_bytes;
  return least_tables(config.size()) + config.size() * of_rank;
}

std::string Budget::reserve(const std::string& incarnation, std::uint32_t index, const JobConfig& config) {
  const std::lock_guard lock(mutex_);
  if (find(incarnation, index) != nullptr) {
    return "";
  }
  const std::size_t bytes = needed(config);
  std::size_t taken = 0;
  for (const auto& [other, servers] : jobs_) {
    for (const auto& [number, entry] : servers) {
      taken += std::max(entry.bytes, entry.share->used.load());
    }
  }
  if (bytes_ > 0 && taken + bytes > bytes_) {
    return config.server_names[index] + " has no memory for this job: jobs may take " + bytes_text(bytes_) +
           " there together (--memory, less what the server itself takes), " + std::to_string(jobs_.size()) +
           " of them have " + bytes_text(taken) + ", and this one, of " + std::to_string(config.size()) +
           " ranks, needs " + bytes_text(bytes) +
           " at least: start the server with more --memory, name more servers in SHOAL_SERVERS, or wait until other "
           "jobs have ended";
  }
  add(incarnation, index, config);
  return "";
}

Budget::Reserved* Budget::find(const std::string& incarnation, std::uint32_t index) {
  const auto job = jobs_.find(incarnation);
  if (job == jobs_.end()) {
    return nullptr;
  }
  const auto server = job->second.find(index);
  return server == job->second.end() ? nullptr : &server->second;
}

Budget::Reserved& Budget::add(const std::string& incarnation, std::uint32_t index, const JobConfig& config) {
  Reserved& reserved = jobs_[incarnation][index];
  reserved.bytes = needed(config);
  reserved.ranks = config.size();
  reserved.least_credit = config.credit;
  divide();
  return reserved;
}

void Budget::release(const std::string& incarnation) {
  const std::lock_guard lock(mutex_);
  jobs_.erase(incarnation);
  divide();
}

void Budget::release(const std::string& incarnation, std::uint32_t index) {
  const std::lock_guard lock(mutex_);
  const auto job = jobs_.find(incarnation);
  if (job == jobs_.end()) {
    return;
  }
  job->second.erase(index);
  if (job->second.empty()) {
    jobs_.erase(job);
  }
  divide();
}

// What was reserved may have been given back meanwhile, by an attempt before that ended late.
std::shared_ptr<MemoryShare> Budget::share_of(const std::string& incarnation, std::uint32_t index,
                                              const JobConfig& config) {
  const std::lock_guard lock(mutex_);
  Reserved* const known = find(incarnation, index);
  return known != nullptr ? known->share : add(incarnation, index, config).share;
}

void Budget::divide_anew() {
  const std::lock_guard lock(mutex_);
  divide();
}

// Each job gets an equal part of what is left: half of it for its tables, half for larger windows. A job that already
// uses more keeps that, so that less is left for the others.
void Budget::divide() {
  if (bytes_ == 0) {
    return;
  }
  std::size_t taken = 0;
  std::vector<std::tuple<Reserved*, std::size_t, std::size_t>> entries;  // what it has in use, servers of its job
  for (auto& [incarnation, servers] : jobs_) {
    for (auto& [index, entry] : servers) {
      taken += entry.bytes;
      entry.share->excess_until.store(0);
      entries.emplace_back(&entry, entry.share->used.load(), servers.size());
    }
  }
  const auto more_of = [&](std::size_t servers) { return (bytes_ - std::min(bytes_, taken)) / jobs_.size() / servers; };
  for (bool again = true; std::exchange(again, false);) {
    for (auto& [entry, used, servers] : entries) {
      const std::size_t share = entry->bytes + more_of(servers);
      if (used > share && entry->share->excess_until.load() == 0) {
        entry->share->excess_until.store(share);
        taken += used - entry->bytes;
        again = true;
      }
    }
  }
  for (auto& [entry, used, servers] : entries) {
    const std::size_t more = more_of(servers);
    entry->share->bytes.store(entry->bytes + more - entry->ranks * link_bytes);
    // Tables may come to twice their limit before a link ends.
    const std::size_t tables = (least_tables(entry->ranks) + more / 2) / 2;
    entry->share->tables.store(std::min(limits::tables_bytes, tables));
    const std::size_t credit = entry->least_credit + more / 2 / entry->ranks / per_window_byte;
    entry->share->credit.store(static_cast<std::uint32_t>(std::min<std::size_t>(credit, ~std::uint32_t{0})));
  }
}

}  // namespace shoal::tcp
