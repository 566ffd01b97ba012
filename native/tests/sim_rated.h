// `shoal_simulate rated`: one job on the rated network (native/drivers/sim/rated), from a command line.
#pragma once

// Arguments after "rated". Returns the exit code: 0, 1 when the job failed, 2 when the arguments are wrong.
int simulate_rated(int argc, char** argv);
