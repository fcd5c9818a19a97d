#pragma once

#include <string>

#include "backend/environment.h"
#include "cpp/scheduler/flight_recorder.h"

namespace freescale {

// The recorder of this process: outlives every group and engine. Its first use reads the
// environment, and may throw as Environment::read() does.
FlightRecorder& flight_recorder();

// The recorded calls of this process as JSON, and of those in flight what each waits for. Waits for
// the engine's lock; never call it under that lock.
std::string flight_dump();

// Writes flight_dump() to a file named after the rank's number in the job, if
// TORCH_FR_DUMP_TEMP_FILE gives the beginning of its name. What goes wrong is a warning: it is
// called when something else has failed already.
void write_flight_dump(const Environment& environment, const FlightGroup& group) noexcept;

}  // namespace freescale
