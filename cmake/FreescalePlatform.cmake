# Refuses platforms the engine is not written for, and picks the default build type.

if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR
    "freescale_pg needs Linux (memfd, futex, pidfd); this system is ${CMAKE_SYSTEM_NAME}.")
endif()

if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64|aarch64|arm64)$")
  message(FATAL_ERROR
    "freescale_pg supports x86-64 and aarch64; this processor is ${CMAKE_SYSTEM_PROCESSOR}.")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
