// Whether a frame may come now, by its header alone, before anything is allocated for it. (For frames of other workers
// see transfers.h.)
#pragma once

#include <cstdint>

#include "protocol/worker/environment.h"
#include "protocol/worker/operation_table.h"

namespace shoal::worker {

Status check_server_header(std::uint32_t server, const wire::Header& header, const OperationTable& operations,
                           const Environment& environment);
Status check_coordinator_header(const wire::Header& header, const JobConfig& config);

}  // namespace shoal::worker
