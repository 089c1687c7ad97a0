/* A server that does nothing: every request is answered at once, with the same bytes as any other of its kind.

   nothing PORT KEY FILE [KEY FILE ...]

   What a client measures here is itself and the kernel: the limit of what any broker could show it. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEYS_MAX 128
#define FRAME_MAX (16 << 20)

/* A frame for each API: its size, room for the correlation id, the answer. */
static struct { char *frame; size_t size; } answers[KEYS_MAX];

static void learn(int key, const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || key < 0 || key >= KEYS_MAX) { fprintf(stderr, "nothing: key %d, file %s\n", key, path); exit(1); }
    fseek(file, 0, SEEK_END);
    size_t body = (size_t)ftell(file);
    rewind(file);
    char *frame = malloc(8 + body);
    uint32_t size = htonl((uint32_t)(4 + body));
    memcpy(frame, &size, 4);
    if (fread(frame + 8, 1, body, file) != body) { fprintf(stderr, "nothing: %s cannot be read\n", path); exit(1); }
    fclose(file);
    answers[key].frame = frame;
    answers[key].size = 8 + body;
}

static int receive(int fd, char *into, size_t size) {
    while (size) {
        ssize_t n = recv(fd, into, size, 0);
        if (n <= 0) return 0;
        into += n;
        size -= (size_t)n;
    }
    return 1;
}

static int reply(int fd, const char *request) {
    char frame[4096];
    uint16_t key;
    memcpy(&key, request, 2);
    key = ntohs(key);
    if (key >= KEYS_MAX || !answers[key].frame || answers[key].size > sizeof frame) return 0;
    memcpy(frame, answers[key].frame, answers[key].size);
    memcpy(frame + 4, request + 4, 4);
    return send(fd, frame, answers[key].size, MSG_NOSIGNAL) == (ssize_t)answers[key].size;
}

static void *serve(void *given) {
    int fd = (int)(intptr_t)given;
    char *request = malloc(FRAME_MAX);
    uint32_t size;
    while (receive(fd, (char *)&size, 4)) {
        size = ntohl(size);
        if (size < 8 || size > FRAME_MAX || !receive(fd, request, size) || !reply(fd, request)) break;
    }
    free(request);
    close(fd);
    return NULL;
}

static int listen_at(int port) {
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 16)) { perror("nothing"); exit(1); }
    return fd;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc % 2) { fprintf(stderr, "usage: see the head of nothing.c\n"); return 2; }
    for (int i = 2; i < argc; i += 2) learn(atoi(argv[i]), argv[i + 1]);
    int door = listen_at(atoi(argv[1]));
    for (;;) {
        int one = 1, fd = accept(door, NULL, NULL);
        if (fd < 0) return 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        pthread_t thread;
        pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd);
        pthread_detach(thread);
    }
}
