/* The public headers' fingerprint, computed by cmake/abi.cmake. */
#include "blurry/abi.h"

const char *blurry_abi(void)
{
    return BLURRY_ABI;
}
