#include "protocol/worker/header_checks.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "base/limits.h"
#include "wire/epoch.h"
#include "wire/late.h"
#include "wire/waits.h"

namespace shoal::worker {

using wire::Header;
using wire::Type;

namespace {

Status at_most(std::size_t limit, const Header& header) {
  return header.length <= limit
             ? Status{}
             : refused(std::string(wire::name_of(header.type)) + " of " + std::to_string(header.length) + " bytes");
}

// Whether the server may ask for this rank's contribution now, or say what is missing.
bool awaits_admission(const Operation& operation, std::uint32_t server, const Header& header, std::uint32_t epoch) {
  const Part& part = operation.part_of(server);
  if (!operation.needs_admission() || part.is_admitted() || part.is_resumed() || part.is_done()) {
    return false;
  }
  // Its array is the application's again, and nothing of it was kept, since nobody can need it.
  if (operation.is_finished() && operation.contributes() && operation.bytes() > 0 && !operation.shares_results() &&
      !operation.has_own_input()) {
    return false;
  }
  return (header.flags & wire::flag_resumed) != 0 ? epoch > 0 : operation.contributes() && !part.all_sent();
}

Status check_result(const Operation& operation, std::uint32_t server, const Header& header, const JobConfig& config) {
  const Part& part = operation.part_of(server);
  bool expected = !part.is_done() && (header.length == 0 || header.dtype == operation.opening().wire_dtype());
  if (operation.gathers()) {
    expected = expected && operation.transfer().goes_through_home() && header.offset == 0 &&
               header.length == operation.wanted().size() && (header.flags & wire::flag_last) != 0 &&
               header.length <= config.small;
  } else {
    expected = expected && part.expects(header, operation.is_finished() ? Range{} : operation.wanted());
  }
  return expected ? Status{} : refused("RESULT of '" + operation.name() + "' that is not the next segment");
}

}  // namespace

Status check_server_header(std::uint32_t server, const Header& header, const OperationTable& operations,
                           const Environment& environment) {
  const JobConfig& config = environment.config();
  const std::size_t size = config.size();
  const std::size_t most_result = std::max(config.segment, config.small);
  if (header.epoch < environment.epoch()) {
    // It was on its way when the epoch began, whatever it was.
    return at_most(
        std::max({most_result, limits::text_bytes + 8, 8 + 8 * size, wire::missing_limit(), wire::called_limit()}),
        header);
  }
  const bool of_one = header.type != Type::grant && header.type != Type::have && header.type != Type::window &&
                      header.type != Type::called;
  if (of_one && !operations.was_given(header.operation)) {
    return refused(std::string(wire::name_of(header.type)) + " for operation " + std::to_string(header.operation) +
                   ", which was never opened");
  }
  const Operation* operation = of_one ? operations.find_going_on(header.operation) : nullptr;
  if (operation != nullptr && !operation->has_part(server)) {
    return refused(std::string(wire::name_of(header.type)) + " for '" + operation->name() +
                   "' from a server that has no part in it");
  }
  const bool is_open = operation != nullptr && !operation->failed_here();
  switch (header.type) {
    case Type::result:
      return is_open ? check_result(*operation, server, header, config) : at_most(most_result, header);
    case Type::admit:
      if (is_open && !awaits_admission(*operation, server, header, environment.epoch())) {
        return refused("ADMIT of '" + operation->name() + "', for which nothing is owed");
      }
      return at_most((header.flags & wire::flag_resumed) != 0 ? wire::missing_limit() : 0, header);
    case Type::grant:
      return at_most(0, header);
    case Type::window:
      return header.credit == 0 ? at_most(0, header) : refused("WINDOW with credit from a server");
    case Type::have:
      return at_most(8 * wire::have_at_once, header);
    case Type::fail:
      return at_most(limits::text_bytes + 8, header);
    case Type::sizes:
      return at_most(8 + 8 * size, header);
    case Type::late:
      return at_most(wire::late_limit(), header);
    case Type::called:
      return header.credit == 0 ? at_most(wire::called_limit(), header) : refused("CALLED with credit");
    default:
      return refused(std::string(wire::name_of(header.type)) + " from a server");
  }
}

Status check_coordinator_header(const Header& header, const JobConfig& config) {
  switch (header.type) {
    case Type::lost:
      return at_most(limits::text_bytes + 16, header);
    case Type::epoch:
      return at_most(wire::epoch_limit(config.servers()), header);
    case Type::reconnect:
      return at_most(wire::attempt_bytes, header);
    case Type::probe:
    case Type::circle:
      return at_most(wire::circle_bytes + limits::text_bytes + 16, header);
    case Type::gone:
      return at_most(sizeof(std::uint32_t), header);
    case Type::ended:
      return at_most(0, header);
    default:
      return refused(std::string(wire::name_of(header.type)) + " from the coordinator");
  }
}

}  // namespace shoal::worker
