/* Send prepared requests and time the answers.

   usage: requests FILE CONNECTIONS PAUSE_MS PORT...

   FILE holds one request after another: a line "CONNECTION LENGTH", then LENGTH bytes of body. Every connection has a
   thread and sends its own requests in order, each to all ports in turn, and waits PAUSE_MS after each answer.
   Prints a line "CONNECTION PORT STATUS FIRST_BYTE_US LAST_BYTE_US" for each answer and "seconds N" at the end. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_PORTS 8
#define BUFFER_BYTES (1 << 20)

struct request {
    int connection;
    size_t length;
    char *body;
};

static struct request *requests;
static size_t request_count;
static int ports[MAX_PORTS];
static int port_count;
static int pause_ms;
static pthread_mutex_t output = PTHREAD_MUTEX_INITIALIZER;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void read_requests(const char *path) {
    FILE *file = fopen(path, "rb");
    struct request next;
    if (!file)
        fail(path);
    while (fscanf(file, "%d %zu", &next.connection, &next.length) == 2) {
        fgetc(file);
        next.body = malloc(next.length);
        if (fread(next.body, 1, next.length, file) != next.length)
            fail("short file");
        requests = realloc(requests, (request_count + 1) * sizeof next);
        requests[request_count++] = next;
    }
    fclose(file);
}

static int connect_to(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;
    int channel = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(channel, (struct sockaddr *)&address, sizeof address))
        fail("connect");
    setsockopt(channel, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return channel;
}

static void send_all(int channel, const char *data, size_t length) {
    while (length) {
        ssize_t sent = send(channel, data, length, MSG_NOSIGNAL);
        if (sent <= 0)
            fail("send");
        data += sent;
        length -= sent;
    }
}

static int is_complete(const char *answer, size_t length) {
    const char *body = memmem(answer, length, "\r\n\r\n", 4);
    const char *stated;
    size_t head;
    if (!body)
        return 0;
    head = body + 4 - answer;
    stated = strcasestr(answer, "\r\ncontent-length:");
    if (stated && stated < body)
        return length >= head + strtoul(stated + 17, NULL, 10);
    return length >= head + 5 && !memcmp(answer + length - 5, "0\r\n\r\n", 5);
}

static void ask(int connection, int port_index, int channel, struct request *request, char *answer) {
    char head[512];
    size_t length = 0;
    double begun, first = 0, last;
    int size = snprintf(head, sizeof head,
                        "POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
                        "x-api-key: any\r\nanthropic-version: 2023-06-01\r\ncontent-length: %zu\r\n\r\n",
                        ports[port_index], request->length);
    begun = now();
    send_all(channel, head, size);
    send_all(channel, request->body, request->length);
    while (!is_complete(answer, length)) {
        ssize_t got = recv(channel, answer + length, BUFFER_BYTES - 1 - length, 0);
        if (got <= 0)
            fail("the answer broke off");
        if (!first)
            first = now();
        length += got;
        answer[length] = 0;
    }
    last = now();
    pthread_mutex_lock(&output);
    printf("%d %d %d %.0f %.0f\n", connection, port_index, atoi(answer + 9), 1e6 * (first - begun), 1e6 * (last - begun));
    pthread_mutex_unlock(&output);
}

static void *run_connection(void *given) {
    int connection = (int)(long)given;
    int channels[MAX_PORTS];
    char *answer = malloc(BUFFER_BYTES);
    for (int index = 0; index < port_count; index++)
        channels[index] = connect_to(ports[index]);
    for (size_t at = 0; at < request_count; at++) {
        if (requests[at].connection != connection)
            continue;
        for (int index = 0; index < port_count; index++) {
            ask(connection, index, channels[index], &requests[at], answer);
            if (pause_ms)
                usleep(1000 * pause_ms);
        }
    }
    for (int index = 0; index < port_count; index++)
        close(channels[index]);
    free(answer);
    return NULL;
}

int main(int count, char **given) {
    int connections;
    pthread_t *threads;
    double begun;
    if (count < 5 || count - 4 > MAX_PORTS) {
        fprintf(stderr, "usage: requests FILE CONNECTIONS PAUSE_MS PORT...\n");
        return 2;
    }
    read_requests(given[1]);
    connections = atoi(given[2]);
    pause_ms = atoi(given[3]);
    for (port_count = 0; port_count < count - 4; port_count++)
        ports[port_count] = atoi(given[4 + port_count]);
    threads = calloc(connections, sizeof *threads);
    begun = now();
    for (long connection = 0; connection < connections; connection++)
        pthread_create(&threads[connection], NULL, run_connection, (void *)connection);
    for (int connection = 0; connection < connections; connection++)
        pthread_join(threads[connection], NULL);
    printf("seconds %.6f\n", now() - begun);
    return 0;
}
