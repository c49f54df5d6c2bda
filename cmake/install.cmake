# `make install`: headers, both libraries, the command line, a pkg-config file and a CMake package.
include(CMakePackageConfigHelpers)
install(TARGETS blurry_shared blurry_static EXPORT blurry-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
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
