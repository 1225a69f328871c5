/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h - a server for pages that are read: HTTP/1.0, GET and HEAD, one request a connection.
 * Whoever can connect is answered, so all is bounded: connections, bytes of a request, and the time
 * that a connection has, after which it is closed however far it is.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

enum { HTTP_CONNECTIONS = 32, HTTP_REQUEST_BYTES = 4096, HTTP_DEADLINE_MS = 2000 };

/* Writes the page at `path` ("/metrics"); false: there is no such page. It may take a while, and
 * other connections wait meanwhile. */
typedef bool http_page_fn(FILE *out, const char *path, void *arg);

/* Opens a listening socket at "ADDRESS:PORT", both in numbers, "[ADDRESS]:PORT" or "unix:PATH"
 * (mode 0660). Port 0: one that is free. Returns it, or -1 with the reason in text; if there is no
 * error, text has the address. */
int http_listen(const char *address, char *text, size_t n);
/* Serves until the socket fails, and returns -errno. */
int http_serve(int listening, http_page_fn *page, void *arg);
