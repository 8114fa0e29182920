/* An upstream that answers at once: whole, or as a stream if the request asks for one.

   usage: upstream TEXT

   Prints its port. Every answer says TEXT and reports a quarter of the bytes of the request as its tokens. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUFFER_BYTES (16 << 20)
#define ANSWER_BYTES (64 << 10)

static const char *text;

static const char WHOLE[] =
    "{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"claude-sonnet-5\",\"content\":"
    "[{\"type\":\"text\",\"text\":\"%s\"}],\"stop_reason\":\"end_turn\","
    "\"usage\":{\"input_tokens\":%zu,\"output_tokens\":20}}";

static const char EVENTS[] =
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\","
    "\"role\":\"assistant\",\"model\":\"claude-sonnet-5\",\"content\":[],\"usage\":{\"input_tokens\":%2$zu,"
    "\"output_tokens\":1}}}\n\n"
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":"
    "{\"type\":\"text\",\"text\":\"\"}}\n\n"
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":"
    "{\"type\":\"text_delta\",\"text\":\"%1$s\"}}\n\n"
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},"
    "\"usage\":{\"output_tokens\":20}}\n\n"
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

static void send_all(int channel, const char *data, size_t length) {
    while (length) {
        ssize_t sent = send(channel, data, length, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        data += sent;
        length -= sent;
    }
}

static void answer(int channel, size_t request_bytes, int streams) {
    char *body = malloc(ANSWER_BYTES);
    char *whole = malloc(ANSWER_BYTES + 512);
    int length = snprintf(body, ANSWER_BYTES, streams ? EVENTS : WHOLE, text, request_bytes / 4);
    int size;
    if (streams)
        size = sprintf(whole,
                       "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                       "%x\r\n%s\r\n0\r\n\r\n",
                       length, body);
    else
        size = sprintf(whole, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s",
                       length, body);
    send_all(channel, whole, size);
    free(body);
    free(whole);
}

static size_t body_bytes(const char *request, const char *end) {
    const char *stated = strcasestr(request, "\r\ncontent-length:");
    return stated && stated < end ? strtoul(stated + 17, NULL, 10) : 0;
}

static void *serve(void *given) {
    int channel = (int)(long)given;
    char *request = malloc(BUFFER_BYTES + 1);
    size_t length = 0;
    for (;;) {
        char *end = NULL;
        size_t head, body;
        while (!(end = length ? memmem(request, length, "\r\n\r\n", 4) : NULL)) {
            ssize_t got = recv(channel, request + length, BUFFER_BYTES - length, 0);
            if (got <= 0)
                goto done;
            length += got;
            request[length] = 0;
        }
        head = end + 4 - request;
        body = body_bytes(request, end);
        while (length < head + body) {
            ssize_t got = recv(channel, request + length, BUFFER_BYTES - length, 0);
            if (got <= 0)
                goto done;
            length += got;
        }
        answer(channel, body, memmem(request + head, body, "\"stream\":true", 13) != NULL);
        memmove(request, request + head + body, length - head - body);
        length -= head + body;
        request[length] = 0;
    }
done:
    close(channel);
    free(request);
    return NULL;
}

int main(int count, char **given) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int one = 1;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (count != 2) {
        fprintf(stderr, "usage: upstream TEXT\n");
        return 2;
    }
    text = given[1];
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(listener, (struct sockaddr *)&address, size);
    listen(listener, 512);
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        pthread_t thread;
        int channel = accept(listener, NULL, NULL);
        if (channel < 0)
            continue;
        setsockopt(channel, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        pthread_create(&thread, NULL, serve, (void *)(long)channel);
        pthread_detach(thread);
    }
}
