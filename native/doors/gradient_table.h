// The functions of Table that are about gradients.
#pragma once

#include "doors/table.h"

namespace shoal::doors {

void add_gradient_functions(Table& table);

}  // namespace shoal::doors
