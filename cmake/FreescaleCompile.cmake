# The compile settings every target of the project shares, as the target freescale_compile.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Hidden by default: two extension modules in one process must not share our symbols by accident.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

add_library(freescale_compile INTERFACE)
target_include_directories(freescale_compile INTERFACE "${PROJECT_SOURCE_DIR}")
target_link_libraries(freescale_compile INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
target_compile_options(freescale_compile INTERFACE -Wall -Wextra)
# GCC 12 sees overlapping copies in `"text" + std::to_string(n)` that are not there (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(freescale_compile INTERFACE -Wno-restrict)
endif()
if(FREESCALE_WERROR)
  target_compile_options(freescale_compile INTERFACE -Werror)
endif()

if(FREESCALE_SANITIZE)
  list(JOIN FREESCALE_SANITIZE "," sanitizers)
  set(sanitize_flags -fsanitize=${sanitizers} -fno-sanitize-recover=all)
  target_compile_options(freescale_compile INTERFACE ${sanitize_flags} -fno-omit-frame-pointer)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Instrumented code makes GCC see uninitialised members in std::variant and std::string, and
    # copies beyond the latter's ends.
    # ThreadSanitizer does not model fences. Ours only order "I go to sleep" against "there is
    # work" (Doorbell, writer_waits, EngineCore::await_turn), between atomics: no data is published
    # by them, but by release stores and locks, which it does model. So it reports nothing false,
    # and what it cannot see, a missed wake, is for doorbell_test and transport_test to find.
    target_compile_options(freescale_compile INTERFACE -Wno-maybe-uninitialized -Wno-array-bounds
      -Wno-stringop-overflow
      -Wno-tsan)
  endif()
  target_link_options(freescale_compile INTERFACE ${sanitize_flags})
endif()

if(FREESCALE_LIBFUZZER)
  # Coverage of the whole engine guides the mutations; only the fuzz targets get libFuzzer's main().
  target_compile_options(freescale_compile INTERFACE -fsanitize=fuzzer-no-link)
endif()
