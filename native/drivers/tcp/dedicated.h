// A dedicated server: the server machines of any number of jobs, on a fixed number of threads.
//
// Every (job, index) has a machine of its own, on thread `index mod proxies`. A job begins with its first link and ends
// with its last. In a child made by fork() every method but close() throws std::runtime_error.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "drivers/tcp/socket.h"
#include "os/fork_guard.h"
#include "protocol/job.h"

namespace shoal::tcp {

class DedicatedServer {
 public:
  // `memory`: bytes for all jobs together (budget.h); 0: no bound.
  explicit DedicatedServer(std::uint32_t proxies, std::size_t memory = 0);
  ~DedicatedServer();

  // Before the first link to server `index` of a job: reserves its memory, until its last link there is gone or
  // release() is called. Returns an empty string, or what to tell the job.
  std::string reserve(const std::string& incarnation, std::uint32_t index, const JobConfig& config);
  void release(const std::string& incarnation);

  // The link of worker `rank` to server `index` of the job. The socket is connected and authenticated. The server owns
  // it from here on, also when this throws std::invalid_argument: the configuration is invalid or not that of the job's
  // first link, or the index or rank is not in it or is connected already.
  // `attempt`: 0 when the job begins; higher after the server was lost to the job. Each attempt has its own machine.
  void attach(const std::string& incarnation, std::uint32_t index, std::uint32_t attempt, std::uint32_t rank,
              Socket&& socket, const JobConfig& config);

  // Closes all links of the job. Its workers see a lost server.
  void end_job(const std::string& incarnation);
  std::vector<std::string> jobs() const;
  void close();
  std::map<std::string, std::uint64_t> statistics() const;

 private:
  class Impl;
  os::ForkGuard<Impl> impl_;
};

}  // namespace shoal::tcp
