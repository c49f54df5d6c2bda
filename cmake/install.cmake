# `make install`: headers, both libraries, the command line, a pkg-config file and a CMake package.
include(CMakePackageConfigHelpers)
install(TARGETS blurry_shared blurry_static EXPORT blurry-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# For the wheel (python/packaging): the library alone, which finds the libraries beside it. An RPATH, not a RUNPATH, also
# serves the libraries that those need in turn.
set_target_properties(blurry_shared PROPERTIES INSTALL_RPATH "$ORIGIN")
target_link_options(blurry_shared PRIVATE -Wl,--disable-new-dtags)
install(TARGETS blurry_shared LIBRARY DESTINATION . COMPONENT python EXCLUDE_FROM_ALL NAMELINK_SKIP)
install(TARGETS blurry_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/blurry DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT blurry-targets NAMESPACE blurry:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/blurry)
configure_package_config_file(cmake/blurry-config.cmake.in ${CMAKE_BINARY_DIR}/blurry-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/blurry)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/blurry-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/blurry-config.cmake ${CMAKE_BINARY_DIR}/blurry-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/blurry)
configure_file(cmake/blurry.pc.in ${CMAKE_BINARY_DIR}/blurry.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/blurry.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
