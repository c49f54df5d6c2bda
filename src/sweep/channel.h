/* Messages between the coordinator and its workers: JSON objects, each after its length, over a socket. The
 * same for a worker on this machine and one reached through the network. */
#ifndef BLURRY_SWEEP_CHANNEL_H
#define BLURRY_SWEEP_CHANNEL_H
#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct channel {
    int fd;        /* -1: closed */
    char *pending; /* bytes of messages that are not complete yet */
    size_t used, room;
} channel;

void channel_open(channel *c, int fd);
void channel_close(channel *c);

/* Sends one message and releases the object. False: the other side is gone. */
bool channel_send(channel *c, json_t *message);

typedef enum channel_state { CHANNEL_MESSAGE, CHANNEL_NOTHING, CHANNEL_CLOSED } channel_state;
/* The next message, waited for where `wait`. CHANNEL_CLOSED also for what is no message. */
channel_state channel_receive(channel *c, bool wait, json_t **message);

/* The word under "type", "" when there is none. */
const char *channel_type(const json_t *message);

#endif
