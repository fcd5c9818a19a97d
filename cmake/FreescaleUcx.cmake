# Finds the headers of UCX, whose types alone are used: FREESCALE_UCX_HEADERS. The library is found at
# run time (cpp/transport/ucx/ucp_library.h).
#
# Looked for in an installed UCX, and in the wheel libucx-cu12 of the Python that builds or of the
# project's own environments.

set(FREESCALE_UCX_MINIMUM 1.18)

if(Python_EXECUTABLE)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
      "import sysconfig; print(sysconfig.get_path('purelib'))"
    OUTPUT_VARIABLE site_packages OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
file(GLOB ucx_wheels "${PROJECT_SOURCE_DIR}/.venv*/lib/python3*/site-packages/libucx")
find_path(FREESCALE_UCX_HEADERS ucp/api/ucp.h
  PATHS "${site_packages}/libucx" ${ucx_wheels} PATH_SUFFIXES include
  DOC "Folder of ucp/api/ucp.h")
if(NOT FREESCALE_UCX_HEADERS)
  message(FATAL_ERROR
    "the headers of UCX were not found: pip install libucx-cu12, or install UCX (libucx-dev).")
endif()

file(READ "${FREESCALE_UCX_HEADERS}/ucp/api/ucp_version.h" ucx_version)
string(REGEX MATCH "UCP_API_MAJOR +([0-9]+)" unused "${ucx_version}")
set(ucx_major "${CMAKE_MATCH_1}")
string(REGEX MATCH "UCP_API_MINOR +([0-9]+)" unused "${ucx_version}")
set(ucx_minor "${CMAKE_MATCH_1}")
if("${ucx_major}.${ucx_minor}" VERSION_LESS FREESCALE_UCX_MINIMUM)
  message(FATAL_ERROR
    "the headers of UCX ${ucx_major}.${ucx_minor} in ${FREESCALE_UCX_HEADERS} are older than "
    "${FREESCALE_UCX_MINIMUM}.")
endif()
