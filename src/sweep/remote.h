/* Slots on other ranks: TCP connections to the coordinator. MPI carries the coordinator's address and a
 * secret to every rank and is then left; from there on a rank that dies is a connection that closes, and the
 * others go on. */
#ifndef BLURRY_SWEEP_REMOTE_H
#define BLURRY_SWEEP_REMOTE_H
#include "base/status.h"

#include <stddef.h>

/* A socket that listens on every interface. `address` receives "port host ip ip ...": where it can be
 * reached. */
blurry_status remote_listen(int *fd, char *address, size_t capacity);
/* A connection that is waiting; -1: none. */
int remote_accept(int listener);
/* Tries the ways to an address in turn, for some seconds; -1: it cannot be reached. */
int remote_connect(const char *address);

/* 64 hexadecimal digits that nobody else knows. */
blurry_status remote_secret(char token[65]);

#endif
