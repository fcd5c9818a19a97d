# freescale_layer(<name> [DEPENDS <lower layer>...])
#
# Makes the sources of the current folder the static library freescale_<name>, which links only the
# layers named. A folder that holds headers alone becomes an interface library.
function(freescale_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPENDS")
  list(TRANSFORM arg_DEPENDS PREPEND freescale_ OUTPUT_VARIABLE lower_layers)

  file(GLOB sources CONFIGURE_DEPENDS "*.cc")
  if(sources)
    file(GLOB headers CONFIGURE_DEPENDS "*.h")
    add_library(freescale_${name} STATIC ${sources} ${headers})
    target_link_libraries(freescale_${name} PUBLIC freescale_compile ${lower_layers})
    set_target_properties(freescale_${name} PROPERTIES UNITY_BUILD ${FREESCALE_UNITY})
  else()
    add_library(freescale_${name} INTERFACE)
    target_link_libraries(freescale_${name} INTERFACE freescale_compile ${lower_layers})
  endif()
endfunction()
