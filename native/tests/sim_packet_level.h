// `shoal_simulate packet_level`: one job on the packet_level network (native/drivers/sim/packet_level), from a command
// line.
#pragma once

// Arguments after "packet_level". Returns the exit code: 0, 1 when the job failed, 2 when the arguments are wrong.
int simulate_rated(int argc, char** argv);
